"""Serial compiled loops over dual variables, and the exact coordinate step of one of them.

In classification a dual variable ``a`` refers to the label-folded margin ``m = y z``:
``a = -loss'(m)`` at the optimum, and ``minus(a) = -conj(-a)`` is its concave term in the dual
problem. Losses of regression keep their target: ``a`` is ``y - z`` for the squared loss, and in
``[low, high]`` for box losses, with ``minus(a) = a y - c/2 a^2`` and box (low, high, c).

A step maximises ``minus(a') - (a' - a) m - q/2 (a' - a)^2`` over the feasible interval; ``q >= 0``
is the derivative of the example's margin with respect to its dual variable.
"""

from __future__ import annotations

import math
from typing import Final

from elasticml.arrays import F64, I64
from elasticml.compiled import compiled, unchecked_kernel, vector_at
from elasticml.objectives.loss_kernels import Shape, box_dual, tweedie_conjugate

#: Newton steps for the logistic loss.
NEWTON_STEPS: Final = 2
#: Logistic dual variables keep this distance from 0 and 1, where the entropy has no derivative.
EDGE: Final = 1e-15
#: Closer to 0 and 1 than this, a single Newton step does not start at the old value.
NEWTON_MARGIN: Final = 0.05


_inlined = compiled(error_model="numpy", forceinline=True)


@_inlined
def _logistic_goal(m: float) -> float:
    """Return ``sigma(-m)``, kept off 0 and 1: the best dual variable for a constant margin."""
    e = math.exp(-abs(m))
    goal = (e if m > 0.0 else 1.0) / (1.0 + e)
    return min(max(goal, EDGE), 1.0 - EDGE)


@_inlined
def _weighed_start(old: float, goal: float, q: float) -> float:
    """Interpolate two dual variables by the largest curvature of the loss between them."""
    spread = max(old * (1.0 - old), goal * (1.0 - goal))
    if (old - 0.5) * (goal - 0.5) < 0.0:
        spread = 0.25
    return old + (goal - old) / (1.0 + q * spread)


@_inlined
def _newton_trial(new: float, slope: float, q: float, low: float, high: float) -> float:
    """Take a Newton step towards the root of ``slope``; halve the way to a bound it crosses."""
    step = slope * new * (1.0 - new) / (1.0 + q * new * (1.0 - new))
    trial = new + step
    if trial <= low:
        trial = 0.5 * (new + low)
    elif trial >= high:
        trial = 0.5 * (new + high)
    return trial


@_inlined
def _logistic_steps(a: float, m: float, q: float, steps: int) -> float:
    """Take safeguarded Newton steps from between the old value and ``sigma(-m)``."""
    goal = _logistic_goal(m)
    old = min(max(a, EDGE), 1.0 - EDGE)
    new = _weighed_start(old, goal, q)
    low, high = min(old, goal), max(old, goal)
    for _ in range(steps):
        slope = math.log((1.0 - new) / new) - m - q * (new - a)
        if slope > 0.0:
            low = new
        else:
            high = new
        new = _newton_trial(new, slope, q, low, high)
    return new


@unchecked_kernel
def logistic_step(a: float, m: float, q: float) -> float:
    """Return the new dual variable of the logistic loss after safeguarded Newton steps.

    The root of ``g(a') = log((1 - a')/a') - m - q (a' - a)``, which falls from infinity to minus
    infinity on (0, 1), lies between ``a`` and ``sigma(-m)``: one term of ``g`` vanishes at each
    end. The start interpolates the two ends by the largest curvature between them. A Newton step
    that would leave the interval goes half the way to its bound instead.

    Error: over a grid of a, m and q the two steps lose at most a sixth of the possible gain of a
    row, and in the median only rounding.
    """
    return _logistic_steps(a, m, q, NEWTON_STEPS)


@unchecked_kernel
def logistic_short_step(a: float, m: float, q: float) -> float:
    """Return it after one step: passes over all rows gain as much, and take a tenth less time."""
    return _logistic_steps(a, m, q, 1)


@unchecked_kernel
def logistic_newton_step(a: float, m: float, q: float) -> float:
    """Return the new dual variable of the logistic loss after one Newton step from its old value.

    Near 0 and 1, where the entropy's derivative is unbounded and a Newton step hardly moves, the
    step starts at the same value as :func:`logistic_step`.

    Source: Snap ML, section 3.1, "Extension for Logistic Regression"; the start near 0 and 1 and
    the safeguard of the interval are ours.
    """
    goal = _logistic_goal(m)
    old = min(max(a, EDGE), 1.0 - EDGE)
    start = old
    if old < NEWTON_MARGIN or old > 1.0 - NEWTON_MARGIN:
        start = _weighed_start(old, goal, q)
    slope = math.log((1.0 - start) / start) - m - q * (start - a)
    low, high = min(old, goal), max(old, goal)
    if slope > 0.0:
        low = start
    else:
        high = start
    return _newton_trial(start, slope, q, low, high)


@_inlined
def stepped(code: int, a: float, m: float, y: float, q: float, box: Shape) -> float:
    """Return the new dual variable; ``y`` is used by losses of regression, ``box`` by box losses.

    Half deviances have no such step.
    """
    if code == 5:
        low, high, c = box
        if c + q > 0.0:
            return min(max(a + (y - m - c * a) / (c + q), low), high)
        # An empty row and a loss without curvature: its slope at the constant margin.
        return box_dual(y - m, box) if y != m else a
    if code == 4:
        room = 1.0 - m
        # With q = 0 the row is empty and its loss constant: the best dual variable is 1.
        return min(max(a + room / q, 0.0), 1.0) if q > 0.0 else (1.0 if room > 0.0 else 0.0)
    if code == 0:
        return logistic_step(a, m, q)
    if code == 1:
        return a + (y - m - a) / (1.0 + q)
    if code == 3:
        return max(a + (1.0 - m - 0.5 * a) / (0.5 + q), 0.0)
    return min(max(a + (1.0 - m - a) / (1.0 + q), 0.0), 1.0)


