"""Newton's method for a smooth function in this process, with a certified stop.

It does in process what ``batch_gradient``'s Newton steps do through exchanges, and shares their
conjugate gradients and forcing sequence. Coordinates are scaled by the curvature at zero, so that
columns of unequal size need no additional products; or, for few coordinates, by the factors of a
Hessian, which is computed again when conjugate gradients begin to take many products. Steps are
taken to the least value along them: where the Hessian jumps, as a squared hinge's does, a trust
region needs hundreds of steps. The last step is solved as exactly as a certificate of its end
requires.

Source: Keerthi and DeCoste (2005), "A modified finite Newton method for fast solution of large
scale linear SVMs", for the search. Deviation: the steps are inexact unless the Hessian is cheap to
factor.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from scipy.linalg.blas import dtrsv

from elasticml.algorithms.batch_gradient.trust_region import (
    RESIDUAL,
    NewtonStep,
    conjugate_gradients,
    residual_for,
)
from elasticml.algorithms.linear.fit import Fit
from elasticml.arrays import F64

#: Decreases below this share of the value are rounding.
HIDDEN: Final = 64.0 * float(np.finfo(np.float64).eps)
#: A step is solved to this share of the gradient norm at which the gap would be small enough.
NEAR: Final = 0.5
#: Least products of a step for which a new Hessian is worth its cost.
PRODUCTS_WORTH: Final = 2
#: A Hessian of no more products is factored before the first step.
EARLY_PRODUCTS: Final = 8.0
#: Least share of the last decrease that is expected of the next step.
FALL: Final = 0.03
#: A gap below this share of the value that no step reduces is rounding.
ROUNDED: Final = 1e-10
#: Slope at which a search along a step ends, as a share of the first.
SEARCH: Final = 0.05
#: Most trials of a search. Where the loss is almost linear a step may be 1e30 times too long.
SEARCH_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A function's value and derivatives at one model."""

    w: F64
    value: float
    gradient: F64
    #: ``product(v)`` returns the Hessian times v.
    product: Callable[[F64], F64]
    #: ``value`` minus a lower bound of the minimum; NaN if there is no bound.
    gap: float
    #: Returns the point of the least value along a step. With True, it may also have the bound of
    #: the minimum that the linearised slopes give.
    minimum_along: Callable[[F64, bool], Point]
    #: One Newton step, solved as exactly as the gap requires, is enough.
    is_quadratic: bool = False
    #: The Hessian jumps: that a step is near the minimum says little of the next one.
    jumps: bool = False
    #: Cost of the Hessian's factors in products; infinite if it is not computed.
    hessian_products: float = math.inf


class Smooth(Protocol):
    """A convex function with a Hessian."""

    def at(self, w: F64) -> Point:
        """Evaluate the function at ``w``."""
        ...

    def diagonal(self) -> F64:
        """Return the Hessian's diagonal at zero, or an upper bound of it; positive."""
        ...

    def hessian(self, w: F64) -> F64:
        """Return the Hessian at ``w``."""
        ...


class Diagonal:
    """A change of coordinates ``w = S u``: each is divided by the root of its curvature."""

    def __init__(self, curvature: F64) -> None:
        self._scale = 1.0 / np.sqrt(curvature)

    def to_model(self, u: F64) -> F64:
        """Return ``S u``."""
        return self._scale * u

    def of_gradient(self, g: F64) -> F64:
        """Return ``S.T g``."""
        return self._scale * g


class Factored:
    """Coordinates in which a symmetric positive definite matrix is the identity.

    Parameters
    ----------
    matrix : ndarray (m, m)

    Raises
    ------
    numpy.linalg.LinAlgError
        When it is not positive definite.
    """

    def __init__(self, matrix: F64) -> None:
        #: Transposed, in the order of BLAS, which then copies nothing.
        self._upper = np.linalg.cholesky(matrix).T

    def to_model(self, u: F64) -> F64:
        """See :class:`Diagonal`."""
        return np.asarray(dtrsv(self._upper, u))

    def of_gradient(self, g: F64) -> F64:
        """See :class:`Diagonal`."""
        return np.asarray(dtrsv(self._upper, g, trans=1))


#: Changes of coordinates in which the Hessian is nearer to the identity.
Coordinates = Diagonal | Factored


