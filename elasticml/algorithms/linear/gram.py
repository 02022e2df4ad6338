"""Gram matrices of sparse rows and columns, and explicit centring of columns with large means.

For very sparse rows the products of a row's entries are added one by one. Otherwise products are of
dense blocks: a block stays in the L2 cache between being written and multiplied.

``sum x^2 - n mean^2`` loses all digits for a column whose mean is 1e8 times its standard deviation,
and so do inner products. Dense columns are centred entry by entry. Of sparse columns only those
with a relatively small variance are; they are nearly dense anyway: by Cauchy and Schwarz, the rows
without an entry have at most the share of the weight that the variance has of the mean square.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.arrays import F64, I32, I64
from elasticml.compiled import kernel
from elasticml.data.chunks.kernels import Pointers

#: A sparse column is centred explicitly if its variance is below this share of its mean square.
CLOSE: Final = 1e-6


def moved(X: Any, shifts: F64, is_flat: NDArray[np.bool_] | None = None) -> Any:
    """Return a copy of the columns minus their shifts, in float64.

    Parameters
    ----------
    X : ndarray or sparse in CSC format (n, d)
        Sparse columns with a non-zero shift become dense.
    shifts : ndarray (d,)
    is_flat : ndarray (d,), bool, optional
        Shifted columns that are constant up to rounding; they become zero.
    """
    is_moved = shifts != 0.0
    is_left = is_moved if is_flat is None else is_moved & ~is_flat
    if not hasattr(X, "indptr"):
        dense: F64 = np.array(X, np.float64, order="F")
        dense -= shifts
        dense[:, is_moved & ~is_left] = 0.0
        return dense
    n, stored = int(X.shape[0]), np.diff(X.indptr)
    sizes = np.where(is_moved, n * is_left, stored).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    indices, values = np.empty(indptr[-1], X.indices.dtype), np.empty(indptr[-1])
    to, of = np.repeat(~is_moved, sizes), np.repeat(~is_moved, stored)
    indices[to], values[to] = X.indices[of], X.data[of]
    for j in np.flatnonzero(is_left):
        own = slice(X.indptr[j], X.indptr[j + 1])
        whole = np.full(n, -shifts[j])
        np.add.at(whole, X.indices[own], X.data[own])
        indices[indptr[j] : indptr[j + 1]], values[indptr[j] : indptr[j + 1]] = np.arange(n), whole
    return type(X)((values, indices, indptr.astype(X.indptr.dtype)), shape=X.shape)


# Gram matrices of moderately sparse columns, by dense blocks of rows.


#: Bytes of a block.
BLOCK_BYTES: Final = 2**18
#: Cost of a multiplication of sparse entries, in multiplications of dense ones: by products of
#: sparse matrices, and by adding the products of a row's entries.
_SPARSE_COST: Final = 80
_PAIR_COST: Final = 16


def pays(indptr: I32, n: int, one: I64, other: I64) -> bool:
    """Return whether dense blocks cost less than a product of sparse matrices.

    Parameters
    ----------
    indptr : ndarray (d + 1,)
        CSC pointers of the columns, which have n rows.
    one, other : ndarray
        The columns to multiply.
    """
    stored = np.diff(indptr)
    pairs = float(stored[one].sum()) * float(stored[other].sum())
    return pairs * _SPARSE_COST >= float(n) ** 2 * one.size * other.size


def products(
    indptr: I32, indices: I32, values: F64, n: int, one: I64, other: I64
) -> NDArray[np.float64]:
    """Return ``X[:, one].T @ X[:, other]``; the row numbers of each column must be sorted.

    Parameters
    ----------
    indptr, indices, values : ndarray
        X (n, d) in CSC format.
    """
    is_same = np.array_equal(one, other)
    rows = max(64, BLOCK_BYTES // (8 * max(1, one.size + (0 if is_same else other.size))))
    G = np.zeros((one.size, other.size))
    parts: list[tuple[I64, Any, F64]] = [
        (features, indptr[features].astype(np.int64), np.empty((features.size, rows)))
        for features in ((one,) if is_same else (one, other))
    ]
    for first in range(0, n, rows):
        blocks = []
        for features, places, room in parts:
            block = room[:, : min(rows, n - first)]
            block[:] = 0.0
            _fill(indptr, indices, values, features, first, places, block)
            blocks.append(block)
        # BLAS needs half the work for the product of a block and its own transpose.
        G += blocks[0] @ blocks[-1].T
    return G


@kernel
def _fill(
    indptr: I32, indices: I32, values: F64, features: I64, first: int, places: I64, block: F64
) -> None:
    """Write the rows from ``first`` on into ``block`` (columns, rows), and advance ``places``."""
    stop = first + block.shape[1]
    for k in range(features.size):
        at, end = places[k], indptr[features[k] + 1]
        while at < end and indices[at] < stop:
            block[k, indices[at] - first] = values[at]
            at += 1
        places[k] = at


# Gram matrices of sparse rows.


def adds_pairs(stored: NDArray[Any], n: int, d: int) -> bool:
    """Return whether adding the products of rows' entries costs less than dense blocks.

    Parameters
    ----------
    stored : ndarray
        Numbers of entries of the rows that count, of n.
    """
    stored = stored.astype(np.float64)
    return float(stored @ stored) * _PAIR_COST <= float(n) * d * d


def of_rows(indptr: Pointers, indices: I32, values: F64, c: F64, d: int) -> F64:
    """Return ``X.T @ diag(c) @ X``, (d, d), for rows (n, d) in CSR format and c (n,) from 0 on.

    Columns need not be sorted, and entries that are stored twice count as their sum.
    """
    G = np.zeros((d, d))
    if adds_pairs(np.diff(indptr)[c != 0.0], c.size, d):
        add_pairs(indptr, indices, values, c, G)
        G += G.T
        return G
    rows = max(64, BLOCK_BYTES // (8 * max(1, d)))
    room, roots = np.empty((min(rows, c.size), d)), np.sqrt(c)
    for first in range(0, c.size, rows):
        block = room[: min(rows, c.size - first)]
        fill_rows(indptr, indices, values, roots, first, block)
        # BLAS needs half the work for the product of a block's transpose and the block itself.
        G += block.T @ block
    return G


@kernel
def add_pairs(indptr: Pointers, indices: I32, values: F64, weights: F64, G: F64) -> None:
    """Add to ``G`` (d, d) half of the sum of the rows' products: the rest is its transpose."""
    for i in range(weights.size):
        if weights[i] == 0.0:
            continue
        first, end = np.uint64(indptr[i]), np.uint64(indptr[i + 1])
        for j in range(first, end):
            c, row = weights[i] * values[j], G[np.uint32(indices[j])]
            for k in range(first, j):
                row[np.uint32(indices[k])] += c * values[k]
            row[np.uint32(indices[j])] += 0.5 * c * values[j]


@kernel
def fill_rows(
    indptr: Pointers, indices: I32, values: F64, roots: F64, first: int, block: F64
) -> None:
    """Write the rows from ``first`` on, times ``roots``, into ``block`` (rows, d)."""
    block[:] = 0.0
    for i in range(block.shape[0]):
        root = roots[first + i]
        for j in range(indptr[first + i], indptr[first + i + 1]):
            # Duplicate entries are summed.
            block[i, indices[j]] += root * values[j]
