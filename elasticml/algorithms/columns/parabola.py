"""The subproblem of a proximal Newton step: coordinate descent over sparse columns without a copy.

``slopes.u + 1/2 sum_i D_i u_i^2 + a1 |w|_1 + a2/2 |w|^2`` with ``u = X (w - w_old) + shift``: the
quadratic model of the loss at the current margins. Columns stay as stored; the row weights D are
looked up on the way. So a step costs one pass for squares and slopes, and then as many sweeps as
needed to reduce the constraint violations to a share of their initial size. Columns that stay at
zero well within the threshold are left out of later sweeps until the others have converged
(shrinking). With an intercept, it is kept optimal throughout, as if the columns had been centred.

Source: Yuan, Ho and Lin (2012), algorithms 1 and 2, for inexact steps and shrinking.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.columns.centring import CLOSE
from elasticml.algorithms.columns.kernels import best
from elasticml.algorithms.columns.products import Penalty
from elasticml.data.kernels import inlined_kernel, kernel

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
#: Pointers, row numbers and values of a matrix in CSC format.
Stored = tuple[I32, I32, F64]

#: Share of the constraint violations that a step leaves: the next Newton step soon pays off more
#: than an exact solution of the subproblem.
SHARE: Final = 0.1
#: The smallest share, used when inexact steps gain little.
FINE_SHARE: Final = 1e-4
#: Maximum sweeps of a step, and of one with a smaller share than ``SHARE``.
SPARSE_SWEEPS_MAX: Final = 100
FINE_SWEEPS_MAX: Final = 1000
_0, _1, _2, _3, _4 = (np.uint64(k) for k in range(5))


def best_on_parabola(
    stored: Stored,
    features: I64,
    w: F64,
    slopes: F64,
    curvature: F64,
    penalty: Penalty,
    *,
    intercept: bool,
    share: float,
) -> tuple[F64, float] | None:
    """Return the coefficients that minimise the quadratic model, (m,), and the intercept's step.

    Parameters
    ----------
    stored : tuple of ndarray
        X (n, d) in CSC format.
    features : ndarray (m,)
    w : ndarray (m,)
        Their coefficients; not modified.
    slopes, curvature : ndarray (n,)
        Weighted first and second derivatives of the rows' losses.
    intercept : bool
        Whether there is an unpenalised intercept.
    share : float, in (0, 1)
        Share of the constraint violations that may remain.

    Returns
    -------
    tuple, or None if eliminating the intercept leaves only rounding of a column
    """
    facts, total, shift = np.empty((features.size, 3)), 0.0, 0.0
    _measure(features, *stored, curvature, slopes, facts)
    if intercept:
        total = float(curvature.sum())
        taken = facts[:, 1] ** 2 / total
        if np.any(facts[:, 0] - taken <= CLOSE * facts[:, 0]):
            return None
        facts[:, 0] -= taken
        shift = -float(slopes.sum()) / total
    else:
        facts[:, 1] = 0.0
    new, q = w.copy(), np.zeros(curvature.size)
    shift = _descend(
        features, *stored, curvature, facts, total, penalty.a1, penalty.a2,
        share, FINE_SWEEPS_MAX if share < SHARE else SPARSE_SWEEPS_MAX, new, q, shift,
    )  # fmt: skip
    return new, shift


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
def _measure(
    features: I64,
    indptr: I32,
    indices: I32,
    values: F64,
    curvature: F64,
    slopes: F64,
    out: F64,
) -> None:
    """Write each column's ``sum D x^2``, ``sum D x`` and ``sum slope x`` into ``out`` (m, 3)."""
    for k in range(features.size):
        j = np.uint64(features[k])
        square, whole, slope = 0.0, 0.0, 0.0
        for p in range(np.uint64(indptr[j]), np.uint64(indptr[j + _1])):
            i, x = np.uint32(indices[p]), values[p]
            weighted = curvature[i] * x
            square += weighted * x
            whole += weighted
            slope += slopes[i] * x
        out[k, 0], out[k, 1], out[k, 2] = square, whole, slope


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
    features: I64,
    indptr: I32,
    indices: I32,
    values: F64,
    curvature: F64,
    facts: F64,
    total: float,
    a1: float,
    a2: float,
    share: float,
    sweeps_max: int,
    w: F64,
    q: F64,
    shift: float,
) -> float:
    """Sweep over coordinates in random order until the violations are small; return the new shift.

    Parameters
    ----------
    facts : ndarray (m, 3)
        Each column's centred squared norm, its sum (0 without an intercept), and its initial slope.
    total : float
        Sum of the curvature; 0 without an intercept.
    w : ndarray (m,)
        Modified in place.
    q : ndarray (n,)
        ``D X (w - w_old)``, modified in place; does not include the shift.
    """
    m = features.size
    active, n_active = np.arange(m), m
    target, room, state = 0.0, math.inf, np.uint64(0x9E3779B97F4A7C15)
    for done in range(sweeps_max):
        state = _shuffle(active, n_active, state)
        leaning, largest, at = 0.0, 0.0, 0
        while at < n_active:
            k = np.uint64(active[at])
            j, old = np.uint64(features[k]), w[k]
            begin, end = np.uint64(indptr[j]), np.uint64(indptr[j + _1])
            slope = facts[k, 2] + shift * facts[k, 1] + a2 * old
            slope += _along(indices, values, q, begin, end)
            over = _leans(slope, old, a1)
            if over < -room:
                n_active -= 1
                active[at], active[n_active] = active[n_active], active[at]
                continue
            at += 1
            leaning += max(over, 0.0)
            largest = max(largest, over)
            square = facts[k, 0] + a2
            # A column of zeros: only the penalty matters.
            new = best(square * old - slope, a1, square, False) if square > 0.0 else 0.0
            if new != old:
                w[k] = new
                for p in range(begin, end):
                    i = np.uint32(indices[p])
                    q[i] += (new - old) * curvature[i] * values[p]
                if total > 0.0:
                    shift -= (new - old) * facts[k, 1] / total
        if done == 0:
            target = share * leaning
        elif leaning <= target:
            if n_active == m:
                break
            # Check the columns that were left out once more.
            n_active, room = m, math.inf
            continue
        room = largest / curvature.size
    return shift
