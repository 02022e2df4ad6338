"""A truncated Newton step in a trust region by conjugate gradients, and the radius update."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

import numpy as np

from elasticml.arrays import F64

#: Maximum number of Hessian-vector products per step.
PRODUCTS_MAX: Final = 500
#: Maximum relative residual of conjugate gradients.
RESIDUAL: Final = 0.1
#: A curvature below this share of the largest one so far is rounding.
FLAT: Final = 1e-14
#: With a ratio of actual to predicted decrease below the first the radius shrinks; above the second
#: it may grow.
POOR: Final = 0.25
GOOD: Final = 0.75
#: Limits of one change of the radius, and the largest factor after a bad step.
SHRINK: Final = 0.25
CUT: Final = 0.5
GROW: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewtonStep:
    """The result of conjugate gradients."""

    #: Shape (n_model,).
    step: F64
    #: Decrease of the quadratic model, positive.
    promised: float
    is_on_boundary: bool
    products: int
    #: Radius of the trust region in the end.
    radius: float


def conjugate_gradients(
    gradient: F64, radius: float, residual: float, *, widens: bool = False
) -> Generator[F64, F64, NewtonStep]:
    """Minimise ``gradient.s + s.H s / 2`` within ``|s| <= radius``; yields v, is sent ``H v``.

    Parameters
    ----------
    gradient : ndarray (n_model,)
        Not zero.
    radius : float
        May be infinite.
    residual : float
        Relative residual at which to stop.
    widens : bool
        Extend the radius to the model's minimum along the gradient if that is farther away.

    Returns
    -------
    NewtonStep
        The step at which the residual is small enough, the boundary is reached, or the model has no
        positive curvature. In the last case the step goes to the boundary; with an infinite radius
        it stays where it is, and a first direction without curvature is taken once with length 1.

    Source: Steihaug (1983).
    """
    step = np.zeros_like(gradient)
    rest = -gradient  # -(gradient + H step)
    direction = rest
    square = float(rest @ rest)
    enough = residual * math.sqrt(square)
    most = 0.0
    for products in range(1, PRODUCTS_MAX + 1):
        hv = yield direction
        curvature = float(direction @ hv)
        bend = curvature / float(direction @ direction)
        most = max(most, bend)
        length = square / curvature if bend > FLAT * most else math.inf
        if widens and products == 1 and math.isfinite(length):
            radius = max(radius, length * math.sqrt(square))
        # A new array, so that a step across the boundary can be undone.
        there = step + length * direction if math.isfinite(length) else step
        if not math.isfinite(length) or float(np.linalg.norm(there)) > radius:
            length = _to_boundary(step, direction, radius)
            if math.isinf(length):
                length = 0.0 if products > 1 else 1.0
            step = step + length * direction
            return _newton_step(gradient, step, rest - length * hv, products, radius, True)
        step, rest = there, rest - length * hv
        before, square = square, float(rest @ rest)
        if math.sqrt(square) <= enough:
            break
        direction = rest + (square / before) * direction
    return _newton_step(gradient, step, rest, products, radius, False)


def _to_boundary(step: F64, direction: F64, radius: float) -> float:
    """Return the positive t with ``|step + t direction| = radius``; infinite if the radius is."""
    if math.isinf(radius):
        return math.inf
    along, square = float(step @ direction), float(direction @ direction)
    room = radius * radius - float(step @ step)
    root = math.sqrt(max(along * along + square * room, 0.0))
    # Of the two equivalent forms, the one without cancellation.
    return room / (along + root) if along >= 0.0 else (root - along) / square


def _newton_step(
    gradient: F64, step: F64, rest: F64, products: int, radius: float, is_on_boundary: bool
) -> NewtonStep:
    # step.H step = -step.(gradient + rest)
    promised = -0.5 * float(step @ gradient) + 0.5 * float(step @ rest)
    return NewtonStep(
        step=step,
        promised=promised,
        is_on_boundary=is_on_boundary,
        products=products,
        radius=radius,
    )


def residual_for(norm: float, first_norm: float) -> float:
    """Return the forcing term: the relative residual, smaller near the optimum.

    It gives superlinear convergence.

    Source: Dembo, Eisenstat and Steihaug (1982).
    """
    return min(RESIDUAL, math.sqrt(norm / first_norm)) if first_norm > 0.0 else RESIDUAL


def next_radius(length: float, slope: float, change: float, newton: NewtonStep) -> float:
    """Return the radius after a trial step.

    Parameters
    ----------
    length : float
        The trial step's norm; what an infinite radius becomes.
    slope : float
        The objective's derivative along the trial step; negative.
    change : float
        The objective's change over the whole trial step; NaN or infinite where it overflows.
    newton : NewtonStep

    Source: the rules and constants of Lin and More (1999).
    """
    radius = newton.radius if math.isfinite(newton.radius) else length
    if not math.isfinite(change):
        return SHRINK * min(length, radius)
    # Minimiser of the parabola through both values with this slope, in units of the trial step.
    excess = change - slope
    best = GROW if excess <= 0.0 else max(SHRINK, -0.5 * slope / excess)
    ratio = -change / newton.promised
    if ratio < 1e-4:
        return min(best * length, CUT * radius)
    if ratio < POOR:
        return max(SHRINK * radius, min(best * length, CUT * radius))
    if ratio < GOOD:
        return max(SHRINK * radius, min(best * length, GROW * radius))
    if newton.is_on_boundary:
        return GROW * radius
    return max(radius, min(best * length, GROW * radius))
