"""A toy algorithm whose sums are exact integers: any example counted twice or not at all shows.

Labels are row numbers, so the sum over a set of examples, of their squares, and their count
identify the set. The trainer keeps a stand-in per absent group, as Algorithm 2 does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
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
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.source import DatasetStats
from elasticml.errors import ElasticmlError


class DoubleCountError(ElasticmlError):
    """A sum is not over the examples that it claims."""


class ToySolver:
    """Sums labels, their squares, and counts rows."""

    def __init__(self, settings: Mapping[str, Any], facts: DatasetStats) -> None:
        self.calls = 0

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Return the sums over exactly these chunks, weighted by the model's number."""
        self.calls += 1
        factor = float(work.model["factor"].mean())
        labels = np.concatenate([c.labels for c in chunks]) if chunks else np.empty(0)
        return {
            "sums": np.array([len(labels), labels.sum(), (labels**2).sum()]) * factor,
        }


def ask(require: Any, seal: bool, phase: Any = "compute") -> Exchange:
    """Make the toy's only exchange."""
    return Exchange(
        operation="sums",
        model={"factor": np.ones(4)},
        returns={"sums": (3,)},
        keep=phase == "compute",
        require=require,
        seal=seal,
        phase=phase,
    )


def toy_trainer(
    settings: Mapping[str, Any], facts: DatasetStats, absent: str
) -> Generator[Exchange | RoundEnd, Any, Model]:
    """Check in every exchange that present and absent examples make up the whole, each once."""
    n = facts.n_rows
    labels = np.arange(n, dtype=np.float64)
    whole = np.array([n, labels.sum(), (labels**2).sum()])
    #: group -> its sums, as a stand-in
    stand_ins: dict[int, Any] = {}
    previous: np.ndarray | None = None
    previous_exchange = 0
    seal = False
    anchored = 0
    for r in range(int(settings.get("rounds", 10))):
        require = "everybody" if absent in ("stall", "reload") else "any"

        outcome: Outcome = yield ask(require, seal)
        seal = False
        sums = outcome.arrays["sums"]
        for group in [g for g in stand_ins if g not in outcome.absent]:
            # They return in the very sum that may lack others: the difference is theirs alone.
            returned = stand_ins.pop(group)
            previous = None if previous is None else previous + returned
        if round(sums[0]) != outcome.examples or outcome.examples + outcome.absent_examples != n:
            raise DoubleCountError(f"round {r}: {sums} for {outcome.examples} examples of {n}")
        if outcome.opened is not None:
            absent_sum = None
            # The share of ignored examples is not needed: here it is only the remainder.
            expected = absent != "ignore"
            if (
                expected
                and outcome.anchor is not None
                and outcome.anchor.exchange == previous_exchange
            ):
                absent_sum = outcome.anchor.arrays["sums"]
                anchored += 1
                group = outcome.opened
            if expected and absent_sum is None and previous is not None:
                # Algorithm 2, lines 9-13, until a correction ends without new losses.
                before = outcome
                while True:
                    correction: Outcome = yield ask(require, False, phase="correct")
                    same = correction.opened == before.opened
                    before = correction
                    if same:
                        break
                if before.opened is None:
                    continue  # all members were lost, and the lost examples have returned
                absent_sum = previous - before.arrays["sums"]
                group = before.opened
                sums, outcome = before.arrays["sums"], before
            if absent_sum is None:
                absent_sum = whole - sums - sum(stand_ins.values(), np.zeros(3))
                group = outcome.opened
            stand_ins[group] = absent_sum
            seal = True
        total = sums + sum(stand_ins.values(), np.zeros(3))
        if not np.array_equal(total, whole):
            raise DoubleCountError(
                f"round {r}: {sums} plus stand-ins {stand_ins} is {total}, wanted {whole}; "
                f"absent {outcome.absent} opened {outcome.opened} contributors"
            )
        previous, previous_exchange = sums, outcome.exchange
        go_on = yield RoundEnd(
            objective=float(r),
            objective_kind="exact" if not stand_ins else "estimated",
            stand_ins=len(stand_ins),
            extra={"anchored": anchored},
            model={"coef": np.array([[float(r)]])},
        )
        if not go_on:
            break
    return Model(
        arrays={"coef": np.array([[1.0]])}, converged=True, reason="toy rounds", objective=0.0
    )


ALGORITHM = Algorithm(name="toy", trainer=toy_trainer, solver=ToySolver)


class InlineRunner:
    """Calls functions at once on the event loop; see ``executors.Runner``."""

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function."""
        return function(*args)

    def place(self) -> str:
        """Return where the running call is."""
        return ""

    def close(self) -> None:
        """Do nothing."""
