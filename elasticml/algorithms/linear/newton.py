"""Newton's method for a smooth function in this process, with a certified stop.

It does in process what ``batch_gradient``'s TRON does through exchanges, and shares its conjugate
gradients, radius update and forcing sequence. Coordinates are scaled by the curvature at zero, so
that columns of unequal size need no additional products; or, for few coordinates, by the factors of
a Hessian, which is computed again when conjugate gradients begin to take many products. Steps are
limited by a trust region or, for a function that can be searched along a step at the cost of one
product, taken to the least value along them: where the Hessian jumps, as a squared hinge's does, a
trust region needs hundreds of steps.

Source: Lin and More (1999) for the radius, Steihaug (1983) for the steps; Keerthi and DeCoste
(2005), "A modified finite Newton method for fast solution of large scale linear SVMs", for the
search. Deviation: the steps are inexact unless the Hessian is cheap to factor.
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
    NewtonStep,
    conjugate_gradients,
    next_radius,
    residual_for,
)
from elasticml.arrays import F64

#: Least ratio of actual to predicted decrease for which a step is accepted.
TAKEN: Final = 1e-4
#: Predicted decreases below this share of the value are rounding.
HIDDEN: Final = 64.0 * float(np.finfo(np.float64).eps)
#: A step is solved to this share of the gradient norm at which the gap would be small enough.
NEAR: Final = 0.5
#: Least products of a step after which a new Hessian is worth its cost; it also is after a step
#: that is not taken.
PRODUCTS_WORTH: Final = 2
#: A Hessian of no more products with all rows than this is factored for each searched step,
#: which takes about two.
STEP_PRODUCTS: Final = 2.5
#: Refused steps after which the Hessian is no longer factored: it changes too fast.
REFUSED_MAX: Final = 2
#: A gap below this share of the value that no step reduces is rounding.
ROUNDED: Final = 1e-10


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
    #: One Newton step, solved as exactly as the gap requires, is enough.
    is_quadratic: bool = False
    #: Returns the point of the least value along a step; None where whole steps are tried.
    minimum_along: Callable[[F64], Point] | None = None
    #: Cost of the Hessian's factors here in products with all rows, and in products of this point;
    #: for points with a search.
    hessian_products: tuple[float, float] = (math.inf, math.inf)


class Smooth(Protocol):
    """A convex function with a Hessian."""

    def at(self, w: F64) -> Point:
        """Evaluate the function at ``w``."""
        ...

    def diagonal(self) -> F64:
        """Return the Hessian's diagonal at zero, or an upper bound of it; positive."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimum:
    """The last point and whether it is a minimum."""

    point: Point
    steps: int
    #: The gap is at most the requested one or rounding; or there is no gap, and steps no longer
    #: gain more than rounding.
    converged: bool


class Coordinates(Protocol):
    """A linear change of coordinates ``w = S u`` in which the Hessian is nearer to the identity."""

    def to_model(self, u: F64) -> F64:
        """Return ``S u``."""
        ...

    def of_gradient(self, g: F64) -> F64:
        """Return ``S.T g``."""
        ...

    def of_model(self, w: F64) -> F64:
        """Return u, of which w is ``S u``."""
        ...


class Diagonal:
    """Each coordinate divided by the root of its curvature."""

    def __init__(self, curvature: F64) -> None:
        self._scale = 1.0 / np.sqrt(curvature)

    def to_model(self, u: F64) -> F64:
        """See :class:`Coordinates`."""
        return self._scale * u

    def of_gradient(self, g: F64) -> F64:
        """See :class:`Coordinates`."""
        return self._scale * g

    def of_model(self, w: F64) -> F64:
        """See :class:`Coordinates`."""
        return w / self._scale


class Factored:
    """Coordinates in which a symmetric positive definite matrix is the identity.

    Raises
    ------
    numpy.linalg.LinAlgError
        When it is not positive definite.
    """

    def __init__(self, matrix: F64) -> None:
        #: Transposed, in the order of BLAS, which then copies nothing.
        self._upper = np.linalg.cholesky(matrix).T

    def to_model(self, u: F64) -> F64:
        """See :class:`Coordinates`."""
        w: F64 = dtrsv(self._upper, u)
        return w

    def of_gradient(self, g: F64) -> F64:
        """See :class:`Coordinates`."""
        u: F64 = dtrsv(self._upper, g, trans=1)
        return u

    def of_model(self, w: F64) -> F64:
        """See :class:`Coordinates`."""
        u: F64 = self._upper @ w
        return u


