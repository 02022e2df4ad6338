"""What a fit in this process, or a job of an estimator, minimises, and how exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from elasticml.objectives.penalties import Absolute

#: "columns": coordinate descent on working sets of columns. "dual": coordinate ascent.
#: "equations": the normal equations of columns or rows.
Method = Literal["columns", "dual", "newton", "equations"]

_ABSOLUTE: Final = Absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """``mean loss + l1 sum_j terms(w_j) + l2 / 2 |w|^2``, where the mean is weighted."""

    loss: Literal["squared", "logistic", "hinge", "squared_hinge", "poisson"]
    l1: float = 0.0
    l2: float = 0.0
    #: The function of one coefficient that ``l1`` is the weight of; here and below the absolute
    #: value, or that of a user. See :mod:`elasticml.objectives.penalties`.
    terms: Any = _ABSOLUTE
    #: Value of the intercept's column, whose weight is penalised unless the intercept is free; None
    #: for no intercept.
    intercept: float | None = None
    is_free: bool = True
    #: More than two: multinomial.
    classes: int = 2
    #: Number of the offset's column, whose coefficient is 1.
    fixed: int | None = None
    #: The gap to reach.
    gap: float
    #: The most passes, steps or sweeps; of a job, rounds.
    rounds: int
    method: Method
    seed: int | None = None

    @property
    def n_models(self) -> int:
        """The number of models: one for each class if there are more than two."""
        return self.classes if self.classes > 2 else 1
