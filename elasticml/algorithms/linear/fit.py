"""What the solvers of this process return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elasticml.arrays import F64


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A model with its certificate."""

    #: (d,), with the coefficient of a constant column last if there is one; or (n_models, d).
    w: F64
    gap: float
    #: Passes over the rows, sweeps over working sets, or Newton steps.
    steps: int
    #: The gap is at most the requested one, or rounding of the objective.
    converged: bool
    #: The intercept, or one for each model; None if there is none, or it is in ``w``.
    b: Any = None
