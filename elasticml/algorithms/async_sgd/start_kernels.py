"""A serial compiled loop of k-means++: what a candidate would leave of the distances."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

F64 = NDArray[np.float64]

#: Rows whose distances stay in the nearest cache while the columns go by.
_TILE = 512


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
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
                apart = across[j, start + i] - c
                squares[i] += apart * apart
        for i in range(size):
            least = min(closest[start + i], squares[i])
            out[start + i] = least
            total += weights[start + i] * least
    return total
