"""Gram matrices of moderately sparse columns, and explicit centring of columns with large means."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.arrays import F64, I32, I64
from elasticml.compiled import kernel

# Explicit centring of columns whose mean is large compared with their standard deviation.
#
# ``sum x^2 - n mean^2`` loses all digits for a column whose mean is 1e8 times its standard
# deviation, and so do inner products. Dense columns are centred entry by entry. Of sparse columns
# only those with a relatively small variance are; they are nearly dense anyway: by Cauchy and
# Schwarz, the rows without an entry have at most the share of the weight that the variance has of
# the mean square.


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


#: Bytes of a block, which stays in the L2 cache between being written and multiplied.
BLOCK_BYTES: Final = 2**18
#: Cost of a multiplication of sparse entries, in multiplications of dense ones.
_SPARSE_COST: Final = 80


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
