"""A Newton step within a ball, by conjugate gradients, and how the ball's radius follows."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

#: Products with the Hessian after which a step is taken as it is.
PRODUCTS_MAX: Final = 500
#: Share of the gradient's norm to which conjugate gradients bring the residual, at most.
RESIDUAL: Final = 0.1
#: Share of the largest curvature met below which a direction's own is rounding.
FLAT: Final = 1e-14
#: Below the first and above the second share of the decrease that the quadratic model promises,
#: the radius is too long, or may grow.
POOR: Final = 0.25
GOOD: Final = 0.75
#: The least and the most by which the radius changes at once, and the least cut after a bad step.
SHRINK: Final = 0.25
CUT: Final = 0.5
GROW: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewtonStep:
    """Where conjugate gradients ended."""

    #: Shape (n_model,).
    step: F64
    #: Decrease of the quadratic model, positive.
    promised: float
    is_on_boundary: bool
    products: int
    #: Radius of the ball that it ends in.
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
        Share of the gradient's norm at which to stop.
    widens : bool
        The ball is made as large as the model's first minimum along the gradient, if it is smaller.

    Returns
    -------
    NewtonStep
        Where the residual is small enough, or the ball ends, or the model does not curve upwards
        (then on the ball, or, where that is infinite, as far as the step has come; a first
        direction without curvature is taken once, as it is).

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
        # One array more, so that a step that leaves the ball can be taken back.
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
    """Return the positive t with ``|step + t direction| = radius``, infinite as that one is."""
    if math.isinf(radius):
        return math.inf
    along, square = float(step @ direction), float(direction @ direction)
    room = radius * radius - float(step @ step)
    root = math.sqrt(max(along * along + square * room, 0.0))
    # Of two ways to write it, the one without a difference of nearly equal numbers.
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
    """Return how exactly to solve: more so the smaller the gradient, for superlinear convergence.

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
    # Where the parabola through both values with this slope has its minimum, in trial steps.
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
