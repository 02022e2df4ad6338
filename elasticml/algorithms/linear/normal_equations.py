"""Normal equations of sparse rows in CSR, without a copy in CSC.

For very sparse rows the products of a row's entries are added one by one, otherwise by dense
blocks: a block stays in the L2 cache between being written and multiplied.

Source: the normal equations, ``sum_i s_i (x_i - m)(x_i - m)^T``. The sum over centred rows is the
uncentred one minus ``S m m^T``; it is rejected if cancellation leaves too little of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from elasticml.algorithms.linear.gram import BLOCK_BYTES, CLOSE
from elasticml.arrays import F64, I32
from elasticml.compiled import kernel
from elasticml.data.chunks.kernels import Pointers, csr_adjoint
from elasticml.data.chunks.products import read_only

#: Cost of a product of two sparse entries, in products of dense ones.
SPARSE_COST: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Equations:
    """``G w = linear``, over centred rows and targets if there is an unpenalised intercept."""

    #: (d, d)
    G: F64
    #: (d,)
    linear: F64
    #: (d,) weighted means of the columns and of the targets; 0 without an intercept.
    means: F64
    y_mean: float


def equations(X: Any, y: F64, weights: F64 | None, *, centred: bool) -> Equations | None:
    """Return the normal equations, or None if they have to be computed from columns.

    This is so if X is not in CSR format, or if sums of squares are unusable: they overflow
    float64, or the variance of a column is too small next to its mean.

    Parameters
    ----------
    X : ndarray or sparse (n, d), float64
    y : ndarray (n,)
    weights : ndarray (n,), optional
        None for ones.
    centred : bool
        There is an unpenalised intercept.

    Returns
    -------
    Equations or None

    Error:  centred sums have at most ``1 / CLOSE`` times the rounding error of uncentred ones.
    """
    if getattr(X, "format", None) != "csr" or X.indices.dtype != np.int32:
        return None
    s = np.ones(X.shape[0]) if weights is None else np.ascontiguousarray(weights)
    with np.errstate(over="ignore", invalid="ignore"):
        G = _inner_products(X, s)
        squares, total = np.diag(G), float(s.sum())
        means, y_mean = np.zeros(X.shape[1]), 0.0
        if centred:
            means, y_mean = _adjoint(X, s) / total, float(s @ y) / total
        r = y - y_mean
        yy = float((s * r) @ r)
        if not (np.isfinite(squares).all() and np.isfinite(yy)):
            return None
        if centred:
            off = total * means**2
            if np.any((squares - off <= CLOSE * off) & (means != 0.0)):
                return None
            G -= total * np.outer(means, means)
        r *= s
    return Equations(G=G, linear=_adjoint(X, r) - means * r.sum(), means=means, y_mean=y_mean)


def _adjoint(X: Any, c: F64) -> F64:
    out = np.zeros(X.shape[1])
    csr_adjoint(*_arrays(X), read_only(c), out)
    return out


def _arrays(X: Any) -> tuple[Pointers, I32, F64]:
    return read_only(X.indptr), read_only(X.indices), read_only(X.data)


def _inner_products(X: Any, s: F64) -> F64:
    """Return ``X.T @ diag(s) @ X``, (d, d)."""
    n, d = X.shape
    stored = np.diff(X.indptr).astype(np.float64)
    G = np.zeros((d, d))
    if float(stored @ stored) * SPARSE_COST <= float(n) * d * d:
        add_pairs(*_arrays(X), read_only(s), G)
        G += G.T
        return G
    rows = max(64, BLOCK_BYTES // (8 * max(1, d)))
    room, roots = np.empty((min(rows, n), d)), np.sqrt(s)
    for first in range(0, n, rows):
        block = room[: min(rows, n - first)]
        fill_rows(*_arrays(X), roots, first, block)
        # BLAS needs half the work for the product of a block's transpose and the block itself.
        G += block.T @ block
    return G


@kernel
def add_pairs(indptr: Pointers, indices: I32, values: F64, weights: F64, G: F64) -> None:
    """Add to ``G`` (d, d) half of the sum of the rows' products: the rest is its transpose."""
    for i in range(weights.size):
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
