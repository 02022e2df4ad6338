"""Nearest centres of rows of chunks, sums by centre, and squared distances, for K-Means jobs.

Rows are gathered into blocks, and found as :mod:`elasticml.algorithms.async_sgd.checked_singles`
does. Every compiled loop is single-threaded and releases the GIL. Sums by centre keep the order of
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.checked_singles import (
    Block,
    Layout,
    empty_block,
    lay_out,
    middle_of,
    nearest_checked,
    squared_distance,
)
from elasticml.arrays import F64, I32, I64
from elasticml.compiled import kernel
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import ConfigError

#: float64 or float32.
Real = NDArray[np.float64] | NDArray[np.float32]


@kernel
def gather_dense(values: Real, rows: I64, out: F64, start: int) -> None:
    """Write ``values[rows]`` into ``out[start:]``; rows may have fewer columns."""
    width = values.shape[1]
    for i in range(rows.size):
        row = rows[i]
        for j in range(width):
            out[start + i, j] = values[row, j]
        for j in range(width, out.shape[1]):
            out[start + i, j] = 0.0


@kernel
def gather_csr(indptr: I32, indices: I32, values: Real, rows: I64, out: F64, start: int) -> None:
    """Write the rows of a CSR chunk densely into ``out[start:]``.

    ``values`` is empty for binary chunks: all stored values are 1.
    """
    for i in range(rows.size):
        row = rows[i]
        for j in range(out.shape[1]):
            out[start + i, j] = 0.0
        for at in range(indptr[row], indptr[row + 1]):
            out[start + i, indices[at]] += values[at] if values.size > 0 else 1.0


@kernel
def add_rows(
    n: int, layout: Layout, block: Block, weights: F64, squares: F64, sums: F64, counts: F64
) -> float:
    """Find the nearest centres of the first ``n`` rows, and add the rows to the centres' sums.

    Writes the squared distances, and returns their weighted sum, unless ``squares`` is empty.
    """
    nearest_checked(n, layout, block)
    X, labels, centres, total = block.X, block.labels, layout.centres, 0.0
    for i in range(n):
        k, weight = labels[i], weights[i]
        counts[k] += weight
        for j in range(X.shape[1]):
            sums[k, j] += weight * X[i, j]
        if squares.size > 0:
            squares[i] = squared_distance(X[i], centres[k])
            total += weight * squares[i]
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

    Without ``distances`` there are no squares and no inertia.
    """
    n_centres, d = centres.shape
    layout = lay_out(centres, middle_of(centres), np.float32)
    n_rows = sum(chunk.n_rows if rows is None else rows.size for chunk, rows in parts)
    labels, squares = np.empty(n_rows, np.int32), np.empty(n_rows if distances else 0)
    sums, counts, inertia = np.zeros((n_centres, d)), np.zeros(n_centres), 0.0
    # Rows are gathered into blocks across chunks; the kernel scores several at a time.
    size = min(_BLOCK_ROWS_MAX, max(32, _BLOCK_BYTES // (8 * d)), max(1, n_rows))
    block, weights = empty_block(size, n_centres, d), np.empty(size)
    n = done = 0
    for chunk, rows in parts:
        taken, at = np.arange(chunk.n_rows) if rows is None else rows, 0
        while at < taken.size:
            part = taken[at : at + size - n]
            _gather(chunk, part, block.X, n)
            weights[n : n + part.size] = 1.0 if chunk.weights is None else chunk.weights[part]
            at, n, done = at + part.size, n + part.size, done + part.size
            if n == size or done == n_rows:
                some = slice(done - n, done)
                inertia += float(add_rows(n, layout, block, weights, squares[some], sums, counts))
                labels[some] = block.labels[:n]
                n = 0
    return Statistics(labels, squares, sums, counts, inertia)


def whole(chunks: Sequence[Chunk]) -> Parts:
    """Return parts with all rows of the chunks."""
    return [(chunk, None) for chunk in chunks]


def dense_rows(chunk: Chunk, rows: NDArray[np.int64], d: int) -> F64:
    """Return rows of a chunk, new, (n, d), float64."""
    X = np.empty((rows.size, d))
    _gather(chunk, rows, X, 0)
    return X


def _gather(chunk: Chunk, rows: NDArray[np.int64], X: F64, start: int) -> None:
    kind, d = chunk.layout.kind, X.shape[1]
    if kind == "sequence" or chunk.layout.n_columns > d:
        raise ConfigError(
            f"algorithm.problem is 'kmeans' and chunk {chunk.id} is {kind} with "
            f"{chunk.layout.n_columns} columns, wanted numbers in {d} columns; "
            "read the data as numbers"
        )
    if kind == "dense":
        gather_dense(chunk.values, rows, X, start)
    else:
        gather_csr(chunk.indptr, chunk.indices, chunk.values, rows, X, start)
