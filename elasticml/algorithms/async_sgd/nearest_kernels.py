"""Serial compiled loops of K-Means: gather rows, find the nearest centres, sum by centre.

Every loop is single-threaded and releases the GIL. Distances are compared as ``|c|^2/2 - x.c``,
centres along the vector registers and two rows at a time, so that a centre is loaded once for both.
The compiler may reassociate the sum of a distance; sums by centre keep the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from elasticml.data.chunks.kernels import kernel

_Function = TypeVar("_Function", bound=Callable[..., Any])

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
#: float64 or float32.
Real = NDArray[np.float64] | NDArray[np.float32]

#: Centres are padded to a multiple of this, which is a whole number of vector registers.
LANES: Final = 16


def _comparing_kernel(function: _Function) -> _Function:
    """Compile with reassociated sums and without NaN handling: sources reject NaN."""
    flags = {"reassoc", "contract", "nnan", "nsz"}
    return cast(_Function, njit(nogil=True, cache=True, fastmath=flags)(function))


@kernel
def gather_dense(values: Real, rows: I64, shift: F64, out: Real, start: int) -> None:
    """Write ``values[rows] - shift`` into ``out[start:]``; rows may have fewer columns."""
    width = values.shape[1]
    for i in range(rows.size):
        row = rows[i]
        for j in range(width):
            out[start + i, j] = values[row, j] - shift[j]
        for j in range(width, shift.size):
            out[start + i, j] = -shift[j]


@kernel
def gather_csr(
    indptr: I32, indices: I32, values: Real, rows: I64, shift: F64, out: Real, start: int
) -> None:
    """Write the rows of a CSR chunk minus ``shift`` densely into ``out[start:]``.

    ``values`` is empty for binary chunks: all stored values are 1.
    """
    for i in range(rows.size):
        row = rows[i]
        for j in range(shift.size):
            out[start + i, j] = -shift[j]
        for at in range(indptr[row], indptr[row + 1]):
            out[start + i, indices[at]] += values[at] if values.size > 0 else 1.0


@kernel
def prepare(centres: F64, shift: F64, across: Real, half_squares: Real) -> None:
    """Lay centres out for :func:`nearest`: transposed, shifted, padded.

    Parameters
    ----------
    centres : ndarray (K, D)
    across : ndarray (D, P), P a multiple of 16 of at least K
        Padding is zero.
    half_squares : ndarray (P,)
        ``|c|^2/2`` of the centres as rounded in ``across``; padding is infinite.
    """
    n_centres, d = centres.shape
    for k in range(half_squares.size):
        half_squares[k] = np.inf
    for k in range(n_centres):
        total = 0.0
        for j in range(d):
            across[j, k] = centres[k, j] - shift[j]
            c = np.float64(across[j, k])
            total += c * c
        half_squares[k] = 0.5 * total


@_comparing_kernel
def nearest(X: Real, n: int, across: Real, half_squares: Real, n_centres: int, labels: I32) -> None:
    """Write the nearest centre of each of the first ``n`` rows; ties go to the first centre.

    For an odd ``n``, ``X`` must have one more row.
    """
    d, width = across.shape
    # If scores overflow, none equals the minimum; the label must still be a valid centre.
    last = n_centres - 1
    scores = np.empty((2, width), X.dtype)
    a, b = scores[0], scores[1]
    fours = d // 4 * 4
    for i in range(0, n, 2):
        x, y = X[i], X[i + 1]
        for k in range(width):
            a[k] = half_squares[k]
            b[k] = half_squares[k]
        for j in range(0, fours, 4):
            x0, x1, x2, x3 = x[j], x[j + 1], x[j + 2], x[j + 3]
            y0, y1, y2, y3 = y[j], y[j + 1], y[j + 2], y[j + 3]
            for k in range(width):
                c0, c1, c2, c3 = across[j, k], across[j + 1, k], across[j + 2, k], across[j + 3, k]
                a[k] -= x0 * c0 + x1 * c1 + x2 * c2 + x3 * c3
                b[k] -= y0 * c0 + y1 * c1 + y2 * c2 + y3 * c3
        for j in range(fours, d):
            x0, y0 = x[j], y[j]
            for k in range(width):
                a[k] -= x0 * across[j, k]
                b[k] -= y0 * across[j, k]
        low, other = a[0], b[0]
        for k in range(1, width):
            low = min(low, a[k])
            other = min(other, b[k])
        k = 0
        while k < last and a[k] != low:
            k += 1
        labels[i] = k
        if i + 1 < n:
            k = 0
            while k < last and b[k] != other:
                k += 1
            labels[i + 1] = k


@kernel
def add_rows(X: Real, n: int, weights: F64, labels: I32, sums: F64, counts: F64) -> None:
    """Add each of the first ``n`` rows to its label's sum, and its weight to the count.

    ``weights`` is empty for ones.
    """
    d = sums.shape[1]
    for i in range(n):
        k = labels[i]
        if weights.size > 0:
            s = weights[i]
            counts[k] += s
            for j in range(d):
                sums[k, j] += s * X[i, j]
        else:
            counts[k] += 1.0
            for j in range(d):
                sums[k, j] += X[i, j]


@_comparing_kernel
def add_squares(
    X: Real, n: int, weights: F64, labels: I32, centres: F64, shift: F64, out: F64
) -> float:
    """Write the squared distances to the labels' centres, and return their weighted sum."""
    total = 0.0
    for i in range(n):
        k, square = labels[i], 0.0
        for j in range(shift.size):
            # Differences instead of scores, which cancel near a centre.
            difference = X[i, j] - (centres[k, j] - shift[j])
            square += difference * difference
        out[i] = square
        total += weights[i] * square if weights.size > 0 else square
    return total


@kernel
def move_to_means(centres: F64, mass: F64, sums: F64, counts: F64) -> None:
    """Add the counts to ``mass``, and move each centre by ``n/mass (mean - centre)``."""
    for k in range(mass.size):
        if counts[k] > 0.0:
            mass[k] += counts[k]
            for j in range(centres.shape[1]):
                centres[k, j] += (sums[k, j] - counts[k] * centres[k, j]) / mass[k]
