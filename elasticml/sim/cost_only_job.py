"""A job that is simulated from its costs alone, for worlds of thousands of members.

No data are read and no model is computed. A partial has three numbers that identify a set of
examples: their number, and two sums over their chunks. So a sum that contains an example twice, or
lacks one that it claims, ends the job. Messages have the size of the real arrays.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elasticml.algorithms.base import (
    Algorithm,
    Arrays,
    Exchange,
    Model,
    Outcome,
    Parallel,
    RoundEnd,
    Work,
)
from elasticml.data.chunks.body import Layout, write_body
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import BlockSummary, DatasetStats
from elasticml.data.source import COSTS, BlockInfo, HeldOut
from elasticml.errors import JobFailedError
from elasticml.ids import ChunkId, GroupId
from elasticml.specification.simulator import Costs

#: Parameters of an exchange: the numbers of doubles that its model and its partial represent.
DOWN_VALUES, UP_VALUES = "sim_down_values", "sim_up_values"
#: The algorithm's import path in a job record.
NAME = "elasticml.sim.cost_only_job:ALGORITHM"


@functools.cache
def hollow_body(n_rows: int, row_bytes: int) -> memoryview:
    """Return the body of ``n_rows`` rows of zeros, which all such chunks share."""
    n_columns = max(1, row_bytes // 8 - 1)
    layout = Layout(kind="dense", dtype="float64", n_columns=n_columns)
    values = np.broadcast_to(0.0, (n_rows, n_columns))
    return write_body(layout, np.zeros(n_rows), None, {"values": values}, n_rows=n_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSource:
    """A source of chunks without bytes, one block per member."""

    costs: Costs
    members: int
    needs_survey: bool = False
    is_costly: bool = False

    def spec(self) -> dict[str, Any]:
        """Return the description from which the source is made again."""
        costs = self.costs
        sizes = (costs.rows, costs.columns, costs.chunks_per_member, costs.row_bytes)
        return {"format": COSTS, "sizes": sizes, "blocks": self.members}

    def fingerprint(self) -> str:
        """Return a constant."""
        return "c057" * 4

    def blocks(self) -> list[BlockInfo]:
        """Return one block per member, with equal numbers of rows."""
        bounds = [self.costs.rows * k // self.members for k in range(self.members + 1)]
        return [
            BlockInfo(index=k, nbytes=(high - low) * self.costs.row_bytes, rows=high - low)
            for k, (low, high) in enumerate(itertools.pairwise(bounds))
        ]

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Any], BlockSummary]:
        """Create the chunks of a block."""
        low = self.costs.rows * block // self.members
        high = self.costs.rows * (block + 1) // self.members
        n = max(1, min(self.costs.chunks_per_member, high - low))
        rows = [(high - low) * (k + 1) // n - (high - low) * k // n for k in range(n)]
        chunks = [
            Chunk(ChunkId(self.fingerprint(), block, k), hollow_body(count, self.costs.row_bytes))
            for k, count in enumerate(rows)
        ]
        layout = Layout(kind="dense", dtype="float64", n_columns=self.costs.columns)
        summary = BlockSummary(
            block=block,
            rows=high - low,
            n_columns=self.costs.columns,
            layout=layout,
            continuous=True,
            weight_sum=float(high - low),
            n_chunks=n,
            nbytes=(high - low) * self.costs.row_bytes,
        )
        return chunks, summary

    def survey(self, block: int, held: HeldOut = None) -> BlockSummary:
        """Return the summary of a block; never needed."""
        return self.read(block, None, self.members)[1]

    def with_stats(self, facts: DatasetStats) -> CostSource:
        """Return the source unchanged."""
        return self

    def with_columns(self, n_columns: int) -> CostSource:
        """Return the source unchanged."""
        return self


def source_of(spec: Mapping[str, Any]) -> CostSource:
    """Return the source that a description says."""
    rows, columns, chunks_per_member, row_bytes = spec["sizes"]
    costs = Costs(
        rows=rows, columns=columns, chunks_per_member=chunks_per_member, row_bytes=row_bytes
    )
    return CostSource(costs=costs, members=spec["blocks"])


class CostSolver:
    """Computes the three sums over a member's chunks."""

    def __init__(self, settings: Mapping[str, Any], facts: DatasetStats) -> None:
        self._chunks: Sequence[Chunk] | None = None
        self._sums = np.zeros(3)

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Return the sums; they are cached while the chunks stay the same."""
        if chunks is not self._chunks:
            self._chunks = chunks
            self._sums = _sums(chunks)
        return {"sums": self._sums}

    def warm_up(self, parallel: Parallel) -> None:
        """Do nothing: the world has the time that it takes."""


def _sums(chunks: Sequence[Any]) -> Any:
    """Return the number of examples and two sums of chunk numbers; all exact in doubles."""
    sums = np.zeros(3)
    for chunk in chunks:
        number = 64 * chunk.id.block + chunk.id.ordinal + 1
        sums += (chunk.n_rows, number, number * number % 65521)
    return sums


def sums_of(source: CostSource) -> list[float]:
    """Return the three sums over all chunks of a source."""
    chunks = [chunk for block in source.blocks() for chunk in source.read(block.index, None, 1)[0]]
    sums: list[float] = _sums(chunks).tolist()
    return sums


def cost_trainer(
    settings: Mapping[str, Any], facts: DatasetStats, absent: str
) -> Generator[Exchange | RoundEnd, Any, Model]:
    """Yield the exchanges of gradient descent with stand-ins, and check every sum.

    A round consists of a kept gradient exchange, a correction if members vanished and the tree has
    no anchor, and ``probes`` small exchanges.

    Raises
    ------
    JobFailedError
        When a sum does not match its examples.
    """
    waits = absent in ("stall", "reload")
    whole = np.asarray(settings["whole"])
    stand_ins: dict[GroupId, Any] = {}
    seal = False
    while True:
        outcome: Outcome = yield _gradient(facts.n_columns, seal, waits)
        seal = False
        if outcome.opened is not None and outcome.anchor is None and absent in ("auto", "taylor"):
            outcome = yield _gradient(facts.n_columns, False, waits, correct=True)
        stand_ins = {group: stand_ins[group] for group in outcome.absent}
        absent_sums = whole - outcome.arrays["sums"] - sum(stand_ins.values(), np.zeros(3))
        _check(outcome, absent_sums)
        if outcome.opened is not None:
            stand_ins[outcome.opened] = absent_sums
            seal = True
        for _ in range(int(settings.get("probes", 1))):
            yield _probe(seal, waits)
            seal = False
        go_on = yield RoundEnd(
            objective=None,
            objective_kind="estimated" if stand_ins else "exact",
            stand_ins=len(stand_ins),
        )
        if not go_on:
            return Model(arrays={}, converged=False, reason="stopped as asked")


def _check(outcome: Outcome, absent_sums: Any) -> None:
    """Check an outcome against the sums of the open group; zero if there is none."""
    sums, anchor = outcome.arrays["sums"], outcome.anchor
    claimed = None
    if outcome.opened is None:
        claimed = np.zeros(3)
    elif anchor is not None:
        claimed = anchor.arrays["sums"]
    is_wrong = round(float(sums[0])) != outcome.examples
    if is_wrong or (claimed is not None and not np.array_equal(claimed, absent_sums)):
        raise JobFailedError(
            f"exchange {outcome.exchange}: the sum {sums.tolist()} of {outcome.examples} examples "
            f"lacks {absent_sums.tolist()}, and claims to lack {claimed}",
            exchange=outcome.exchange,
        )


def _gradient(columns: int, seal: bool, waits: bool, correct: bool = False) -> Exchange:
    return Exchange(
        operation="gradient",
        model={"w": np.zeros(1)},
        returns={"sums": (3,)},
        parameters={DOWN_VALUES: columns, UP_VALUES: columns + 2},
        keep=not correct,
        require="everybody" if waits else "any",
        seal=seal,
        phase="correct" if correct else "compute",
    )


def _probe(seal: bool, waits: bool) -> Exchange:
    return Exchange(
        operation="probe",
        model={"steps": np.zeros(4)},
        returns={"sums": (3,)},
        require="everybody" if waits else "any",
        seal=seal,
    )


ALGORITHM = Algorithm(name="costs", trainer=cost_trainer, solver=CostSolver)
