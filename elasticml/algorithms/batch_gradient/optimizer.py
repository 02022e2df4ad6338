"""What an optimizer is asked: one step from where a round stands; and what it answers."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Exchange, Outcome, Resume
from elasticml.algorithms.batch_gradient.elastic import Elastic, Evaluated
from elasticml.objectives.penalties import L2

F64 = NDArray[np.float64]
#: The set of examples in the sums has changed: evaluate the same point anew, and ask again.
Again = Literal["again"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The estimated objective at w^r: whatever a step is made of refers to this one function."""

    elastic: Elastic
    penalty: L2
    evaluated: Evaluated
    #: Estimated objective with its penalty, its gradient (n_model,), and that one's norm.
    value: float
    gradient: F64
    norm: float
    #: Norm of the first gradient of the run.
    first_norm: float
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step ``length * direction``, by which the trainer moves."""

    #: Shape (n_model,).
    direction: F64
    length: float
    #: The objective at its end; NaN where nobody looked.
    value: float
    #: The number under which solvers have the direction's margins; None where they have not.
    serial: int | None


class Optimizer(Protocol):
    """Chooses steps. Between two of them it may remember what it likes; a resume tells it."""

    def step(self, here: Here) -> Generator[Exchange, Outcome, Step | Again | None]:
        """Choose a step, or None where none lowers the objective."""
        ...

    def columns(self) -> Mapping[str, float | int | None]:
        """Return the history's further columns, of the steps since the last call."""
        ...

    def resume(self, *, is_whole: bool) -> Resume:
        """Say what the next step is made of, for another process, where nobody is absent.

        ``is_whole``: nobody is absent here, either.
        """
        ...

    def go_on(self, resume: Resume, changes: int) -> None:
        """Stand where another process stood; ``changes``: of the set of examples, so far here."""
        ...