def minimise(
    function: Smooth,
    start: F64,
    *,
    gap: float,
    steps: int,
    hessian: Callable[[F64], F64] | None = None,
    hessian_products: float = 0.0,
) -> Minimum:
    """Minimise a convex smooth function.

    Parameters
    ----------
    start : ndarray (n_model,)
    gap : float
        Stop when the point's gap is at most this. If points have no gap, stop when only rounding
        is left to gain.
    steps : int
        Maximum number of steps.
    hessian : callable, optional
        Returns the Hessian at a model, for a function whose coordinates are few.
    hessian_products : float, optional
        Its cost in products: it is computed again after a step that took more of them.
    """
    here = function.at(start)
    hessian = hessian if math.isfinite(hessian_products) else None
    if here.minimum_along is not None:
        return _minimise_along(function, here, gap, steps, hessian)
    worth = max(PRODUCTS_WORTH, hessian_products)
    scale = _coordinates(function, hessian, start)
    first = float(np.linalg.norm(scale.of_gradient(here.gradient)))
    radius = math.inf
    stalled, is_stale, refused = False, False, 0
    for done in range(steps):
        gradient = scale.of_gradient(here.gradient)
        norm = float(np.linalg.norm(gradient))
        if here.gap <= gap or norm == 0.0 or stalled:
            return _end(here, done, gap)
        newton = _newton(here, gradient, scale, radius, _residual(here, gap, norm, first))
        there = function.at(here.w + scale.to_model(newton.step))
        change, slope = there.value - here.value, float(gradient @ newton.step)
        after = float(np.linalg.norm(scale.of_gradient(there.gradient)))
        is_finite = math.isfinite(there.value)
        if is_finite and newton.promised <= HIDDEN * max(abs(here.value), abs(there.value)):
            # Values are equal up to rounding: judge the step by the norm of the gradient.
            stalled = not after < 0.5 * norm
            here = there if after < norm else here
            continue
        radius = next_radius(float(np.linalg.norm(newton.step)), slope, change, newton)
        is_better = change <= -TAKEN * newton.promised
        here, is_stale = (there, True) if is_better else (here, is_stale)
        if hessian is not None and is_stale and (newton.products > worth or not is_better):
            refused += not is_better
            hessian = hessian if refused < REFUSED_MAX else None
            length, step = float(np.linalg.norm(newton.step)), scale.to_model(newton.step)
            scale, is_stale = _coordinates(function, hessian, here.w), False
            # The radius in the new coordinates has the same ratio to the last step.
            radius *= float(np.linalg.norm(scale.of_model(step))) / length
            first = float(np.linalg.norm(scale.of_gradient(here.gradient)))
    return Minimum(point=here, steps=steps, converged=here.gap <= gap)


def _minimise_along(
    function: Smooth, here: Point, gap: float, steps: int, hessian: Callable[[F64], F64] | None
) -> Minimum:
    """Minimise a function whose points have a search, see :func:`minimise`."""
    scale, first, stalled = _coordinates(function, None, here.w), 0.0, False
    for done in range(steps):
        gradient = scale.of_gradient(here.gradient)
        norm = float(np.linalg.norm(gradient))
        first = first or norm
        if here.gap <= gap or norm == 0.0 or stalled:
            return _end(here, done, gap)
        residual = _residual(here, gap, norm, first)
        of_all, limit = here.hessian_products if hessian is not None else (math.inf, math.inf)
        newton = None
        if of_all > STEP_PRODUCTS:
            newton = _newton_within(limit, here, gradient, scale, math.inf, residual)
        if newton is None:
            scale = _coordinates(function, hessian, here.w)
            gradient, first = scale.of_gradient(here.gradient), 0.0
            newton = _newton(here, gradient, scale, math.inf, residual)
        assert here.minimum_along is not None
        there = here.minimum_along(scale.to_model(newton.step))
        change = here.value - there.value
        # Values are equal up to rounding: judge the step by the norm of the gradient.
        is_hidden = not change > HIDDEN * abs(here.value)
        after = float(np.linalg.norm(scale.of_gradient(there.gradient)))
        stalled = is_hidden and not after < 0.5 * float(np.linalg.norm(gradient))
        here = here if stalled and change < 0.0 else there
    return Minimum(point=here, steps=steps, converged=here.gap <= gap)


def _end(here: Point, steps: int, gap: float) -> Minimum:
    """Return the last point. That steps no longer help proves nothing: its gap may be large."""
    is_small = not here.gap > max(gap, ROUNDED * abs(here.value))
    return Minimum(point=here, steps=steps, converged=is_small)


def _coordinates(function: Smooth, hessian: Callable[[F64], F64] | None, w: F64) -> Coordinates:
    if hessian is not None:
        with contextlib.suppress(np.linalg.LinAlgError):
            return Factored(hessian(w))
    return Diagonal(function.diagonal())


def _residual(here: Point, target: float, norm: float, first: float) -> float:
    """Return the relative residual for a step: no smaller than the target gap requires.

    Near the optimum, and everywhere on a quadratic function, the gap is proportional to the square
    of the gradient norm.
    """
    usual = residual_for(norm, first)
    if not 0.0 < target < here.gap < math.inf:
        return usual
    enough = NEAR * math.sqrt(target / here.gap)
    return enough if here.is_quadratic else max(usual, enough)


def _newton(
    here: Point, gradient: F64, scale: Coordinates, radius: float, residual: float
) -> NewtonStep:
    newton = _newton_within(math.inf, here, gradient, scale, radius, residual)
    assert newton is not None
    return newton


def _newton_within(
    products: float,
    here: Point,
    gradient: F64,
    scale: Coordinates,
    radius: float,
    residual: float,
) -> NewtonStep | None:
    """Return a step; None if it takes more products than the limit."""
    solving, used = conjugate_gradients(gradient, radius, residual), 0
    try:
        direction = next(solving)
        while used < products:
            used += 1
            direction = solving.send(scale.of_gradient(here.product(scale.to_model(direction))))
    except StopIteration as end:
        newton: NewtonStep = end.value
        return newton
    return None
