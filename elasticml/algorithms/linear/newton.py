"""Newton's method for a smooth function in this process, with a certified stop.

It does in process what ``batch_gradient``'s TRON does through exchanges, and shares its conjugate
gradients, radius update and forcing sequence. Coordinates are scaled by the curvature at zero, so
that columns of unequal size need no additional products; or, for few coordinates, by the factors of
a Hessian, which is computed again when conjugate gradients begin to take many products. Steps are
limited by a trust region or, for a function that can be searched along a step at the cost of one
product, taken to the least value along them: where the Hessian jumps, as a squared hinge's does, a
trust region needs hundreds of steps. The last step of such a function is solved as exactly as a
certificate of its end requires.

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
from numpy.typing import NDArray
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
#: A Hessian of no more products is factored before the first step of a search.
EARLY_PRODUCTS: Final = 8.0
#: Least share of the last decrease that is expected of the next step.
FALL: Final = 0.03
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
    #: With True, the point also has the bound of the minimum that the linearised slopes give.
    minimum_along: Callable[[F64, bool], Point] | None = None
    #: Cost of the Hessian's factors here in products with all rows, and in products of this point,
    #: where the Hessian jumps; None where it is smooth.
    hessian_products: tuple[float, float] | None = None


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

    def of_model(self, w: F64) -> F64:
        """Return u, of which w is ``S u``."""
        return w / self._scale


class Factored:
    """Coordinates in which a symmetric positive definite matrix is the identity.

    Parameters
    ----------
    matrix : ndarray (m, m)
    block : ndarray (m,) of int, optional
        Numbers of its coordinates; None for all. The others are divided by the root of their
        ``curvature``, (n_model,).

    Raises
    ------
    numpy.linalg.LinAlgError
        When it is not positive definite.
    """

    def __init__(
        self, matrix: F64, block: NDArray[np.intp] | None = None, curvature: F64 | None = None
    ) -> None:
        #: Transposed, in the order of BLAS, which then copies nothing.
        self._upper = np.linalg.cholesky(matrix).T
        self._block = slice(None) if block is None else block
        self._rest = None if curvature is None else Diagonal(curvature)

    def to_model(self, u: F64) -> F64:
        """See :class:`Diagonal`."""
        return self._joined(u, dtrsv(self._upper, u[self._block]), Diagonal.to_model)

    def of_gradient(self, g: F64) -> F64:
        """See :class:`Diagonal`."""
        return self._joined(g, dtrsv(self._upper, g[self._block], trans=1), Diagonal.of_gradient)

    def of_model(self, w: F64) -> F64:
        """See :class:`Diagonal`."""
        return self._joined(w, self._upper @ w[self._block], Diagonal.of_model)

    def _joined(self, vector: F64, own: F64, of_rest: Callable[[Diagonal, F64], F64]) -> F64:
        if self._rest is None:
            return own
        whole = of_rest(self._rest, vector)
        whole[self._block] = own
        return whole


#: Changes of coordinates in which the Hessian is nearer to the identity.
Coordinates = Diagonal | Factored


def minimise(
    function: Smooth,
    start: F64,
    *,
    gap: float,
    steps: int,
    hessian: Callable[[F64], F64] | None = None,
    hessian_products: float = 0.0,
    block: NDArray[np.intp] | None = None,
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
    block : ndarray of int, optional
        Numbers of the coordinates whose Hessian ``hessian`` returns, for a function without a
        search; None for all.
    """
    here = function.at(start)
    hessian = hessian if math.isfinite(hessian_products) else None
    if here.minimum_along is not None:
        searched = _SearchedSteps(function, hessian, hessian_products)
        return _minimise_along(function, here, gap, steps, searched)
    worth = max(PRODUCTS_WORTH, hessian_products)
    scale = _coordinates(function, hessian, start, block)
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
            scale, is_stale = _coordinates(function, hessian, here.w, block), False
            # The radius in the new coordinates has the same ratio to the last step.
            radius *= float(np.linalg.norm(scale.of_model(step))) / length
            first = float(np.linalg.norm(scale.of_gradient(here.gradient)))
    return Minimum(point=here, steps=steps, converged=here.gap <= gap)


