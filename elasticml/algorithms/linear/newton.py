"""Trust-region Newton method for a smooth function in this process, with a certified stop.

It does in process what ``batch_gradient``'s TRON does through exchanges, and shares its conjugate
gradients, radius update and forcing sequence. Coordinates are scaled by the curvature at zero, so
that columns of unequal size need no additional products.

Source: Lin and More (1999) for the radius, Steihaug (1983) for the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

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


def minimise(function: Smooth, start: F64, *, gap: float, steps: int) -> Minimum:
    """Minimise a convex smooth function.

    Parameters
    ----------
    start : ndarray (n_model,)
    gap : float
        Stop when the point's gap is at most this. If points have no gap, stop when only rounding
        is left to gain.
    steps : int
        Maximum number of steps.
    """
    scale = 1.0 / np.sqrt(function.diagonal())
    here = function.at(start)
    first = float(np.linalg.norm(scale * here.gradient))
    radius = math.inf
    stalled = False
    for done in range(steps):
        gradient = scale * here.gradient
        norm = float(np.linalg.norm(gradient))
        if here.gap <= gap or norm == 0.0 or stalled:
            # That steps no longer help proves nothing: a gap far above rounding is reported.
            is_small = not here.gap > max(gap, ROUNDED * abs(here.value))
            return Minimum(point=here, steps=done, converged=is_small)
        newton = _newton(here, gradient, scale, radius, _residual(here, gap, norm, first))
        there = function.at(here.w + scale * newton.step)
        change, slope = there.value - here.value, float(gradient @ newton.step)
        after = float(np.linalg.norm(scale * there.gradient))
        is_finite = math.isfinite(there.value)
        if is_finite and newton.promised <= HIDDEN * max(abs(here.value), abs(there.value)):
            # Values are equal up to rounding: judge the step by the norm of the gradient.
            stalled = not after < 0.5 * norm
            here = there if after < norm else here
            continue
        radius = next_radius(float(np.linalg.norm(newton.step)), slope, change, newton)
        if change <= -TAKEN * newton.promised:
            here = there
    return Minimum(point=here, steps=steps, converged=here.gap <= gap)


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


def _newton(here: Point, gradient: F64, scale: F64, radius: float, residual: float) -> NewtonStep:
    solving = conjugate_gradients(gradient, radius, residual)
    try:
        direction = next(solving)
        while True:
            direction = solving.send(scale * here.product(scale * direction))
    except StopIteration as end:
        newton: NewtonStep = end.value
        return newton
