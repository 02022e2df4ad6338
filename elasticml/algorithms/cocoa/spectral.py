"""Upper bounds of second moments that cost no more than a pass over the rows.

For every row x and every positive vector p, Cauchy's inequality gives
``(x.w)^2 <= (sum_k |x_k| p_k) (sum_j |x_j| w_j^2 / p_j)``. Summed over rows,

    ``sum_i s_i (x_i.w)^2 <= sum_j D_j w_j^2``,

    ``D_j = sum_i s_i |x_ij| (sum_k |x_ik| p_k) / p_j``,

for any p > 0, even one that differs from chunk to chunk. Equality holds where w is proportional to
p and the terms of each product agree in sign. ``max_j D_j`` (after a change of scale) bounds the
largest eigenvalue, with p = 1 as ``|X|_1 |X|_inf`` does. Unlike an eigenvalue it adds up over
chunks without loss, and columns that a chunk lacks cost nothing. A power iteration would estimate
the eigenvalue from below, which is no bound.

On reuters21578, ``p = |v0| + rms(v0)`` brings the certified gap from 4 and 6 times the true one
(exact eigenvalues) to 2 and 2.3 times.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.bound_kernels import csr_absolute, csr_diagonals, csr_largest
from elasticml.data.chunk import Chunk
from elasticml.data.products import make_adjoint, make_forward

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

#: More than the relative rounding error of sums over a chunk's rows and columns.
ROUNDED: Final = 1e-9


def positive_profile(sent: F64, factor: F64) -> F64:
    """Return the p for a model: its absolute value in every coordinate, bounded away from zero.

    ``p_j = |w_j| + factor_j rms(w / factor)``; ``factor`` for a model of zeros.

    Parameters
    ----------
    sent : ndarray (d,)
        Model in sent coordinates.
    factor : ndarray (d,)
        Positive; the factors of the columns.
    """
    size = float(np.sqrt(np.mean((sent / factor) ** 2)))
    if not (np.isfinite(size) and size > 0.0):
        return factor.copy()
    profile: F64 = np.abs(sent) + size * factor
    return profile


def absolute_rows(chunk: Chunk, p: F64, has_offset: bool) -> F64:
    """Return ``sum_k |x_ik| p_k`` of every row, (n,); an offset appends a one to x."""
    out = np.empty(chunk.n_rows)
    kind = chunk.layout.kind
    if kind == "dense":
        out[:] = np.abs(chunk.values).astype(np.float64) @ p[: chunk.values.shape[1]]
    elif kind == "csr":
        csr_absolute(chunk.indptr, chunk.indices, chunk.values, p, out)
    else:
        columns = p[: p.size - has_offset]
        make_forward(chunk.layout, columns)(chunk, out)
    return out + p[-1] if has_offset else out


def add_diagonals(chunk: Chunk, at: I64, weights: F64, p: F64, has_offset: bool, out: F64) -> None:
    """Add each bin's D to that bin's row of ``out``.

    Parameters
    ----------
    at : ndarray (n,), int64
        Bin of each row.
    weights : ndarray (n,)
    p, out : ndarray (d,), (bins, d)
        In sent coordinates, the offset last.
    """
    c = weights * absolute_rows(chunk, p, has_offset)
    kind = chunk.layout.kind
    inverse = 1.0 / p
    d = p.size - has_offset
    if kind == "csr" or kind == "binary_csr":
        csr_diagonals(chunk.indptr, chunk.indices, chunk.values, at, c, inverse, out)
    else:
        for b in np.unique(at).tolist():
            chosen = at == b
            if kind == "dense":
                k = chunk.values.shape[1]
                sums = c[chosen] @ np.abs(chunk.values[chosen]).astype(np.float64)
                out[b, :k] += sums * inverse[:k]
            else:
                adjoint, sums = make_adjoint(chunk.layout, d), np.zeros(d)
                adjoint.add(chunk, np.where(chosen, c, 0.0))
                adjoint.result(sums)
                out[b, :d] += sums * inverse[:d]
    if has_offset:
        out[:, -1] += np.bincount(at, c, out.shape[0]) * inverse[-1]


def largest_eigenvalues(
    chunk: Chunk, at: I64, weights: F64, factor: F64, constant: float, n_bins: int
) -> F64:
    """Bound the largest eigenvalue of each bin's ``sum s_i x~_i x~_i^T``, (n_bins,).

    For columns that are not shifted. Sparse rows: see :func:`csr_largest`; others:
    ``max_j sum_i s_i |x~_ij| |x~_i|_1``.

    Parameters
    ----------
    factor : ndarray (n_columns,)
    constant : float
        Value of the intercept's column; 0 without one.
    """
    out = np.zeros(n_bins)
    if chunk.layout.kind in ("csr", "binary_csr"):
        order = np.argsort(at, kind="stable")
        starts = np.searchsorted(at[order], np.arange(n_bins + 1))
        # Fresh zeros: only the pages that the chunk's columns touch are allocated.
        p, w = np.zeros(factor.size), np.zeros(factor.size)
        arrays = (chunk.indptr, chunk.indices, chunk.values)
        csr_largest(*arrays, order, starts, weights, factor, constant, p, w, out)
        return out * (1.0 + ROUNDED)
    has_offset = constant != 0.0
    scale = np.append(factor, constant) if has_offset else factor
    diagonals = np.zeros((n_bins, scale.size))
    add_diagonals(chunk, at, weights, scale, has_offset, diagonals)
    largest: F64 = np.max(diagonals * scale**2, axis=1) * (1.0 + ROUNDED)
    return largest
