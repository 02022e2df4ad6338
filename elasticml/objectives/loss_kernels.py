"""Serial compiled loops over margins: one set of loops for all losses, selected by a code.

The loops are single-threaded, release the GIL and sum in float64 in row order. ``code`` is constant
within a call, so that the branch on it costs nothing. The logistic loss has its own loops
(:mod:`elasticml.objectives.logistic_kernels`), except for its conjugate. A million rows take 2 to 5
ms per step length; a chunk has at most about ten thousand.

``shape`` has a loss's three parameters. Box losses are ``max_a a (y - z) - c/2 a^2`` over ``a`` in
``[low, high]``, with shape (low, high, c): Huber's loss and the quantile loss. The half deviances
of Tweedie distributions with the link log have shape (power, 0, 0): Poisson's has power 1, gamma's
2.
"""

from __future__ import annotations

import math
from typing import Final

from elasticml.arrays import F64, I64
from elasticml.compiled import compiled, kernel, vector_at

LOGISTIC: Final = 0
SQUARED: Final = 1
SMOOTHED_HINGE: Final = 2
SQUARED_HINGE: Final = 3
HINGE: Final = 4
BOX: Final = 5
TWEEDIE: Final = 6

#: Parameters of a loss, see above; zeros for losses without.
Shape = tuple[float, float, float]
#: Most Newton steps, or bisections, for the margin of a slope.
_STEPS_MAX: Final = 200


_inlined = compiled(error_model="numpy", forceinline=True)


@_inlined
def box_dual(r: float, shape: Shape) -> float:
    """Return the maximising ``a`` of a box loss at the residual ``r = y - z``; 0 at a kink."""
    low, high, c = shape
    if c > 0.0:
        return min(max(r / c, low), high)
    return high if r > 0.0 else low if r < 0.0 else 0.0


@kernel
def tweedie_value(power: float, z: float, y: float) -> float:
    """Return the half deviance of a target and the mean ``exp(z)``; at least 0."""
    if power == 1.0:
        return math.exp(z) - y + (y * (math.log(y) - z) if y > 0.0 else 0.0)
    if power == 2.0:
        return z - math.log(y) + y * math.exp(-z) - 1.0
    value = math.exp((2.0 - power) * z) / (2.0 - power)
    if y > 0.0:
        value += y * math.exp((1.0 - power) * z) / (power - 1.0)
        value -= y ** (2.0 - power) / ((power - 1.0) * (2.0 - power))
    return value


@kernel
def _tweedie_slope(power: float, z: float, y: float) -> float:
    below = y * math.exp((1.0 - power) * z) if y > 0.0 else 0.0
    return math.exp((2.0 - power) * z) - below


@kernel
def _tweedie_curvature(power: float, z: float, y: float) -> float:
    below = y * math.exp((1.0 - power) * z) if y > 0.0 else 0.0
    return (2.0 - power) * math.exp((2.0 - power) * z) + (power - 1.0) * below


@kernel
def _tweedie_margin(power: float, u: float, y: float) -> float:
    """Return the margin with slope ``u``, for a power between 1 and 2 and a positive target.

    Newton steps, kept in a bracket: the slope is 0 at ``log(y)`` and grows with the margin.
    """
    centre = math.log(y)
    half = math.exp((2.0 - power) * centre)  # both terms of the slope at the centre
    low, high = centre, centre
    if u > 0.0:
        high = math.log(u + half) / (2.0 - power)
    else:
        low = math.log((half - u) / y) / (1.0 - power)
    z = 0.5 * (low + high)
    for _ in range(_STEPS_MAX):
        excess = _tweedie_slope(power, z, y) - u
        if excess > 0.0:
            high = z
        else:
            low = z
        new = z - excess / _tweedie_curvature(power, z, y)
        if not low <= new <= high:
            new = 0.5 * (low + high)
        if abs(new - z) <= 1e-16 * (1.0 + abs(z)):
            return new
        z = new
    return z


@kernel
def tweedie_conjugate(power: float, u: float, y: float) -> float:
    """Return ``sup_z (u z - loss(z, y))`` of a half deviance; infinity outside its domain."""
    if power == 1.0:
        t = u + y
        if t < 0.0:
            return math.inf
        return (t * math.log(t) - t if t > 0.0 else 0.0) + (y - y * math.log(y) if y > 0.0 else 0.0)
    if power == 2.0:
        t = 1.0 - u
        if t < 0.0:
            return math.inf
        return (t * math.log(t / y) - t if t > 0.0 else 0.0) + math.log(y) + 1.0
    if y == 0.0:
        if u <= 0.0:
            return 0.0 if u == 0.0 else math.inf
        z = math.log(u) / (2.0 - power)
    else:
        z = _tweedie_margin(power, u, y)
    return u * z - tweedie_value(power, z, y)


