"""A certified lower bound of the minimum, from the gradients that the rounds compute anyway.

If every coefficient is penalised, the objective P is l2-strongly convex, and

    P(w) - min P <= |grad P(w)|^2 / (2 l2).

This is the duality gap at the dual variables ``-loss'(z_i)`` of the model. An intercept b is not
penalised. ``Q(w) = min_b P(w, b)`` is l2-strongly convex, too, so that

    min P >= Q(w) - |grad Q(w)|^2 / (2 l2).

The loss along b alone, at two values with slopes of different sign, gives a lower bound of Q(w).
The slope of a convex loss increases with the margin: from b to the best intercept the slopes of all
rows change in one direction, in the mean by ``slope = dP/db``. With R the length of the longest
row, ``|grad Q(w)| <= |grad_w P(w, b)| + R |slope|``. For the squared loss Q(w) is
``P(w, b) - slope^2 / 2``.

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
#: The objective along an intercept is asked for if the gap may fall to this share; with several
#: intercepts to this share divided by their number.
ENOUGH: Final = 0.1
_TINY: Final = 1e-300


@dataclass(frozen=True, slots=True, kw_only=True)
class InterceptTerms:
    """Constants of the data for the bound with an unpenalised intercept."""

    #: R: upper bound of the length of a row of the penalised columns.
    longest: float
    #: The largest size of the offset, 0 without one.
    largest_offset: float
    #: Of classes their shares of the weight, that of +1 if there are two; for the logistic loss.
    shares: tuple[float, ...]


@dataclass(slots=True, kw_only=True)
class LowerBound:
    """The best certified lower bound so far of the minimum over all examples.

    It begins with 0, since losses and penalties are not negative.
    """

    loss: str
    l2: float
    #: None without an intercept that is not penalised.
    intercept: InterceptTerms | None
    value: float = 0.0

    def asks_for_intercepts(self, value: float, gradient: F64, n: int) -> bool:
        """Whether the objective along the intercepts would raise the bound enough to be asked for.

        Parameters
        ----------
        value, gradient
            As for :meth:`learn`.
        n : int
            Number of coefficients; the rest are intercepts.
        """
        if self.intercept is None or self.loss in ("logistic", "squared"):
            return False
        enough = ENOUGH / max(1, gradient.size - n)
        return self._slack(gradient, n) <= enough * (value - self.value)

    def learn(self, value: float, gradient: F64, model: F64, n: int, least: float) -> None:
        """Raise the bound by what a model certifies.

        Parameters
        ----------
        value : float
            The objective over all examples.
        gradient, model : ndarray (n_model,)
            Its gradient, and the model, 0 for a coefficient that is not trained. Intercepts that
            are not penalised are last.
        n : int
            Number of coefficients; the rest are intercepts.
        least : float
            Lower bound of the objective over the intercepts, for a loss other than the logistic
            and the squared one.
        """
        terms = self.intercept
        if terms is not None and self.loss == "logistic":
            bound = self._at_mixed(terms, value, gradient, model)
        else:
            if terms is None:
                least = value
            elif self.loss == "squared":
                least = value - 0.5 * float(gradient[n:] @ gradient[n:])
            bound = least - self._slack(gradient, n)
        self.value = max(self.value, bound)

    def _slack(self, gradient: F64, n: int) -> float:
        """Return how far the minimum may be below that over the intercepts alone."""
        norm = float(np.linalg.norm(gradient if self.intercept is None else gradient[:n]))
        if self.intercept is not None:
            norm += self.intercept.longest * float(np.linalg.norm(gradient[n:]))
        return norm * norm / (2.0 * self.l2)

    def _at_mixed(self, terms: InterceptTerms, value: float, gradient: F64, model: F64) -> float:
        """Return the bound of the logistic loss, see the module docstring."""
        shares, n = np.array(terms.shares), len(gradient) - len(terms.shares)
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

    With an intercept and without ``resume`` it needs one or two exchanges over all members.
    """
    if not settings.certifies_gap:
        return None
    bound = LowerBound(loss=settings.loss, l2=settings.l2, intercept=None)
    earlier: Mapping[str, Any] | None = None if resume is None else resume.values.get("lower_bound")
    if earlier is not None:
        bound.value, terms = earlier["value"], earlier["intercept"]
        if terms is not None:
            bound.intercept = InterceptTerms(**{**terms, "shares": tuple(terms["shares"])})
    elif settings.has_free_intercept:
        bound.intercept = yield from _intercept_terms(settings, columns)
    return bound


def _intercept_terms(
    settings: BatchGradient, columns: Columns
) -> Generator[Exchange, Outcome, InterceptTerms]:
    found = (yield ranges_exchange(columns.n_columns)).arrays
    smallest, largest = -found["smallest"], found["largest"]
    fixed = slice(0) if columns.fixed is None else columns.fixed
    shares: F64 = np.zeros(0)
    if settings.loss == "logistic":
        at_zero = gradient_exchange(np.zeros(columns.n_sent), {"point": _ZERO, "scratch": True})
        arrays = (yield replace(at_zero, require="everybody")).arrays
        # Where all margins are 0, every class has the same probability.
        slopes = arrays["gradient"][columns.n_coefficients :] / float(arrays["weight"])
        shares = 1.0 / max(columns.models, 2) - slopes
    return InterceptTerms(
        longest=columns.longest_row(smallest, largest),
        largest_offset=float(np.maximum(-smallest[fixed], largest[fixed]).max(initial=0.0)),
        shares=tuple(shares.tolist()),
    )