def minimise(function: Smooth, start: F64, *, gap: float, steps: int) -> Fit:
    """Minimise a convex smooth function.

    Parameters
    ----------
    start : ndarray (n_model,)
    gap : float
        Stop when the point's gap is at most this. If points have no gap, stop when only rounding
        is left to gain; the fit has then converged, with a gap of NaN.
    steps : int
        Maximum number of steps.
    """
    here = function.at(start)
    scale = _coordinates(function, here, is_factored=here.hessian_products <= EARLY_PRODUCTS)
    #: The first norm in comparable coordinates, by how much the last step reduced the value, and by
    #: which power of e each of its products made the residual smaller.
    first, fell, rate, stalled = 0.0, math.inf, math.inf, False
    # Without a bound the minimum may be 0 at infinity: what is small there is so next to the start.
    size = 0.0 if math.isfinite(here.gap) else abs(here.value)
    for done in range(steps):
        norm, cost = float(np.linalg.norm(scale.of_gradient(here.gradient))), here.hessian_products
        if here.gap <= gap or norm == 0.0 or stalled:
            # That steps no longer help proves nothing: the gap may be large.
            is_small = not here.gap > max(gap, ROUNDED * abs(here.value))
            return Fit(w=here.w, gap=here.gap, steps=done, converged=is_small)
        first = first or norm
        residual, worth = _residual(here, gap, norm, first), max(PRODUCTS_WORTH, cost)
        # Relative to the value, a step squares the distance: from here one may be the last.
        reach = math.sqrt(max(gap, 0.0) * abs(here.value))
        # Old factors may say too little of the distance.
        is_near = not here.jumps and max(0.5 * norm * norm, FALL * fell) <= reach
        if is_near and isinstance(scale, Factored) and 0.0 < gap < here.gap < math.inf:
            residual, worth = NEAR * math.sqrt(gap / here.gap), cost + 1.0
        is_new = -math.log(residual) / rate > worth
        if is_new:
            # Norms are comparable between factors of Hessians alone.
            first = first if isinstance(scale, Factored) else 0.0
            scale = _coordinates(function, here, is_factored=True)
        newton = _newton(here, scale, residual)
        # Where the Hessian jumps, the first step with new factors says nothing of the next one.
        if not (is_new and here.jumps):
            rate = -math.log(residual) / newton.products
        there = here.minimum_along(scale.to_model(newton.step), newton.promised <= reach)
        fell = here.value - there.value
        # Where values are equal up to rounding, judge the step by the norm of the gradient.
        before, after = (
            float(np.linalg.norm(scale.of_gradient(one.gradient))) for one in (here, there)
        )
        stalled = not fell > HIDDEN * max(size, abs(here.value)) and not after < 0.5 * before
        # Values that are not finite are no progress.
        here = there if fell >= 0.0 or not stalled else here
    return Fit(w=here.w, gap=here.gap, steps=steps, converged=here.gap <= gap)


def least_along(
    at: Callable[[float], tuple[float, Callable[[], float]]], first: float, longest: float
) -> float:
    """Return the length of a step at which a convex function's slope is small, by Newton's method.

    Parameters
    ----------
    at : callable
        Maps a length to the slope there and a function that returns the second derivative. Its last
        call is that with the result.
    first : float
        Size of the slope at the begin of the step.
    longest : float
        Length, at least 1, at which the search ends in any case.
    """
    low, high, t = 0.0, math.inf, 1.0
    for _ in range(SEARCH_MAX):
        slope, curvature = at(t)
        if abs(slope) <= SEARCH * first or (slope < 0.0 and t >= longest):
            return t
        # The slope is not finite where a loss with the link log overflows.
        low, high = (t, high) if slope < 0.0 else (low, t)
        bend, last = curvature(), t
        t = t - slope / bend if bend > 0.0 else math.inf
        if abs(t - last) <= ROUNDED * last:
            return last
        if not low < t < high or slope > first:
            # Newton's steps back from where a loss grows exponentially are short.
            t = 0.5 * (low + high) if math.isfinite(high) else 2.0 * low
    at(t)
    return t


def _coordinates(function: Smooth, here: Point, *, is_factored: bool) -> Coordinates:
    if is_factored:
        with contextlib.suppress(np.linalg.LinAlgError):
            return Factored(function.hessian(here.w))
    return Diagonal(function.diagonal())


def _residual(here: Point, target: float, norm: float, first: float) -> float:
    """Return the relative residual for the next step.

    The gap falls with the square of the gradient. A quadratic needs a single step that makes it
    small enough; another function needs no step more exact than that. No step is less exact than
    the first: where the Hessian jumps, fits with large tolerances took three times the steps.
    """
    usual = residual_for(norm, first)
    if not 0.0 < target < here.gap < math.inf:
        return usual
    enough = NEAR * math.sqrt(target / here.gap)
    return enough if here.is_quadratic else max(usual, min(enough, RESIDUAL))


def _newton(here: Point, scale: Coordinates, residual: float) -> NewtonStep:
    solving = conjugate_gradients(scale.of_gradient(here.gradient), math.inf, residual)
    direction = next(solving)
    while True:
        image = scale.of_gradient(here.product(scale.to_model(direction)))
        try:
            direction = solving.send(image)
        except StopIteration as end:
            newton: NewtonStep = end.value
            return newton
