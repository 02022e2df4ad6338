"""A trainer and one solver in this thread, over all examples: an algorithm without a cluster."""

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
from elasticml.data.chunk import Chunk
from elasticml.data.source import DataFacts
from elasticml.terms import ExchangeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a trainer came to here."""

    model: Model
    rounds: int


def train_here(
    algorithm: Algorithm,
    section: Mapping[str, Any],
    facts: DataFacts,
    chunks: Sequence[Chunk],
    *,
    rounds: int,
    parallel: Parallel,
) -> Trained:
    """Run a trainer until it stops, or for so many rounds, with a single member that never leaves.

    Parameters
    ----------
    section : mapping
        The ``algorithm`` section of a job.
    chunks : sequence of Chunk
        All of them; their states are written to.
    rounds : int
        At most.
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
        answer = answer_here(
            asked, serial, lambda work: solver.compute(work, chunks, parallel), facts.n_rows
        )


def answer_here(
    asked: Exchange, serial: int, compute: Callable[[Work], Arrays], examples: int
) -> Outcome:
    """Answer an exchange as its only member, over so many examples, of which none is absent."""
    work = Work(
        exchange=ExchangeId(serial),
        operation=asked.operation,
        model=asked.model,
        parameters=asked.parameters,
        returns=asked.returns,
    )
    return Outcome(
        exchange=work.exchange, arrays=compute(work), examples=examples, absent_examples=0
    )
