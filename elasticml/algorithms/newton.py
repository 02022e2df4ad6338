"""Newton steps in a trust region on a smooth function in this process, until a certificate says so.

What the steps of ``batch_gradient`` do through exchanges, without any: conjugate gradients, the
radius and how exactly to solve are theirs. Coordinates are scaled by the curvature at the start, so
that columns of unequal size cost no further products.

Source: Lin and More (1999) for the radius, Steihaug (1983) for the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.batch_gradient.trust_region import (
    NewtonStep,
    conjugate_gradients,
    next_radius,
    residual_for,
)

F64 = NDArray[np.float64]

#: Least share of the promised decrease with which a step is taken.
TAKEN: Final = 1e-4
#: Share of the value below which a promised decrease is rounding.
HIDDEN: Final = 64.0 * float(np.finfo(np.float64).eps)
#: Share of the gradient that would make the gap as small as wanted, to which a step is solved.
NEAR: Final = 0.5
#: Share of the value below which a gap that no step makes smaller is rounding.
ROUNDED: Final = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A function at one model."""

    w: F64
    value: float
    gradient: F64
    #: ``product(v)`` is the Hessian times v.
    product: Callable[[F64], F64]
    #: ``value`` minus a lower bound of the least value; NaN where there is none.
    gap: float
    #: One Newton step, solved as exactly as the gap asks for, is enough.
    is_quadratic: bool = False


class Smooth(Protocol):
    """A convex function with a Hessian."""

    def at(self, w: F64) -> Point:
        """Evaluate it."""
        ...

    def diagonal(self) -> F64:
        """Return the Hessian's diagonal at zero, or an upper bound of it; positive."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimum:
    """Where the steps ended."""

    point: Point
    steps: int
    #: The gap is as small as wanted, or rounding of the value; or there is no gap, and nothing is
    #: left to gain but rounding.
    converged: bool


def minimise(function: Smooth, start: F64, *, gap: float, steps: int) -> Minimum:
    """Minimise a convex smooth function.

    Parameters
    ----------
    start : ndarray (n_model,)
    gap : float
        Wanted: steps end where the point's gap is at most this. Where points have none they go on
        until rounding is all that is left.
    steps : int
        At most.
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
            # Steps that no longer help do not prove a model: a gap far above rounding is reported.
            is_small = not here.gap > max(gap, ROUNDED * abs(here.value))
            return Minimum(point=here, steps=done, converged=is_small)
        newton = _newton(here, gradient, scale, radius, _residual(here, gap, norm, first))
        there = function.at(here.w + scale * newton.step)
        change, slope = there.value - here.value, float(gradient @ newton.step)
        after = float(np.linalg.norm(scale * there.gradient))
        if newton.promised <= HIDDEN * max(abs(here.value), abs(there.value)):
            # Values no longer tell: the step is good where it shortens the gradient.
            stalled = not after < 0.5 * norm
            here = there if after < norm else here
            continue
        radius = next_radius(float(np.linalg.norm(newton.step)), slope, change, newton)
        if change <= -TAKEN * newton.promised:
            here = there
    return Minimum(point=here, steps=steps, converged=here.gap <= gap)


def _residual(here: Point, wanted: float, norm: float, first: float) -> float:
    """Return how exactly to solve for a step: no more so than the wanted gap takes.

    Near the optimum, and everywhere on a quadratic function, the gap goes with the square of the
    gradient.
    """
    usual = residual_for(norm, first)
    if not 0.0 < wanted < here.gap < math.inf:
        return usual
    enough = NEAR * math.sqrt(wanted / here.gap)
    return enough if here.is_quadratic else max(usual, enough)


def _newton(here: Point, gradient: F64, scale: F64, radius: float, residual: float) -> NewtonStep:
    solving = conjugate_gradients(gradient, radius, residual)
    try:
        direction = next(solving)
        while True:
            direction = solving.send(scale * here.product(scale * direction))
    except StopIteration as end:
        found: NewtonStep = end.value
        return found
