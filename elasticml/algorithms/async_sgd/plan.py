"""What a free-running job's settings come to: its loop, its start, and its result."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Arrays, Loop
from elasticml.algorithms.base import Arrays as Named
from elasticml.algorithms.base import Exchange, Outcome, Parallel, Work
from elasticml.data.chunk import Chunk
from elasticml.errors import LocalProtocolError

#: Exchanges that find where to begin, such as one that gathers rows; returns a state's arrays.
Start = Generator[Exchange, Outcome, Mapping[str, NDArray[np.float64]]]


def no_answer(work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Named:
    """Answer no exchange: the start asks for none."""
    raise LocalProtocolError(f"nobody answers operation {work.operation}")


def as_they_are(state: Arrays) -> Mapping[str, Any]:
    """Name a result's arrays as the state's."""
    return dict(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A free-running job: the same on the driver and on every member."""

    loop: Loop
    #: Makes the exchanges by which the driver finds where to begin.
    start: Callable[[], Start]
    #: A member's answer to these.
    answer: Callable[[Work, Sequence[Chunk], Parallel], Named] = no_answer
    #: What a state is to users: named arrays, such as ``coef`` and ``intercept``.
    result: Callable[[Arrays], Mapping[str, Any]] = as_they_are
    #: What the objective's sum over all data is divided by; None: the number of examples.
    weight: float | None = None
    #: Exchanges by which the driver makes the mean of all states better before it is the result.
    polish: Callable[[Arrays], Start] | None = None
    #: Examples that all members visit for each one at which the objective is evaluated in reports.
    visits_per_evaluation: float = 4.0
