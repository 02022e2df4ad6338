"""The member's half of the bound: statistics of its rows, summed over bins.

Second moments have an upper bound that costs no more than a pass over the rows. For every row x and
every positive vector p, Cauchy's inequality gives
``(x.w)^2 <= (sum_k |x_k| p_k) (sum_j |x_j| w_j^2 / p_j)``. Summed over rows,

    ``sum_i s_i (x_i.w)^2 <= sum_j D_j w_j^2``,

    ``D_j = sum_i s_i |x_ij| (sum_k |x_ik| p_k) / p_j``,

for any p > 0, even one that differs from chunk to chunk. Equality holds where w is proportional to
p and the terms of each product agree in sign. D adds up over chunks without loss, and columns that
a chunk lacks cost nothing.

On reuters21578, ``p = |v0| + rms(v0)`` brings the certified gap to 2 and 2.3 times the true one; it
is 4 and 6 times with exact eigenvalues, which would be one number instead of D.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from elasticml.algorithms.cocoa import frozen_loss_bound as bound
from elasticml.algorithms.cocoa.chunk_pointers import set_columns, stored_of
from elasticml.algorithms.cocoa.frozen_loss_bound import BoundPlan
from elasticml.algorithms.linear.gram import add_pairs
from elasticml.algorithms.scaling import Columns
from elasticml.arrays import F64, I64
from elasticml.compiled import kernel
from elasticml.data.chunks.chunk import Chunk

#: Stored values of the rows that are one matrix.
_VALUES: Final = 2**22


def matrices(chunk: Chunk) -> Iterator[tuple[slice, Any]]:
    """Yield consecutive rows of a chunk, and their float64 matrix: an array, or sparse."""
    layout, n = chunk.layout, chunk.n_rows
    step = max(1, _VALUES * n // max(1, stored_of(chunk)))
    for first in range(0, n, step):
        rows = slice(first, min(first + step, n))
        if layout.kind == "dense":
            yield rows, chunk.values[rows].astype(np.float64, copy=False)
            continue
        if layout.kind == "sequence":
            each = set_columns(chunk.codes[rows], layout)
            indptr, indices = np.arange(len(each) + 1) * each.shape[1], each.ravel()
        else:
            ends = chunk.indptr[first : rows.stop + 1]
            indptr, indices = ends - ends[0], chunk.indices[ends[0] : ends[-1]]
        values = np.ones(indices.size)
        if layout.kind == "csr":
            values = chunk.values[ends[0] : ends[-1]].astype(np.float64, copy=False)
        shape = (indptr.size - 1, layout.n_columns)
        yield rows, scipy.sparse.csr_array((values, indices, indptr), shape=shape)


def row_maxima(chunk: Chunk, rows: Columns) -> F64:
    """Bound the rows' lengths, for one "max" exchange before the first statistics.

    Returns
    -------
    ndarray (2,)
        ``max |x~_i|``, and the largest reach, which bounds the terms of a row's products in any
        order of summation. Both exceed the exact value by at most 1e-9 of it.
    """
    each = [np.max(_squares(matrix, rows), axis=1) for _, matrix in matrices(chunk)]
    most: F64 = np.sqrt(np.max([np.zeros(2), *each], axis=0)) * (1.0 + 1e-12)
    return most


def _squares(matrix: Any, rows: Columns) -> tuple[F64, F64]:
    """``|x~_i|^2`` and the squared reach of every row, each (n,).

    The reach is ``2 (|f x|^2 + |f shift|^2 + constant^2)``: the absolute terms of a product
    ``x~.w`` sum to at most ``reach * |w|``.
    """
    factor, shift, d = rows.factor, rows.shift, matrix.shape[1]
    f2 = np.ones(rows.n_columns) if factor is None else factor * factor
    scaled = (matrix**2) @ f2[:d]
    constant = rows.intercept * rows.constant**2
    if shift is None:
        return scaled + constant, 2.0 * (scaled + constant)
    kept = float((shift * shift) @ f2)
    cross = matrix @ (shift * f2)[:d]
    reach = 2.0 * (scaled + kept + constant)
    # A difference: add back the largest possible rounding error.
    return np.maximum(scaled - 2.0 * cross + kept, 0.0) + constant + 1e-12 * reach, reach


def add_statistics(
    plan: BoundPlan,
    rows: Columns,
    sent: F64,
    chunk: Chunk,
    targets: F64,
    weights: F64 | None,
    margins: F64,
    out: Mapping[str, F64],
) -> None:
    """Add a chunk's statistics to ``out``, arrays of the shapes ``plan.shapes``.

    Parameters
    ----------
    sent : ndarray (n_sent,)
        The model v0 in sent coordinates.
    targets, margins : ndarray (n,)
        Margins are ``x~_i.v0``, in classification times the target.
    weights : ndarray (n,), optional
        Nonnegative; ones by default.
    """
    n, n_bins, is_folded = chunk.n_rows, plan.n_bins, plan.loss.is_classification
    if n == 0:
        return
    moments, vectors = out[bound.MOMENTS], out[bound.VECTORS]
    s = np.ones(n) if weights is None else weights
    keys = plan.loss.terms.bound_key(margins)
    losses, slopes = keys, keys
    if not plan.has_kink:
        # Margins are folded already: labels count as +1.
        losses, slopes = plan.loss.each(margins, np.ones(n) if is_folded else targets)
    at = np.searchsorted(np.array(plan.edges), keys, side="right").astype(np.int64)
    signed = s * targets if is_folded else s
    for part, matrix in matrices(chunk):
        bins, c, slope = at[part], signed[part], slopes[part]
        _add_moments(plan, rows, matrix, bins, s[part], losses[part], slope, moments)
        if plan.has_kink:
            _add_rows(matrix, bins, c, rows.has_offset, vectors)
            _add_rows(matrix, bins + n_bins, c * slope, rows.has_offset, vectors)
        else:
            _add_rows(matrix, np.zeros_like(bins), c * slope, rows.has_offset, vectors)
        if plan.form == "matrix":
            _add_products(matrix, rows, bins, s[part], out[bound.PRODUCTS])
        else:
            factor = replace(rows, shift=None).down(np.ones(rows.n_model))
            profile = positive_profile(sent, factor)
            add_diagonals(matrix, bins, s[part], profile, rows.has_offset, out[bound.PRODUCTS])


def _add_moments(
    plan: BoundPlan, rows: Columns, matrix: Any, at: I64, s: F64, losses: F64, slope: F64, out: F64
) -> None:
    squares, reach = _squares(matrix, rows)
    for column, values in (
        (bound.WEIGHT, s),
        (bound.FIRST, s * losses),
        (bound.SECOND, s * slope * slope),
        (bound.TRACE, s * squares),
        (bound.REACH, s * reach),
        (bound.ROWS, np.ones(at.size)),
    ):
        out[:, column] += np.bincount(at, values, plan.n_bins)


def _add_rows(
    matrix: Any, at: I64, c: F64, has_offset: bool, out: F64, inverse: F64 | None = None
) -> None:
    """Add ``c_i x_i``, times ``inverse``, to the rows ``at_i`` of ``out``; the offset adds c."""
    d = matrix.shape[1]
    if isinstance(matrix, np.ndarray):
        order = np.argsort(at, kind="stable")
        starts = np.searchsorted(at[order], np.arange(len(out) + 1))
        binned = scipy.sparse.csr_array((c[order], order, starts), shape=(len(out), at.size))
        sums = binned @ matrix
        out[:, :d] += sums if inverse is None else sums * inverse[:d]
    else:
        _add_sparse(matrix.indptr, matrix.indices, matrix.data, at, c, inverse, out)
    if has_offset:
        total = np.bincount(at, c, len(out))
        out[:, -1] += total if inverse is None else total * inverse[-1]


def _add_products(matrix: Any, rows: Columns, at: I64, s: F64, out: F64) -> None:
    """Add ``s_i x_i x_i^T``, packed, to the rows' bins."""
    n, d, sums = rows.n_sent, matrix.shape[1], np.zeros((len(out), rows.n_sent))
    if rows.has_offset:
        _add_rows(matrix, at, s, True, sums)
    order = np.argsort(at.astype(np.int16), kind="stable")  # a radix sort
    ends = np.searchsorted(at[order], np.arange(len(out) + 1))
    matrix, s, full = matrix[order], s[order], np.zeros((n, n))
    lower = np.flatnonzero(np.tri(n, dtype=np.bool_))
    for b in np.unique(at).tolist():
        own = slice(ends[b], ends[b + 1])
        if isinstance(matrix, np.ndarray):
            full[:d, :d] = (matrix[own].T * s[own]) @ matrix[own]
        else:
            # Columns of rows ascend: all products are in the lower triangle, half of the squares.
            full[:] = 0.0
            indptr = matrix.indptr[own.start : own.stop + 1]
            add_pairs(indptr, matrix.indices, matrix.data, s[own], full)
            full.flat[:: n + 1] *= 2.0
        if rows.has_offset:
            full[-1] = sums[b]
        out[b] += full.take(lower)


