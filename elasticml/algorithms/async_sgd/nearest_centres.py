"""Nearest centres of rows, sums by centre, and squared distances, for K-Means.

Every compiled loop is single-threaded and releases the GIL. Distances are compared as
``|c|^2/2 - x.c``, see ``checked_singles.score_four``. The compiler may reassociate the sum of a
distance; sums by centre keep the order of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.checked_singles import (
    ROWS,
    comparing_kernel,
    lay_out,
    score_four,
)
from elasticml.arrays import F64, I32, I64
from elasticml.compiled import kernel
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import ConfigError

#: float64 or float32.
Real = NDArray[np.float64] | NDArray[np.float32]


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


@comparing_kernel
def add_rows(
    X: Real,
    n: int,
    weights: F64,
    centres: F64,
    shift: F64,
    across: Real,
    half_squares: Real,
    radius: float,
    norms: Real,
    scores: Real,
    labels: I32,
    squares: F64,
    sums: F64,
    counts: F64,
) -> float:
    """Find the nearest centres of the first ``n`` rows, and add the rows to the centres' sums.

    Writes the squared distances, and returns their weighted sum, unless ``squares`` is empty. Ties
    go to the first centre.

    Parameters
    ----------
    X : ndarray (n + 4, P)
        Minus the shift, with zeros in columns beyond those of the centres.
    centres, shift, across, half_squares, radius
        A layout; as a record it would take 5 microseconds more.
    norms : ndarray (n + 4,)
        Zeros.
    """
    # If scores overflow, none equals the minimum; the label must still be a valid centre.
    last, total = len(centres) - 1, 0.0
    a, b, e, f = scores[0], scores[1], scores[2], scores[3]
    for start in range(0, n, ROWS):
        score_four(X, start, across, half_squares, norms, scores)
        p, q, r, s = a[0], b[0], e[0], f[0]
        # The four minima do not wait for each other.
        for k in range(1, a.size):
            p, q, r, s = min(p, a[k]), min(q, b[k]), min(r, e[k]), min(s, f[k])
        least = (p, q, r, s)
        for i in range(start, min(start + ROWS, n)):
            k = 0
            while k < last and scores[i - start, k] != least[i - start]:
                k += 1
            labels[i] = k
    for i in range(n):
        k, weight, square = labels[i], weights[i], 0.0
        counts[k] += weight
        for j in range(shift.size):
            sums[k, j] += weight * X[i, j]
        if squares.size == 0:
            continue
        for j in range(shift.size):
            # Differences instead of scores, which cancel near a centre.
            difference = X[i, j] - (centres[k, j] - shift[j])
            square += difference * difference
        squares[i] = square
        total += weight * square
    return total


@kernel
def move_to_means(centres: F64, mass: F64, sums: F64, counts: F64) -> None:
    """Add the counts to ``mass``, and move each centre by ``n/mass (mean - centre)``."""
    for k in range(mass.size):
        if counts[k] > 0.0:
            mass[k] += counts[k]
            for j in range(centres.shape[1]):
                centres[k, j] += (sums[k, j] - counts[k] * centres[k, j]) / mass[k]


#: A chunk and int64 rows of it; None: all.
Parts = Sequence[tuple[Chunk, NDArray[np.int64] | None]]

#: Size in bytes of a block of gathered rows, which stays in the L1 and L2 caches.
_BLOCK_BYTES: Final = 2**17
_BLOCK_ROWS_MAX: Final = 2048


class Statistics(NamedTuple):
    """What the nearest centres of some rows are, and sums by these."""

    #: Nearest centres (n,), and the squared distances to them.
    labels: I32
    squares: F64
    #: Weighted sums (K, D) of the rows nearest to each centre, and the sums (K,) of weights.
    sums: F64
    counts: F64
    #: Weighted sum of squared distances.
    inertia: float


def statistics_of(centres: F64, parts: Parts, *, distances: bool = True) -> Statistics:
    """Find the nearest of the centres (K, D) of each row, and sum by these, in order.

    Without ``distances`` there are no squares and no inertia. Rows of float32 are compared in
    single precision.
    """
    n_centres, d = centres.shape
    dtype: Any = np.float64
    shift = np.zeros(d)
    if parts and parts[0][0].layout.dtype == "float32":
        # Far from the origin single precision has too few digits for differences.
        dtype, shift = np.float32, centres.mean(axis=0)
    layout = lay_out(centres, shift, dtype)
    n_rows = sum(chunk.n_rows if rows is None else rows.size for chunk, rows in parts)
    labels, squares = np.empty(n_rows, np.int32), np.empty(n_rows if distances else 0)
    sums, counts, inertia = np.zeros((n_centres, d)), np.zeros(n_centres), 0.0
    # Rows are gathered into blocks across chunks; the kernel scores several at a time.
    size = min(_BLOCK_ROWS_MAX, max(32, _BLOCK_BYTES // (8 * d)), max(1, n_rows))
    X, norms = np.zeros((size + ROWS, len(layout.across)), dtype), np.zeros(size + ROWS, dtype)
    scores, weights = np.empty((ROWS, layout.across.shape[1]), dtype), np.empty(size)
    n = done = 0
    for chunk, rows in parts:
        taken, at = np.arange(chunk.n_rows) if rows is None else rows, 0
        while at < taken.size:
            part = taken[at : at + size - n]
            _gather(chunk, part, shift, X, n)
            weights[n : n + part.size] = 1.0 if chunk.weights is None else chunk.weights[part]
            at, n, done = at + part.size, n + part.size, done + part.size
            if n == size or done == n_rows:
                block = slice(done - n, done)
                found = (labels[block], squares[block], sums, counts)
                inertia += float(add_rows(X, n, weights, *layout, norms, scores, *found))
                n = 0
    sums += counts[:, None] * shift
    return Statistics(labels, squares, sums, counts, inertia)


def whole(chunks: Sequence[Chunk]) -> Parts:
    """Return parts with all rows of the chunks."""
    return [(chunk, None) for chunk in chunks]


def dense_rows(chunk: Chunk, rows: NDArray[np.int64], d: int) -> F64:
    """Return rows of a chunk, new, (n, d), float64."""
    X = np.empty((rows.size, d))
    _gather(chunk, rows, np.zeros(d), X, 0)
    return X


def _gather(chunk: Chunk, rows: NDArray[np.int64], shift: F64, X: NDArray[Any], start: int) -> None:
    kind = chunk.layout.kind
    if kind == "sequence" or chunk.layout.n_columns > shift.size:
        raise ConfigError(
            f"algorithm.problem is 'kmeans' and chunk {chunk.id} is {kind} with "
            f"{chunk.layout.n_columns} columns, wanted numbers in {shift.size} columns; "
            "read the data as numbers"
        )
    if kind == "dense":
        gather_dense(chunk.values, rows, shift, X, start)
    else:
        gather_csr(chunk.indptr, chunk.indices, chunk.values, rows, shift, X, start)
