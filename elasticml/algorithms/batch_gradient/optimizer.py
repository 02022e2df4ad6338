"""The interface of optimizers: choose one step from the current iterate."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from elasticml.algorithms.base import Exchange, Outcome, Resume
from elasticml.algorithms.batch_gradient.elastic_gradient import ElasticGradient, Evaluated
from elasticml.arrays import F64
from elasticml.objectives.penalty_kernels import L2

#: The set of examples in the sums has changed: evaluate the same point again, and ask again.
Reevaluate = Literal["again"]


@dataclass(slots=True)
class Spent:
    """The exchanges of the optimizer since the last row of the history."""

    probes: int = 0
    products: int = 0
    hessians: int = 0

    def take(self, *names: str) -> dict[str, float | int | None]:
        """Return the counts of these names as columns, and reset all."""
        columns: dict[str, float | int | None] = {name: getattr(self, name) for name in names}
        self.probes = self.products = self.hessians = 0
        return columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterate:
    """The estimated objective at w^r: everything a step uses refers to this one function."""

    elastic: ElasticGradient
    penalty: L2
    evaluated: Evaluated
    spent: Spent
    #: Estimated objective with penalty, its gradient (n_model,), and the gradient's norm.
    value: float
    gradient: F64
    norm: float
    #: Norm of the first gradient of the run.
    first_norm: float
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step ``length * direction`` for the trainer to take."""

    #: Shape (n_model,).
    direction: F64
    length: float
    #: The objective after the step; NaN if it was not evaluated.
    value: float
    #: The serial under which solvers cache the direction's margins; None if they do not.
    serial: int | None


class Optimizer(Protocol):
    """Chooses steps. Its state between steps is saved and restored through a resume."""

    def step(self, here: Iterate) -> Generator[Exchange, Outcome, Step | Reevaluate | None]:
        """Choose a step, or None if no step lowers the objective."""
        ...

    def columns(self, spent: Spent) -> Mapping[str, float | int | None]:
        """Return additional history columns, and reset the counts."""
        ...

    def resume(self, *, is_whole: bool) -> Resume:
        """Return the state for another process, in which all examples are present.

        ``is_whole``: all examples are present here, too.
        """
        ...

    def go_on(self, resume: Resume, changes: int) -> None:
        """Restore the state; ``changes`` is the current count of changes of the example set."""
        ...
