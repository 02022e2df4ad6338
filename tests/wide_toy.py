"""A toy algorithm with long vectors: every value of every sum identifies its exchange.

A vector that is stale, half written, or summed twice or not at all has a wrong value somewhere.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
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

#: Values of a vector by default: 480 kB.
WIDTH = 60_000


class WrongSumError(ElasticmlError):
    """A model or a sum has a wrong value."""


def check_stamped(vector: Any, factor: float, stamp: float, what: str) -> None:
    """Check that a vector is ``factor * (stamp, stamp + 1, ...)``.

    Raises
    ------
    WrongSumError
        When any value differs.
    """
    wrong = np.flatnonzero(vector != factor * (stamp + np.arange(vector.size)))
    if wrong.size:
        raise WrongSumError(
            f"{what}: {wrong.size} of {vector.size} values are wrong, the first at {wrong[0]}: "
            f"{vector[wrong[0]]}, wanted {factor} * {stamp + wrong[0]}"
        )


class WideSolver:
    """Return the model times the number of its examples; check it before and after."""

    def __init__(self, settings: Mapping[str, Any], facts: DatasetStats) -> None:
        self.passes = int(settings.get("passes", 1))

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Return the model times the number of rows."""
        model, stamp = work.model["stamp"], float(work.parameters["stamp"])
        for _ in range(self.passes):
            check_stamped(model, 1.0, stamp, "model")
        result = model * float(sum(chunk.n_rows for chunk in chunks))
        check_stamped(model, 1.0, stamp, "model after the pass")
        return {"sums": result}


def wide_trainer(
    settings: Mapping[str, Any], facts: DatasetStats, absent: str
) -> Generator[Exchange | RoundEnd, Any, Model]:
    """Check every value of every sum against the examples that it claims to contain."""
    width = int(settings.get("width", WIDTH))
    for r in range(int(settings["rounds"])):
        stamp = float(r * width + 1)
        outcome: Outcome = yield Exchange(
            operation="stamp",
            model={"stamp": stamp + np.arange(width)},
            parameters={"stamp": stamp},
            returns={"sums": (width,)},
            keep=True,
            require="any",
        )
        if outcome.examples + outcome.absent_examples != facts.n_rows:
            raise WrongSumError(
                f"{outcome.examples} + {outcome.absent_examples} of {facts.n_rows} rows"
            )
        check_stamped(outcome.arrays["sums"], outcome.examples, stamp, f"sum of round {r}")
        go_on = yield RoundEnd(
            objective=float(r),
            objective_kind="estimated" if outcome.absent_examples else "exact",
            extra={"checked": r + 1},
            model={"coef": np.array([[float(r)]])},
        )
        if not go_on:
            break
    return Model(
        arrays={"coef": np.array([[1.0]])}, converged=True, reason="all rounds", objective=0.0
    )


ALGORITHM = Algorithm(name="wide", trainer=wide_trainer, solver=WideSolver)
