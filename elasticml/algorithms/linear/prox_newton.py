"""The subproblem of a proximal Newton step by sweeps over sparse columns, and the line search.

The subproblem is solved without a copy of the columns:
``slopes.u + 1/2 sum_i D_i u_i^2 + a1 |w|_1 + a2/2 |w|^2`` with ``u = X (w - w_old) + shift``. The
row weights D are looked up on the way, so that a step costs one pass for squares, slopes and the
products with a dual point, and then as many sweeps as the wanted accuracy needs. Columns that stay
at zero well within the threshold are left out of later sweeps until the others have converged. With
an intercept, it is kept optimal throughout, as if the columns had been centred.

Source: Yuan, Ho and Lin (2012), algorithms 1 and 2, for inexact steps, shrinking, and step lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from elasticml.algorithms.linear.gram import CLOSE
from elasticml.algorithms.linear.newton import HIDDEN
from elasticml.arrays import F64, I32, I64
from elasticml.compiled import inlined_kernel, kernel
from elasticml.objectives.penalty_kernels import Penalty

#: A column at zero is near its threshold if its distance is below this share of the largest
#: violation seen last.
NEAR: Final = 1e-4
#: Sufficient decrease of the line search, as a share of the predicted decrease.
TAKEN: Final = 0.01
#: Maximum halvings of a step.
HALVINGS_MAX: Final = 40
_1, _2, _3, _4 = (np.uint64(k) for k in range(1, 5))


class SparseColumns(NamedTuple):
    """Some columns of a matrix (n, d) in CSC format."""

    #: (m,), the columns' numbers.
    features: I64
    #: Pointers, row numbers and values of all columns.
    indptr: I32
    indices: I32
    values: F64


class QuadraticStep(NamedTuple):
    """An approximate minimum of the quadratic model."""

    #: (m,), the coefficients, and the intercept's step.
    w: F64
    rise: float
    #: Sweeps; the most allowed if the violations are not small enough then.
    sweeps: int


def solve_quadratic_model(
    columns: SparseColumns,
    moments: F64,
    w: F64,
    slopes: F64,
    curvature: F64,
    penalty: Penalty,
    *,
    intercept: bool,
    goal: float,
    sweeps_max: int,
) -> QuadraticStep | None:
    """Minimise the quadratic model until the violations that a sweep meets add up to ``goal``.

    Parameters
    ----------
    columns : SparseColumns
    moments : ndarray (m, at least 3)
        From :func:`measure`.
    w : ndarray (m,)
        Their coefficients; not modified.
    slopes, curvature : ndarray (n,)
        Weighted first and second derivatives of the rows' losses.
    intercept : bool
        Whether there is an unpenalised intercept.
    goal : float

    Returns
    -------
    QuadraticStep, or None if eliminating the intercept leaves only rounding of a column
    """
    moments, total, shift = moments[:, :3].copy(), 0.0, 0.0
    if intercept:
        total = float(curvature.sum())
        taken = moments[:, 1] ** 2 / total
        if np.any(moments[:, 0] - taken <= CLOSE * moments[:, 0]):
            return None
        moments[:, 0] -= taken
        shift = -float(slopes.sum()) / total
    else:
        moments[:, 1] = 0.0
    new, q = w.copy(), np.zeros(curvature.size)
    model = (curvature, moments, total)
    shift, sweeps = _descend(columns, model, penalty, goal, sweeps_max, new, q, shift)
    return QuadraticStep(new, shift, sweeps)


@inlined_kernel
def _along(indices: I32, values: F64, q: F64, begin: np.uint64, end: np.uint64) -> float:
    """Return a column times ``q``; four partial sums hide the latency of the additions."""
    body = begin + (end - begin) // _4 * _4
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
    for p in range(begin, body, _4):
        s0 += values[p] * q[np.uint32(indices[p])]
        s1 += values[p + _1] * q[np.uint32(indices[p + _1])]
        s2 += values[p + _2] * q[np.uint32(indices[p + _2])]
        s3 += values[p + _3] * q[np.uint32(indices[p + _3])]
    for p in range(body, end):
        s0 += values[p] * q[np.uint32(indices[p])]
    return (s0 + s1) + (s2 + s3)


@kernel
def measure(columns: SparseColumns, curvature: F64, slopes: F64, dual: F64) -> F64:
    """Return the sums of ``D x^2``, ``D x``, ``slope x`` and ``dual x`` of each column, (m, 4)."""
    features, indptr, indices, values = columns
    out = np.zeros((features.size, 4))
    for k in range(features.size):
        j = np.uint64(features[k])
        for p in range(np.uint64(indptr[j]), np.uint64(indptr[j + _1])):
            i, x = np.uint32(indices[p]), values[p]
            weighted = curvature[i] * x
            out[k, 0] += weighted * x
            out[k, 1] += weighted
            out[k, 2] += slopes[i] * x
            out[k, 3] += dual[i] * x
    return out


@inlined_kernel
def _leans(slope: float, w: float, a1: float) -> float:
    """Return a coordinate's violation of optimality; negative strictly within the threshold."""
    if w > 0.0:
        return abs(slope + a1)
    if w < 0.0:
        return abs(slope - a1)
    return abs(slope) - a1


