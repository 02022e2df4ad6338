"""Explicit centring of columns whose mean is large compared with their standard deviation.

``sum x^2 - n mean^2`` loses all digits for a column whose mean is 1e8 times its standard deviation,
and so do inner products. Dense columns are centred entry by entry. Of sparse columns only those
with a relatively small variance are; they are nearly dense anyway: by Cauchy and Schwarz, the
rows without an entry have at most the share of the weight that the variance has of the mean square.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

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
