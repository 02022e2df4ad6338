"""A certified lower bound of the minimum, from the gradients that the rounds compute anyway.

If every coefficient is penalised, the objective P is l2-strongly convex, and

    P(w) - min P <= |grad P(w)|^2 / (2 l2).

This is the duality gap at the dual variables ``-loss'(z_i)`` of the model. An intercept b is not
penalised. ``Q(w) = min_b P(w, b)`` is l2-strongly convex, too, so that

    P(w, b) - min P <= P(w, b) - Q(w) + |grad Q(w)|^2 / (2 l2).

Let ``slope = dP/db``, and let u be the distance from b to the best intercept for w. P is convex in
b, hence ``P(w, b) - Q(w) <= |slope u|``. The slope of a convex loss increases with the margin:
from b to the best intercept the slopes of all rows change in one direction, in the mean by
``slope``. With R the length of the longest row, ``|grad Q(w)| <= |grad_w P(w, b)| + R |slope|``.
Both terms vanish at the optimum.

u has a closed form for half deviances with the link log and power p. With the weighted means
``A = mean exp((2-p) z)`` and ``B = mean y exp((1-p) z)``, ``slope = A - B`` and ``u = log(B / A)``.
A is 1 for gamma, mean y + slope for Poisson, and else follows from the mean loss.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from elasticml.algorithms.base import Exchange, Outcome, Resume
from elasticml.algorithms.batch_gradient.gradient_exchanges import gradient_exchange
from elasticml.algorithms.column_statistics import ranges_exchange
from elasticml.algorithms.scaling import Columns
from elasticml.arrays import F64
from elasticml.specification.algorithms import BatchGradient

#: Serial of the point at which all margins are 0; solvers never cache it.
_ZERO: Final = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class InterceptTerms:
    """Constants of the data for the bound with an unpenalised intercept."""

    #: R: upper bound of the length of a row of the trained columns.
    longest: float
    #: Weighted mean of the targets.
    mean_target: float
    #: Terms of the mean loss that do not depend on the margins, for powers between 1 and 2.
    offset: float

    def distance(self, power: float, loss: float, slope: float) -> float:
        """Return u, the distance to the best intercept; infinite if there is none.

        Parameters
        ----------
        loss, slope : float
            The mean loss, and its derivative with respect to the intercept.
        """
        if power == 1.0:
            above = self.mean_target + slope
        elif power == 2.0:
            above = 1.0
        else:
            above = (2.0 - power) * ((power - 1.0) * (loss - self.offset) + slope)
        if not above > 0.0 or not slope < above:
            return math.inf
        return math.log1p(-slope / above)


@dataclass(slots=True, kw_only=True)
class LowerBound:
    """The best certified lower bound so far of the minimum over all examples.

    It begins with 0, since deviances and penalties are not negative.
    """

    power: float
    l2: float
    #: None without an intercept.
    intercept: InterceptTerms | None
    value: float = 0.0

    def learn(self, value: float, penalty: float, gradient: F64) -> None:
        """Raise the bound by what a model certifies.

        Parameters
        ----------
        value, penalty : float
            The objective over all examples, and the penalty in it.
        gradient : ndarray (n_model,)
            Its gradient; that of the intercept is the last one.
        """
        own = gradient if self.intercept is None else gradient[:-1]
        norm, rest = float(np.linalg.norm(own)), 0.0
        if self.intercept is not None:
            slope = float(gradient[-1])
            distance = self.intercept.distance(self.power, value - penalty, slope)
            norm += self.intercept.longest * abs(slope)
            rest = abs(slope * distance) if slope else 0.0
        self.value = max(self.value, value - rest - norm * norm / (2.0 * self.l2))

    def gap(self, value: float | None) -> float | None:
        """Bound a model's distance to the minimum, given its objective or an upper bound of it."""
        return None if value is None else max(0.0, value - self.value)

    def resume(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        terms = self.intercept
        return {
            "value": self.value,
            "intercept": None
            if terms is None
            else [terms.longest, terms.mean_target, terms.offset],
        }


def lower_bound_for(
    settings: BatchGradient, columns: Columns, resume: Resume | None
) -> Generator[Exchange, Outcome, LowerBound | None]:
    """Return the lower bound of a job before its first round; None if it certifies no gap.

    With an intercept and without ``resume`` it needs two exchanges over all members.
    """
    if not settings.certifies_gap:
        return None
    # Only an intercept that is not penalised needs it.
    power = getattr(settings.terms, "power", math.nan)
    earlier: Mapping[str, Any] | None = None if resume is None else resume.values.get("lower_bound")
    if earlier is not None:
        terms = earlier["intercept"]
        intercept = None
        if terms is not None:
            intercept = InterceptTerms(longest=terms[0], mean_target=terms[1], offset=terms[2])
        return LowerBound(power=power, l2=settings.l2, intercept=intercept, value=earlier["value"])
    intercept = None
    if settings.has_free_intercept:
        intercept = yield from _intercept_terms(power, columns)
    return LowerBound(power=power, l2=settings.l2, intercept=intercept)


def _intercept_terms(
    power: float, columns: Columns
) -> Generator[Exchange, Outcome, InterceptTerms]:
    found = (yield ranges_exchange(columns.n_columns)).arrays
    longest = columns.longest_row(-found["smallest"], found["largest"])
    at_zero = gradient_exchange(np.zeros(columns.n_sent), {"point": _ZERO, "scratch": True})
    outcome = yield replace(at_zero, require="everybody")
    weight = float(outcome.arrays["weight"])
    # Where all margins are 0, A is 1 and B is the mean target.
    mean_target = 1.0 - float(outcome.arrays["gradient"][-1]) / weight
    offset = 0.0
    if 1.0 < power < 2.0:
        loss = float(outcome.arrays["loss"]) / weight
        offset = loss - 1.0 / (2.0 - power) - mean_target / (power - 1.0)
    return InterceptTerms(longest=longest, mean_target=mean_target, offset=offset)