@_inlined
def _value(code: int, shape: Shape, z: float, y: float) -> float:
    if code == 5:
        a = box_dual(y - z, shape)
        return a * (y - z) - 0.5 * shape[2] * a * a
    if code == 6:
        return tweedie_value(shape[0], z, y)
    if code == 1:
        return 0.5 * (z - y) * (z - y)
    m = z * y
    room = max(1.0 - m, 0.0)
    if code == 2:
        return room - 0.5 if room > 1.0 else 0.5 * room * room
    return room if code == 4 else room * room


@_inlined
def _slope(code: int, shape: Shape, z: float, y: float) -> float:
    if code == 5:
        return -box_dual(y - z, shape)
    if code == 6:
        return _tweedie_slope(shape[0], z, y)
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
def _curvature(code: int, shape: Shape, z: float, y: float) -> float:
    if code == 5:
        low, high, c = shape
        return 1.0 / c if c > 0.0 and low * c < y - z < high * c else 0.0
    if code == 6:
        return _tweedie_curvature(shape[0], z, y)
    if code == 1:
        return 1.0
    m = z * y
    if code == 2:
        return 1.0 if 0.0 < m < 1.0 else 0.0
    return 2.0 if m < 1.0 and code == 3 else 0.0


@kernel
def value_and_slope(
    code: int, shape: Shape, margins: F64, targets: F64, weights: F64, slope_out: F64
) -> float:
    """Return the sum of weighted losses, and write each row's weighted slope.

    ``weights`` (0,) means ones.
    """
    total = 0.0
    weighted = weights.size > 0
    for i in range(margins.size):
        s = weights[i] if weighted else 1.0
        total += s * _value(code, shape, margins[i], targets[i])
        slope_out[i] = s * _slope(code, shape, margins[i], targets[i])
    return total


@kernel
def along(
    code: int,
    shape: Shape,
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
    weighted = weights.size > 0
    for j in range(steps.size):
        t = steps[j]
        value, slope = 0.0, 0.0
        for i in range(margins.size):
            s = weights[i] if weighted else 1.0
            z = margins[i] + t * directions[i]
            value += s * _value(code, shape, z, targets[i])
            slope += s * directions[i] * _slope(code, shape, z, targets[i])
        values_out[j] += value
        slopes_out[j] += slope


@kernel
def curvature(code: int, shape: Shape, margins: F64, targets: F64, weights: F64, out: F64) -> None:
    """Write each row's weighted second derivative."""
    weighted = weights.size > 0
    for i in range(margins.size):
        s = weights[i] if weighted else 1.0
        out[i] = s * _curvature(code, shape, margins[i], targets[i])


@kernel
def curvature_along(
    code: int, shape: Shape, margins: F64, directions: F64, targets: F64, weights: F64
) -> float:
    """Return the sum of ``s_i loss''(z_i, y_i) u_i^2``: the curvature along a direction."""
    weighted = weights.size > 0
    total = 0.0
    for i in range(margins.size):
        s = weights[i] if weighted else 1.0
        total += s * _curvature(code, shape, margins[i], targets[i]) * directions[i] * directions[i]
    return total


@kernel
def conjugate(code: int, shape: Shape, duals: F64, targets: F64, out: F64) -> None:
    """Write ``loss*(u, y) = sup_z (u z - loss(z, y))``; infinity outside its domain."""
    for i in range(duals.size):
        u, y = duals[i], targets[i]
        if code == 1:
            out[i] = 0.5 * u * u + u * y
            continue
        if code == 5:
            is_feasible = shape[0] <= -u <= shape[1]
            out[i] = 0.5 * shape[2] * u * u + u * y if is_feasible else math.inf
            continue
        if code == 6:
            out[i] = tweedie_conjugate(shape[0], u, y)
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


# The same for many chunks in one call; int64 arrays are addresses, 0 for no weights.


@kernel
def values_and_slopes(
    code: int,
    shape: Shape,
    rows: I64,
    margins: I64,
    targets: I64,
    weights: I64,
    slopes_out: I64,
    total: F64,
) -> None:
    """Add each chunk's weighted losses to ``total`` (1,), and write its rows' weighted slopes."""
    for c in range(rows.size):
        n = rows[c]
        total[0] += value_and_slope(
            code,
            shape,
            vector_at(margins[c], n, total),
            vector_at(targets[c], n, total),
            vector_at(weights[c], n if weights[c] else 0, total),
            vector_at(slopes_out[c], n, total),
        )


@kernel
def along_chunks(
    code: int,
    shape: Shape,
    rows: I64,
    margins: I64,
    directions: I64,
    targets: I64,
    weights: I64,
    steps: F64,
    values_out: F64,
    slopes_out: F64,
) -> None:
    """Add each chunk's losses and their derivatives along its direction to the outputs."""
    for c in range(rows.size):
        n = rows[c]
        along(
            code,
            shape,
            vector_at(margins[c], n, steps),
            vector_at(directions[c], n, steps),
            vector_at(targets[c], n, steps),
            vector_at(weights[c], n if weights[c] else 0, steps),
            steps,
            values_out,
            slopes_out,
        )
