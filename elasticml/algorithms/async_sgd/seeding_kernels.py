"""Serial compiled loops of k-means++: the inertia with a candidate, and local search by swaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

_Function = TypeVar("_Function", bound=Callable[..., Any])

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

#: Rows per tile: their distances stay in the L1 cache during the loop over columns.
_TILE = 512


def _kernel(function: _Function) -> _Function:
    flags = {"reassoc", "contract"}
    return cast(_Function, njit(nogil=True, cache=True, fastmath=flags)(function))


@_kernel
def potential(across: F64, candidate: F64, weights: F64, closest: F64, out: F64) -> float:
    """Write ``min(closest, |x - candidate|^2)`` for every row, and return the weighted sum.

    Parameters
    ----------
    across : ndarray (D, n)
        The rows, transposed.
    candidate : ndarray (D,)
    weights, closest, out : ndarray (n,)
    """
    d, n = across.shape
    total = 0.0
    squares = np.empty(_TILE)
    for start in range(0, n, _TILE):
        size = min(_TILE, n - start)
        for i in range(size):
            squares[i] = 0.0
        for j in range(d):
            c = candidate[j]
            for i in range(size):
                difference = across[j, start + i] - c
                squares[i] += difference * difference
        for i in range(size):
            least = min(closest[start + i], squares[i])
            out[start + i] = least
            total += weights[start + i] * least
    return total


@_kernel
def _square(x: F64, c: F64) -> float:
    total = 0.0
    for j in range(x.size):
        total += (x[j] - c[j]) * (x[j] - c[j])
    return total


@_kernel
def _look_up(x: F64, centres: F64, near: F64, who: I64) -> None:
    """Write the two smallest squared distances and their centres."""
    near[0], near[1], who[0], who[1] = np.inf, np.inf, -1, -1
    for k in range(len(centres)):
        square = _square(x, centres[k])
        if square < near[0]:
            near[1], who[1] = near[0], who[0]
            near[0], who[0] = square, k
        elif square < near[1]:
            near[1], who[1] = square, k


@_kernel
def swap_centres(rows: F64, weights: F64, centres: F64, uniforms: F64) -> int:
    """Improve centres by local search: swap them for rows that reduce the inertia.

    For every number in ``uniforms``, from 0 to 1, a row is drawn with probability proportional to
    weight times squared distance. It replaces the centre whose removal costs least, if this reduces
    the inertia.

    Parameters
    ----------
    rows : ndarray (n, D)
    weights : ndarray (n,)
    centres : ndarray (K, D)
        Modified in place.

    Returns
    -------
    int
        Number of swaps.
    """
    n, n_centres = len(rows), len(centres)
    near, who = np.empty((n, 2)), np.empty((n, 2), np.int64)
    fresh, missed = np.empty(n), np.empty(n_centres)
    for i in range(n):
        _look_up(rows[i], centres, near[i], who[i])
    swaps = 0
    for uniform in uniforms:
        inertia = 0.0
        for i in range(n):
            inertia += weights[i] * near[i, 0]
        left, drawn = uniform * inertia, 0
        while drawn < n - 1 and left >= weights[drawn] * near[drawn, 0]:
            left -= weights[drawn] * near[drawn, 0]
            drawn += 1
        missed[:] = 0.0
        with_it = 0.0
        for i in range(n):
            fresh[i] = _square(rows[i], rows[drawn])
            own = min(near[i, 0], fresh[i])
            with_it += weights[i] * own
            missed[who[i, 0]] += weights[i] * (min(near[i, 1], fresh[i]) - own)
        least = np.argmin(missed)
        if not with_it + missed[least] < inertia:
            continue
        swaps += 1
        centres[least] = rows[drawn]
        for i in range(n):
            if who[i, 0] == least or who[i, 1] == least:
                _look_up(rows[i], centres, near[i], who[i])
            elif fresh[i] < near[i, 0]:
                near[i, 1], who[i, 1] = near[i, 0], who[i, 0]
                near[i, 0], who[i, 0] = fresh[i], least
            elif fresh[i] < near[i, 1]:
                near[i, 1], who[i, 1] = fresh[i], least
    return swaps
