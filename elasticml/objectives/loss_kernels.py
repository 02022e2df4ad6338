"""Serial compiled loops over margins: one set of loops for all losses, selected by a code.

The loops are single-threaded, release the GIL and sum in float64 in row order. ``code`` is constant
within a call, so that the branch on it costs nothing. The logistic loss has its own loops
(:mod:`elasticml.objectives.logistic_kernels`); its ``along`` sums by tiles of rows. A million
rows take 2 to 5 ms per step length; a chunk has at most about ten thousand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from numba import njit

from elasticml.arrays import F64
from elasticml.objectives import logistic_kernels

_Function = TypeVar("_Function", bound=Callable[..., Any])


LOGISTIC: Final = 0
SQUARED: Final = 1
SMOOTHED_HINGE: Final = 2
SQUARED_HINGE: Final = 3
HINGE: Final = 4


def _kernel(function: _Function) -> _Function:
    return cast(_Function, njit(nogil=True, cache=True)(function))


def _inlined(function: _Function) -> _Function:
    return cast(_Function, njit(nogil=True, cache=True, inline="always")(function))


@_inlined
def _value(code: int, z: float, y: float) -> float:
    if code == 1:
        return 0.5 * (z - y) * (z - y)
    m = z * y
    room = max(1.0 - m, 0.0)
    if code == 2:
        return room - 0.5 if room > 1.0 else 0.5 * room * room
    return room if code == 4 else room * room


@_inlined
def _slope(code: int, z: float, y: float) -> float:
    if code == 1:
        return z - y
    m = z * y
    room = max(1.0 - m, 0.0)
    if code == 2:
        return -y * min(room, 1.0)
    if code == 4:
        return -y if room > 0.0 else 0.0
    return -2.0 * y * room


@_inlined
def _curvature(code: int, z: float, y: float) -> float:
    if code == 1:
        return 1.0
    m = z * y
    if code == 2:
        return 1.0 if 0.0 < m < 1.0 else 0.0
    return 2.0 if m < 1.0 and code == 3 else 0.0


@_kernel
def value_and_slope(code: int, margins: F64, targets: F64, weights: F64, slope_out: F64) -> float:
    """Return the sum of weighted losses, and write each row's weighted slope.

    ``weights`` (0,) means ones.
    """
    if code == 0:
        return logistic_kernels.value_and_slope(margins, targets, weights, slope_out)
    total = 0.0
    weighted = weights.size > 0
    for i in range(margins.size):
        s = weights[i] if weighted else 1.0
        total += s * _value(code, margins[i], targets[i])
        slope_out[i] = s * _slope(code, margins[i], targets[i])
    return total


@_kernel
def along(
    code: int,
    margins: F64,
    directions: F64,
    targets: F64,
    weights: F64,
    steps: F64,
    values_out: F64,
    slopes_out: F64,
) -> None:
    """Add the loss and its derivative with respect to ``t_j`` to the outputs, for each length.

    ``sum_i s_i loss(z_i + t_j u_i, y_i)`` and ``sum_i s_i u_i loss'(z_i + t_j u_i, y_i)``.
    """
    if code == 0:
        logistic_kernels.along(margins, directions, targets, weights, steps, values_out, slopes_out)
        return
    weighted = weights.size > 0
    for j in range(steps.size):
        t = steps[j]
        value, slope = 0.0, 0.0
        for i in range(margins.size):
            s = weights[i] if weighted else 1.0
            z = margins[i] + t * directions[i]
            value += s * _value(code, z, targets[i])
            slope += s * directions[i] * _slope(code, z, targets[i])
        values_out[j] += value
        slopes_out[j] += slope


@_kernel
def curvature(code: int, margins: F64, targets: F64, weights: F64, out: F64) -> None:
    """Write each row's weighted second derivative."""
    if code == 0:
        logistic_kernels.curvature(margins, targets, weights, out)
        return
    weighted = weights.size > 0
    for i in range(margins.size):
        s = weights[i] if weighted else 1.0
        out[i] = s * _curvature(code, margins[i], targets[i])


@_kernel
def curvature_along(code: int, margins: F64, directions: F64, targets: F64, weights: F64) -> float:
    """Return the sum of ``s_i loss''(z_i, y_i) u_i^2``: the curvature along a direction."""
    if code == 0:
        return logistic_kernels.curvature_along(margins, directions, targets, weights)
    weighted = weights.size > 0
    total = 0.0
    for i in range(margins.size):
        s = weights[i] if weighted else 1.0
        total += s * _curvature(code, margins[i], targets[i]) * directions[i] * directions[i]
    return total


@_kernel
def conjugate(code: int, duals: F64, targets: F64, out: F64) -> None:
    """Write ``loss*(u, y) = sup_z (u z - loss(z, y))``; infinity outside its domain."""
    for i in range(duals.size):
        u, y = duals[i], targets[i]
        if code == 1:
            out[i] = 0.5 * u * u + u * y
            continue
        a = -u * y
        if a < 0.0 or (a > 1.0 and code != 3):
            out[i] = math.inf
        elif code == 0:
            left = a * math.log(a) if a > 0.0 else 0.0
            right = (1.0 - a) * math.log(1.0 - a) if a < 1.0 else 0.0
            out[i] = left + right
        elif code == 2:
            out[i] = 0.5 * a * a - a
        elif code == 4:
            out[i] = -a
        else:
            out[i] = 0.25 * a * a - a