@_inlined
def minus_conjugate_of(code: int, a: float, y: float, box: Shape) -> float:
    """Return ``-conj(-a)`` of one example; minus infinity outside the feasible interval.

    Not of half deviances, which have no steps.
    """
    if code == 5:
        if a < box[0] or a > box[1]:
            return -math.inf
        return a * y - 0.5 * box[2] * a * a
    if code == 1:
        return a * y - 0.5 * a * a
    if a < 0.0 or (a > 1.0 and code != 3):
        return -math.inf
    if code == 4:
        return a
    if code == 0:
        left = a * math.log(a) if a > 0.0 else 0.0
        right = (1.0 - a) * math.log(1.0 - a) if a < 1.0 else 0.0
        return -left - right
    if code == 3:
        return a - 0.25 * a * a
    return a - 0.5 * a * a


@_inlined
def gap_of(code: int, a: float, m: float, y: float, box: Shape) -> float:
    """Return one example's share of the duality gap: ``loss(m) - minus(a) + a m``, at least 0.

    If the model is the sum of ``a_i x_i``, the shares add up to the gap. ``m`` is label-folded,
    except in regression.
    """
    if code == 5:
        best, c = box_dual(y - m, box), box[2]
        return (best - a) * (y - m) - 0.5 * c * (best * best - a * a)
    if code == 1:
        return 0.5 * (y - m - a) * (y - m - a)
    if code == 4:
        return max(1.0 - m, 0.0) - a + a * m
    if code == 0:
        loss = math.log1p(math.exp(-abs(m))) + max(-m, 0.0)
    elif code == 3:
        loss = max(1.0 - m, 0.0) * max(1.0 - m, 0.0)
    else:
        room = max(1.0 - m, 0.0)
        loss = 0.5 * room * room if room < 1.0 else room - 0.5
    return loss - minus_conjugate_of(code, a, y, box) + a * m


@_inlined
def alpha_of_margin(code: int, z: float, y: float, box: Shape) -> float:
    """Return ``-loss'`` with respect to the label-folded margin, or in regression to z."""
    if code == 5:
        return box_dual(y - z, box)
    if code == 6:
        below = y * math.exp((1.0 - box[0]) * z) if y > 0.0 else 0.0
        return below - math.exp((2.0 - box[0]) * z)
    if code == 1:
        return y - z
    m = y * z
    if code == 4:
        return 1.0 if m < 1.0 else 0.0
    if code == 0:
        e = math.exp(-abs(m))
        return (e if m > 0.0 else 1.0) / (1.0 + e)
    if code == 3:
        return 2.0 * max(1.0 - m, 0.0)
    return min(max(1.0 - m, 0.0), 1.0)


@unchecked_kernel
def minus_conjugate(code: int, box: Shape, duals: F64, targets: F64, weights: F64) -> float:
    """Return the sum of ``s_i minus(a_i)``; ``weights`` (0,) means ones. Not of half deviances."""
    weighted = weights.size > 0
    total = 0.0
    for i in range(duals.size):
        s = weights[i] if weighted else 1.0
        total += s * minus_conjugate_of(code, duals[i], targets[i], box)
    return total


@unchecked_kernel
def tweedie_minus_conjugate(power: float, duals: F64, targets: F64, weights: F64) -> float:
    """Return the same sum of a half deviance: apart, as its code takes long to compile."""
    weighted = weights.size > 0
    total = 0.0
    for i in range(duals.size):
        s = weights[i] if weighted else 1.0
        total -= s * tweedie_conjugate(power, -duals[i], targets[i]) if s > 0.0 else 0.0
    return total


# The same for many chunks in one call; int64 arrays are addresses, 0 for no weights.


@unchecked_kernel
def minus_conjugates(
    code: int, box: Shape, rows: I64, duals: I64, targets: I64, weights: I64, total: F64
) -> None:
    """Add each chunk's :func:`minus_conjugate` to ``total`` (1,)."""
    for c in range(rows.size):
        n = rows[c]
        total[0] += minus_conjugate(
            code,
            box,
            vector_at(duals[c], n, total),
            vector_at(targets[c], n, total),
            vector_at(weights[c], n if weights[c] else 0, total),
        )


@unchecked_kernel
def tweedie_minus_conjugates(
    power: float, rows: I64, duals: I64, targets: I64, weights: I64, total: F64
) -> None:
    """Add each chunk's :func:`tweedie_minus_conjugate` to ``total`` (1,)."""
    for c in range(rows.size):
        n = rows[c]
        total[0] += tweedie_minus_conjugate(
            power,
            vector_at(duals[c], n, total),
            vector_at(targets[c], n, total),
            vector_at(weights[c], n if weights[c] else 0, total),
        )


@unchecked_kernel
def alpha_from_margin(code: int, box: Shape, margins: F64, targets: F64, out: F64) -> None:
    """Write each example's ``-loss'`` at its margin into ``out``."""
    for i in range(margins.size):
        out[i] = alpha_of_margin(code, margins[i], targets[i], box)
