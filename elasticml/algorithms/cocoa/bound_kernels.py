"""Compiled loops that add a chunk's rows to the sums of their bins, serially and without the GIL.

Each loop adds float64 products in row order, so that a chunk gives the same bits on any member.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.kernels import kernel

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]

#: Iterations of the eigenvalue bound; each is one pass over the rows.
EIGENVALUE_STEPS: Final = 4


@kernel
def dense_vectors(values: NDArray[Any], at: I64, coefficients: F64, out: F64) -> None:
    """Add ``c_i x_i`` to ``out[at_i]``; values (n, k), at and coefficients (n,), out (V, >= k)."""
    n, k = values.shape
    for i in range(n):
        c, row = coefficients[i], out[at[i]]
        if c != 0.0:
            for j in range(k):
                row[j] += c * np.float64(values[i, j])


@kernel
def csr_vectors(
    indptr: I32, indices: I32, values: NDArray[Any], at: I64, coefficients: F64, out: F64
) -> None:
    """Add ``c_i x_i`` to ``out[at_i]``; empty ``values`` mean ones."""
    ones = values.size == 0
    for i in range(at.size):
        c, row = coefficients[i], out[at[i]]
        if c != 0.0:
            for j in range(indptr[i], indptr[i + 1]):
                row[np.uint32(indices[j])] += c if ones else c * np.float64(values[j])


@kernel
def dense_products(
    values: NDArray[Any], offset: float, width: int, at: I64, weights: F64, out: F64
) -> None:
    """Add ``s_i x_i x_i^T`` to row ``at_i`` of ``out``, as packed lower triangles.

    An ``offset`` of 1.0 appends a column of ones to the other ``width - 1``; 0.0 appends none.
    ``out`` (B, width (width + 1) / 2).
    """
    n, k = values.shape
    x = np.empty(k)
    for i in range(n):
        s, row = weights[i], out[at[i]]
        for j in range(k):
            x[j] = np.float64(values[i, j])
        begin = 0
        for j in range(k):
            c = s * x[j]
            if c != 0.0:
                part = row[begin : begin + j + 1]
                for m in range(j + 1):
                    part[m] += c * x[m]
            begin += j + 1
        if offset != 0.0:
            last = row[row.size - width :]
            for m in range(k):
                last[m] += s * x[m]
            last[width - 1] += s


@kernel
def csr_products(
    indptr: I32,
    indices: I32,
    values: NDArray[Any],
    offset: float,
    width: int,
    at: I64,
    weights: F64,
    out: F64,
) -> None:
    """As :func:`dense_products`, for sparse rows; empty ``values`` mean ones."""
    ones = values.size == 0
    for i in range(at.size):
        s, row = weights[i], out[at[i]]
        last = row[row.size - width :]
        for j in range(indptr[i], indptr[i + 1]):
            column = np.int64(indices[j])
            x = 1.0 if ones else np.float64(values[j])
            begin = column * (column + 1) // 2
            for m in range(indptr[i], j + 1):
                row[begin + indices[m]] += s * x * (1.0 if ones else np.float64(values[m]))
            if offset != 0.0:
                last[column] += s * x
        if offset != 0.0:
            last[last.size - 1] += s


@kernel
def csr_absolute(indptr: I32, indices: I32, values: NDArray[Any], p: F64, out: F64) -> None:
    """Write ``sum_k |x_ik| p_k`` into ``out`` (n,)."""
    for i in range(out.size):
        total = 0.0
        for j in range(indptr[i], indptr[i + 1]):
            total += abs(np.float64(values[j])) * p[np.uint32(indices[j])]
        out[i] = total


@kernel
def csr_diagonals(
    indptr: I32,
    indices: I32,
    values: NDArray[Any],
    at: I64,
    coefficients: F64,
    inverse: F64,
    out: F64,
) -> None:
    """Add ``c_i |x_ij| inverse_j`` to ``out[at_i, j]``; empty ``values`` mean ones."""
    ones = values.size == 0
    for i in range(at.size):
        c, row = coefficients[i], out[at[i]]
        if c != 0.0:
            for j in range(indptr[i], indptr[i + 1]):
                column = np.uint32(indices[j])
                x = 1.0 if ones else abs(np.float64(values[j]))
                row[column] += c * x * inverse[column]


@kernel
def csr_largest(
    indptr: I32,
    indices: I32,
    values: NDArray[Any],
    order: I64,
    starts: I64,
    weights: F64,
    factor: F64,
    constant: float,
    p: F64,
    w: F64,
    out: F64,
) -> None:
    """Bound the largest eigenvalue of each bin's ``sum s_i x~_i x~_i^T`` in absolute values.

    For a nonnegative A and p > 0, ``max_j (A p)_j / p_j`` bounds the largest eigenvalue from above,
    and ``A p`` in place of p never raises it: a few iterations from ones come close. The rows of
    bin b are ``order[starts[b]:starts[b + 1]]``. ``p`` and ``w`` (d,) are scratch space: zero
    before and after the call.
    """
    ones = values.size == 0
    for b in range(out.size):
        rows = order[starts[b] : starts[b + 1]]
        for i in rows:
            for j in range(indptr[i], indptr[i + 1]):
                p[indices[j]] = 1.0
        p_last, largest = 1.0, 0.0
        for _ in range(EIGENVALUE_STEPS):
            w_last = 0.0
            for i in rows:
                t = constant * p_last
                for j in range(indptr[i], indptr[i + 1]):
                    x = 1.0 if ones else abs(np.float64(values[j]))
                    t += x * factor[indices[j]] * p[indices[j]]
                t *= weights[i]
                for j in range(indptr[i], indptr[i + 1]):
                    x = 1.0 if ones else abs(np.float64(values[j]))
                    w[indices[j]] += t * x * factor[indices[j]]
                w_last += t * constant
            largest = w_last / p_last if p_last > 0.0 else 0.0
            for i in rows:
                for j in range(indptr[i], indptr[i + 1]):
                    if p[indices[j]] > 0.0:
                        largest = max(largest, w[indices[j]] / p[indices[j]])
            if largest == 0.0:
                break
            # Coordinates that no positive weight reaches are zero in A, and stay out.
            for i in rows:
                for j in range(indptr[i], indptr[i + 1]):
                    if w[indices[j]] > 0.0:
                        p[indices[j]] = w[indices[j]] / largest
                        w[indices[j]] = 0.0
            p_last = w_last / largest
        for i in rows:
            for j in range(indptr[i], indptr[i + 1]):
                p[indices[j]] = 0.0
                w[indices[j]] = 0.0
        out[b] = largest


@kernel
def packed_quadratic(packed: F64, x: F64) -> float:
    """Return ``x^T M x`` for a packed lower triangle of a symmetric matrix."""
    total, begin = 0.0, 0
    for j in range(x.size):
        inner = 0.0
        for m in range(j):
            inner += packed[begin + m] * x[m]
        total += x[j] * (2.0 * inner + packed[begin + j] * x[j])
        begin += j + 1
    return total
