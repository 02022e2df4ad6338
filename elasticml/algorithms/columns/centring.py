"""Columns far from zero next to how much they vary, moved to where they can be told apart.

In ``sum x^2 - n mean^2`` nothing is left of a column whose mean is 1e8 times its deviation, and so
it is with inner products. Dense columns are centred entry by entry; of sparse ones those that
hardly vary are, which are stored nearly whole anyway: by Cauchy and Schwarz the rows without an
entry have at most the share of the weight that the variance has of the mean square.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

#: Share of a sparse column's mean square below which its variance is taken of moved entries.
CLOSE: Final = 1e-6


def moved(X: Any, shifts: F64, is_flat: NDArray[np.bool_] | None = None) -> Any:
    """Return a copy of the columns less their shifts, in float64.

    Parameters
    ----------
    X : ndarray or sparse in CSC format (n, d)
        Columns of a sparse one whose shift is not 0 are stored whole.
    shifts : ndarray (d,)
    is_flat : ndarray (d,), bool, optional
        Moved columns of which only rounding is left; they become zeros.
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
