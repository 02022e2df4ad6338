"""Gram matrices of moderately sparse columns, by dense blocks of rows."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.kernels import kernel

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]

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
