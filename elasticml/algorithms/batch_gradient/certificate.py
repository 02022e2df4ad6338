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
A is 1 for gamma, mean y + slope for Poisson, and else follows from the mean loss. For the squared
loss ``u = slope``.

For the logistic loss, of two classes or more, the bound is the dual objective at the model's
distributions q mixed with one for all rows, r, just enough for the means by class to equal the
classes' shares of the weight: ``q' = kept q + (1 - kept) r``. Entropies are concave, hence
``mean H(q') >= kept mean H(q)``. By the equality of Fenchel and Young, ``mean H(q)`` is the mean
loss less the product of its gradient and the model. The image of q' differs from ``kept`` times
that gradient by at most ``(1 - kept) sqrt(2) R``. ``kept`` is 1 at the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, replace
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
_TINY: Final = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class InterceptTerms:
    """Constants of the data for the bound with an unpenalised intercept."""

    #: R: upper bound of the length of a row of the penalised columns.
    longest: float
    #: The largest size of the offset, 0 without one.
    largest_offset: float
    #: Weighted mean of the targets; of classes their shares of the weight, that of +1 if there are
    #: two.
    mean_targets: tuple[float, ...]
    #: Terms of the mean loss that do not depend on the margins, for powers between 1 and 2.
    offset: float

    def distance(self, power: float, loss: float, slope: float) -> float:
        """Return u, the distance to the best intercept; infinite if there is none.

        Parameters
        ----------
        power : float
            NaN for the squared loss.
        loss, slope : float
            The mean loss, and its derivative with respect to the intercept.
        """
        if math.isnan(power):
            return abs(slope)
        if power == 1.0:
            above = self.mean_targets[0] + slope
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

    It begins with 0, since losses and penalties are not negative.
    """

    loss: str
    #: Of a half deviance; NaN for other losses.
    power: float
    l2: float
    #: None without an intercept that is not penalised.
    intercept: InterceptTerms | None
    value: float = 0.0

    def learn(self, value: float, gradient: F64, model: F64) -> None:
        """Raise the bound by what a model certifies.

        Parameters
        ----------
        value : float
            The objective over all examples.
        gradient, model : ndarray (n_model,)
            Its gradient, and the model, 0 for a coefficient that is not trained. Intercepts that
            are not penalised are last.
        """
        terms = self.intercept
        if terms is None:
            bound = value - float(gradient @ gradient) / (2.0 * self.l2)
        elif self.loss == "logistic":
            bound = self._at_mixed(terms, value, gradient, model)
        else:
            slope, w = float(gradient[-1]), model[:-1]
            loss = value - 0.5 * self.l2 * float(w @ w)
            norm = float(np.linalg.norm(gradient[:-1])) + terms.longest * abs(slope)
            rest = abs(slope * terms.distance(self.power, loss, slope)) if slope else 0.0
            bound = value - rest - norm * norm / (2.0 * self.l2)
        self.value = max(self.value, bound)

    def _at_mixed(self, terms: InterceptTerms, value: float, gradient: F64, model: F64) -> float:
        """Return the bound of the logistic loss, see the module docstring."""
        shares, n = np.array(terms.mean_targets), len(gradient) - len(terms.mean_targets)
        slopes, w = gradient[n:], model[:n]
        if shares.size == 1:
            shares, slopes = np.append(1.0 - shares, shares), np.append(-slopes, slopes)
        kept = min(1.0, float((shares / np.maximum(shares + slopes, _TINY)).min()))
        penalty = 0.5 * self.l2 * float(w @ w)
        along = float(gradient @ model) - 2.0 * penalty
        image = kept * float(np.linalg.norm(gradient[:n] - self.l2 * w))
        image += (1.0 - kept) * math.sqrt(2.0) * terms.longest
        entropy = kept * (value - penalty - along) - (1.0 - kept) * terms.largest_offset
        return entropy - image * image / (2.0 * self.l2)

    def gap(self, value: float | None) -> float | None:
        """Bound a model's distance to the minimum, given its objective or an upper bound of it."""
        return None if value is None else max(0.0, value - self.value)

    def resume(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        terms = self.intercept
        return {"value": self.value, "intercept": None if terms is None else asdict(terms)}


def lower_bound_for(
    settings: BatchGradient, columns: Columns, resume: Resume | None
) -> Generator[Exchange, Outcome, LowerBound | None]:
    """Return the lower bound of a job before its first round; None if it certifies no gap.

    With an intercept and without ``resume`` it needs two exchanges over all members.
    """
    if not settings.certifies_gap:
        return None
    # Only an intercept that is not penalised needs it.
    bound = LowerBound(
        loss=settings.loss,
        power=getattr(settings.terms, "power", math.nan),
        l2=settings.l2,
        intercept=None,
    )
    earlier: Mapping[str, Any] | None = None if resume is None else resume.values.get("lower_bound")
    if earlier is not None:
        bound.value, terms = earlier["value"], earlier["intercept"]
        if terms is not None:
            means = tuple(terms["mean_targets"])
            bound.intercept = InterceptTerms(**{**terms, "mean_targets": means})
    elif settings.has_free_intercept:
        bound.intercept = yield from _intercept_terms(bound, settings, columns)
    return bound


def _intercept_terms(
    bound: LowerBound, settings: BatchGradient, columns: Columns
) -> Generator[Exchange, Outcome, InterceptTerms]:
    found = (yield ranges_exchange(columns.n_columns)).arrays
    smallest, largest = -found["smallest"], found["largest"]
    fixed = slice(0) if columns.fixed is None else columns.fixed
    at_zero = gradient_exchange(np.zeros(columns.n_sent), {"point": _ZERO, "scratch": True})
    outcome = yield replace(at_zero, require="everybody")
    weight = float(outcome.arrays["weight"])
    # Where all margins are 0, the mean prediction is the same for all rows.
    mean = {"identity": 0.0, "log": 1.0}.get(settings.terms.link, 1.0 / max(columns.models, 2))
    means = mean - outcome.arrays["gradient"][columns.n_coefficients :] / weight
    power, offset = bound.power, 0.0
    if 1.0 < power < 2.0:
        loss = float(outcome.arrays["loss"]) / weight
        offset = loss - 1.0 / (2.0 - power) - float(means[0]) / (power - 1.0)
    return InterceptTerms(
        longest=columns.longest_row(smallest, largest),
        largest_offset=float(np.maximum(-smallest[fixed], largest[fixed]).max(initial=0.0)),
        mean_targets=tuple(means.tolist()),
        offset=offset,
    )