@kernel
def _shuffle(places: I64, count: int, state: np.uint64) -> np.uint64:
    """Shuffle the first ``count`` entries; return the generator's new state."""
    for i in range(count - 1, 0, -1):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        k = np.int64(((state >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        places[i], places[k] = places[k], places[i]
    return state


@kernel
def _descend(
    columns: SparseColumns,
    model: tuple[F64, F64, float],
    penalty: Penalty,
    goal: float,
    sweeps_max: int,
    w: F64,
    q: F64,
    shift: float,
) -> tuple[float, int]:
    """Sweep over coordinates in random order until the violations are small.

    Returns the new shift, and the number of sweeps.

    Parameters
    ----------
    model : tuple
        The curvature (n,); each column's centred squared norm, its sum (0 without an intercept) and
        its first slope, (m, 3); the sum of the curvature, 0 without an intercept.
    w : ndarray (m,)
        Modified in place.
    q : ndarray (n,)
        ``D X (w - w_old)``, modified in place; does not include the shift.
    """
    features, indptr, indices, values = columns
    curvature, moments, total = model
    a1, a2 = penalty.a1, penalty.a2
    m = features.size
    active, n_active = np.arange(m), m
    room, state = math.inf, np.uint64(0x9E3779B97F4A7C15)
    for done in range(sweeps_max):
        state = _shuffle(active, n_active, state)
        correlations, largest, at = 0.0, 0.0, 0
        while at < n_active:
            k = np.uint64(active[at])
            j, old = np.uint64(features[k]), w[k]
            begin, end = np.uint64(indptr[j]), np.uint64(indptr[j + _1])
            slope = moments[k, 2] + shift * moments[k, 1] + a2 * old
            slope += _along(indices, values, q, begin, end)
            over = _leans(slope, old, a1)
            if over < -room:
                n_active -= 1
                active[at], active[n_active] = active[n_active], active[at]
                continue
            at += 1
            correlations += max(over, 0.0)
            largest = max(largest, over)
            square = moments[k, 0] + a2
            # A column of zeros: only the penalty matters.
            t = square * old - slope
            new = penalty.terms.minimiser(t, square, a1) if square > 0.0 else 0.0
            if new != old:
                w[k] = new
                for p in range(begin, end):
                    i = np.uint32(indices[p])
                    q[i] += (new - old) * curvature[i] * values[p]
                if total > 0.0:
                    shift -= (new - old) * moments[k, 1] / total
        if correlations <= goal:
            if n_active == m:
                return shift, done + 1
            # Check the columns that were left out once more.
            n_active, room = m, math.inf
            continue
        room = NEAR * largest
    return shift, sweeps_max


class Taken(NamedTuple):
    """A step that a line search found."""

    share: float
    #: The losses there, and by how much the objective falls.
    loss: float
    decrease: float
    #: Whether the predicted decrease was above rounding.
    is_measurable: bool


def line_search(
    at: Callable[[float], tuple[float, float]], before: float, promised: float
) -> Taken | None:
    """Halve a step until the objective falls enough; None if it never does.

    Parameters
    ----------
    at : callable
        Maps a share of the step to the losses and the penalty there.
    before, promised : float
        The objective, and the decrease predicted for the whole step.
    """
    # This close to the optimum differences of values are rounding: take the full step.
    is_measurable = promised > HIDDEN * abs(before)
    if not promised >= -HIDDEN * abs(before):
        return None  # Uphill or not finite: a step spoilt by rounding.
    share = 1.0
    for _ in range(HALVINGS_MAX):
        loss, cost = at(share)
        least = before - TAKEN * share * promised + HIDDEN * abs(before)
        if loss + cost <= least or (not is_measurable and np.isfinite(loss)):
            return Taken(share, loss, before - loss - cost, is_measurable)
        share *= 0.5
    return None
