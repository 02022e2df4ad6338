"""The definition of a free-running job: its loop, its initialization, and its result."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Arrays, LoopConfig
from elasticml.algorithms.base import Arrays as Named
from elasticml.algorithms.base import Exchange, Outcome, Parallel, Work
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import LocalProtocolError

#: Exchanges of the initialization, such as one that gathers rows; returns a state's arrays.
Start = Generator[Exchange, Outcome, Mapping[str, NDArray[np.float64]]]


def no_answer(work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Named:
    """Reject every exchange: the initialization has none."""
    raise LocalProtocolError(f"operation {work.operation} is unknown: no exchange was expected")


def as_they_are(state: Arrays) -> Mapping[str, Any]:
    """Return the arrays of a state as the result, under the same names."""
    return dict(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncPlan:
    """A free-running job; identical on the driver and on every member."""

    loop: LoopConfig
    #: Returns the driver's generator of the initialization's exchanges.
    start: Callable[[], Start]
    #: Computes a member's share of these exchanges.
    answer: Callable[[Work, Sequence[Chunk], Parallel], Named] = no_answer
    #: Converts a state to the user's arrays, such as ``coef`` and ``intercept``.
    result: Callable[[Arrays], Mapping[str, Any]] = as_they_are
    #: Divisor of the objective's sum over all data; None: the number of examples.
    weight: float | None = None
    #: Exchanges by which the driver improves the mean of all states at the end.
    polish: Callable[[Arrays], Start] | None = None
    #: Minimum training visits of examples per visit for evaluating the objective in reports.
    visits_per_evaluation: float = 4.0
