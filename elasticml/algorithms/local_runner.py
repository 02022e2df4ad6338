"""Run an algorithm without a cluster: its trainer and one solver over all examples, in process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticml.algorithms.base import (
    Algorithm,
    Arrays,
    Exchange,
    Model,
    Outcome,
    Parallel,
    Proceed,
    RoundEnd,
    Work,
)
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.source import DatasetStats
from elasticml.ids import ExchangeId
from elasticml.protocol.events import ExchangeHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The model of a local run."""

    model: Model
    rounds: int


def train_locally(
    algorithm: Algorithm,
    section: Mapping[str, Any],
    facts: DatasetStats,
    chunks: Sequence[Chunk],
    *,
    rounds: int,
    parallel: Parallel,
) -> Trained:
    """Train with a single member that never leaves, in the calling thread.

    Parameters
    ----------
    section : mapping
        The ``algorithm`` section of a job.
    chunks : sequence of Chunk
        All chunks of the data set; their states are modified.
    rounds : int
        Maximum number of rounds.
    """
    trainer = algorithm.trainer(section, facts, "stall")
    solver = algorithm.solver(section, facts)
    done, serial = 0, 0
    answer: Any = None
    while True:
        try:
            asked = trainer.send(answer)
        except StopIteration as end:
            return Trained(model=end.value, rounds=done)
        if isinstance(asked, RoundEnd):
            done += 1
            answer = Proceed(go_on=done < rounds)
            continue
        serial += 1
        answer = answer_locally(
            asked, serial, lambda work: solver.compute(work, chunks, parallel), facts.n_rows
        )


def answer_locally(
    asked: Exchange, serial: int, compute: Callable[[Work], Arrays], examples: int
) -> Outcome:
    """Return the outcome of an exchange with one member that has all ``examples``."""
    work = ExchangeHeader(
        exchange=ExchangeId(serial),
        operation=asked.operation,
        model=asked.model,
        parameters=asked.parameters,
        returns=asked.returns,
    )
    return Outcome(
        exchange=work.exchange, arrays=compute(work), examples=examples, absent_examples=0
    )