# Upper bounds of second moments.


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


def _sizes(matrix: Any) -> Any:
    """Return the absolute values of a matrix; ``abs`` would copy a sparse one's indices."""
    if isinstance(matrix, np.ndarray):
        return np.abs(matrix)
    arrays = np.abs(matrix.data), matrix.indices, matrix.indptr
    return scipy.sparse.csr_array(arrays, shape=matrix.shape)


def add_diagonals(matrix: Any, at: I64, weights: F64, p: F64, has_offset: bool, out: F64) -> None:
    """Add each bin's D to that bin's row of ``out``.

    Parameters
    ----------
    matrix : ndarray or sparse array (n, k)
    at : ndarray (n,), int64
        Bin of each row.
    weights : ndarray (n,)
    p, out : ndarray (d,), (bins, d)
        In sent coordinates, the offset last.
    """
    sizes = _sizes(matrix)
    c = weights * (sizes @ p[: matrix.shape[1]] + (p[-1] if has_offset else 0.0))
    _add_rows(sizes, at, c, has_offset, out, 1.0 / p)


@kernel
def _add_sparse(
    indptr: NDArray[Any],
    indices: NDArray[Any],
    values: F64,
    at: I64,
    coefficients: F64,
    inverse: F64 | None,
    out: F64,
) -> None:
    for i in range(at.size):
        c, row = coefficients[i], out[at[i]]
        if c != 0.0:
            for j in range(indptr[i], indptr[i + 1]):
                column = np.uint32(indices[j])
                if inverse is None:
                    row[column] += c * values[j]
                else:
                    row[column] += c * values[j] * inverse[column]