class _SearchedSteps:
    """Newton steps of a function whose points have a search.

    Parameters
    ----------
    hessian, products
        See :func:`minimise`.
    """

    def __init__(
        self, function: Smooth, hessian: Callable[[F64], F64] | None, products: float
    ) -> None:
        self._function, self._hessian, self._products = function, hessian, products
        #: Coordinates of the last step.
        self.scale: Coordinates | None = None
        self._first = 0.0
        #: By how much the last step reduced the value.
        self.fell = math.inf
        #: By which power of e each product of the last step made its residual smaller.
        self._rate = math.inf

    def next(self, here: Point, gap: float) -> NewtonStep:
        """Return a step from a point that is not a minimum."""
        if here.hessian_products is not None:
            return self._where_it_jumps(here, gap, *here.hessian_products)
        if self.scale is None:
            is_cheap = self._products <= EARLY_PRODUCTS
            self._change(here.w, self._hessian if is_cheap else None)
        residual, is_last = self._goal(here, gap)
        expected = -math.log(residual) / self._rate
        worth = self._products + 1.0 if is_last else max(PRODUCTS_WORTH, self._products)
        if self._hessian is not None and expected > worth:
            self._change(here.w, self._hessian)
        assert self.scale is not None
        gradient = self.scale.of_gradient(here.gradient)
        newton = _newton(here, gradient, self.scale, math.inf, residual)
        self._rate = -math.log(residual) / newton.products
        return newton

    def _goal(self, here: Point, gap: float) -> tuple[float, bool]:
        """Return the relative residual for a step, and whether it may be the last one."""
        norm = self._norm(here)
        # Old factors may say too little of the distance.
        is_near = max(0.5 * norm * norm, FALL * self.fell) <= _reach(here, gap)
        if is_near and isinstance(self.scale, Factored) and 0.0 < gap < here.gap < math.inf:
            return NEAR * math.sqrt(gap / here.gap), True
        return _residual(here, gap, norm, self._first), False

    def _where_it_jumps(self, here: Point, gap: float, of_all: float, limit: float) -> NewtonStep:
        if self._hessian is None:
            of_all, limit = math.inf, math.inf
        if self.scale is None:
            self._change(here.w, None)
        assert self.scale is not None
        if of_all > STEP_PRODUCTS:
            residual = _residual(here, gap, self._norm(here), self._first)
            gradient = self.scale.of_gradient(here.gradient)
            newton = _newton_within(limit, here, gradient, self.scale, math.inf, residual)
            if newton is not None:
                return newton
        self._change(here.w, self._hessian)
        self._first = 0.0
        residual = _residual(here, gap, self._norm(here), self._first)
        gradient = self.scale.of_gradient(here.gradient)
        return _newton(here, gradient, self.scale, math.inf, residual)

    def _change(self, w: F64, hessian: Callable[[F64], F64] | None) -> None:
        if not isinstance(self.scale, Factored):
            # Norms are comparable between factors of Hessians alone.
            self._first = 0.0
        self.scale = _coordinates(self._function, hessian, w)

    def _norm(self, here: Point) -> float:
        assert self.scale is not None
        norm = float(np.linalg.norm(self.scale.of_gradient(here.gradient)))
        self._first = self._first or norm
        return norm


def _reach(here: Point, gap: float) -> float:
    """Return from how far above the minimum one step may come within ``gap`` of it.

    Relative to the value, a step squares the distance.
    """
    return math.sqrt(max(gap, 0.0) * abs(here.value))


def _minimise_along(
    function: Smooth, here: Point, gap: float, steps: int, searched: _SearchedSteps
) -> Minimum:
    """Minimise a function whose points have a search, see :func:`minimise`."""
    stalled = False
    for done in range(steps):
        if here.gap <= gap or not here.gradient.any() or stalled:
            return _end(here, done, gap)
        newton, scale = searched.next(here, gap), searched.scale
        assert here.minimum_along is not None and scale is not None
        certifies = newton.promised <= _reach(here, gap)
        there = here.minimum_along(scale.to_model(newton.step), certifies)
        change = here.value - there.value
        # Values are equal up to rounding: judge the step by the norm of the gradient.
        is_hidden = not change > HIDDEN * abs(here.value)
        searched.fell = change
        before = float(np.linalg.norm(scale.of_gradient(here.gradient)))
        after = float(np.linalg.norm(scale.of_gradient(there.gradient)))
        stalled = is_hidden and not after < 0.5 * before
        here = here if stalled and change < 0.0 else there
    return Minimum(point=here, steps=steps, converged=here.gap <= gap)


def _end(here: Point, steps: int, gap: float) -> Minimum:
    """Return the last point. That steps no longer help proves nothing: its gap may be large."""
    is_small = not here.gap > max(gap, ROUNDED * abs(here.value))
    return Minimum(point=here, steps=steps, converged=is_small)


def _coordinates(
    function: Smooth,
    hessian: Callable[[F64], F64] | None,
    w: F64,
    block: NDArray[np.intp] | None = None,
) -> Coordinates:
    if hessian is not None:
        with contextlib.suppress(np.linalg.LinAlgError):
            curvature = None if block is None else function.diagonal()
            return Factored(hessian(w), block, curvature)
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
