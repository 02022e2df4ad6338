"""The member's half of the bound: its chunks' statistics, summed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from elasticml.algorithms.cocoa import frozen_loss_bound, second_moment_bounds
from elasticml.algorithms.cocoa import second_moment_bounds as kernels
from elasticml.algorithms.cocoa.frozen_loss_bound import BoundPlan
from elasticml.arrays import F64, I64
from elasticml.data.chunks.chunk import Chunk, Layout, binary_csr_chunk, csr_chunk, dense_chunk
from elasticml.data.chunks.kernels import csr_forward
from elasticml.data.chunks.ngrams import first_columns, indices_of_letters, letters_of_codes
from elasticml.data.chunks.products import make_adjoint, make_forward
from elasticml.ids import ChunkId
from elasticml.objectives.loss_kernels import loss_named


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMap:
    """The rows as the algorithm sees them: ``x~ = ((x - shift) * factor, constant)``.

    A model is *sent* in the chunks' own coordinates: ``factor * v``. With a constant or a shift it
    has one more coordinate at the end, the offset that is added to every row's margin.
    """

    #: Of the data set.
    layout: Layout
    n_columns: int
    #: (n_columns,), positive.
    factor: F64 | None = None
    #: (n_columns,).
    shift: F64 | None = None
    #: Value of the intercept's column (``intercept_scaling``); 0 without an intercept.
    constant: float = 0.0

    @property
    def has_offset(self) -> bool:
        """Whether the sent model has a last coordinate that belongs to no column."""
        return self.constant != 0.0 or self.shift is not None

    @property
    def n_sent(self) -> int:
        """Coordinates of a sent model."""
        return self.n_columns + self.has_offset

    def sent_factor(self) -> F64:
        """Return the factors from trained to sent coordinates, (n_sent,)."""
        columns = np.ones(self.n_columns) if self.factor is None else self.factor
        if not self.has_offset:
            return columns
        return np.append(columns, self.constant or 1.0)


def row_maxima(chunk: Chunk, rows: RowMap) -> F64:
    """Bound the rows' lengths, for one "max" exchange before the first statistics.

    Returns
    -------
    ndarray (2,)
        ``max |x~_i|``, and the largest reach, which bounds the terms of a row's products in any
        order of summation. Both exceed the exact value by at most 1e-9 of it.
    """
    if chunk.n_rows == 0:
        return np.zeros(2)
    squares, reach = _squares(chunk, rows)
    most: F64 = np.sqrt(np.array([squares.max(), reach.max()])) * (1.0 + 1e-12)
    return most


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedChunk:
    """A chunk with the margins of its rows at the model v0."""

    chunk: Chunk
    #: (n,), -1 or +1; real for the squared loss.
    targets: F64
    #: (n,), ``y_i x~_i.v0``; for the squared loss ``x~_i.v0``.
    margins: F64
    #: (n,), nonnegative; None for ones.
    weights: F64 | None = None


def add_statistics(
    plan: BoundPlan, rows: RowMap, sent: F64, evaluated: EvaluatedChunk, out: Mapping[str, F64]
) -> None:
    """Add a chunk's statistics to ``out``, arrays of the shapes ``plan.shapes``.

    Parameters
    ----------
    sent : ndarray (n_sent,)
        The model v0 in sent coordinates.
    """
    if evaluated.chunk.n_rows == 0:
        return
    if plan.is_staged:
        staged = plan.zeros()
        _add(plan, rows, sent, evaluated, staged)
        for name, array in staged.items():
            out[name][...] += array
    else:
        _add(plan, rows, sent, evaluated, out)


def _add(
    plan: BoundPlan, rows: RowMap, sent: F64, evaluated: EvaluatedChunk, out: Mapping[str, F64]
) -> None:
    chunk, targets = evaluated.chunk, evaluated.targets
    s = np.ones(chunk.n_rows) if evaluated.weights is None else evaluated.weights
    # Margins are folded already: labels count as +1.
    own = np.ones(chunk.n_rows) if plan.loss.is_classification else targets
    keys = plan.loss.terms.bound_key(evaluated.margins)
    losses, slopes = keys, keys
    if not plan.has_kink:
        losses, slopes = plan.loss.each(evaluated.margins, own)
    at = np.searchsorted(np.array(plan.edges), keys, side="right").astype(np.int64)
    squares, reach = _squares(chunk, rows)
    moments = out[frozen_loss_bound.MOMENTS]

    def add(column: int, values: F64) -> None:
        moments[:, column] += np.bincount(at, values, plan.n_bins)

    add(frozen_loss_bound.WEIGHT, s)
    add(frozen_loss_bound.FIRST, s * losses)
    add(frozen_loss_bound.SECOND, s * slopes * slopes)
    add(frozen_loss_bound.TRACE, s * squares)
    add(frozen_loss_bound.REACH, s * reach)
    add(frozen_loss_bound.ROWS, np.ones(chunk.n_rows))
    moments[0, frozen_loss_bound.CHUNKS] += 1.0
    moments[0, frozen_loss_bound.SIZES] += float(chunk.n_rows) ** frozen_loss_bound.SIZE_POWER
    moments[:, frozen_loss_bound.SPECTRAL] += _spectral(plan, rows, chunk, at, s, squares)
    signs = targets if plan.loss.is_classification else np.ones(chunk.n_rows)
    _add_vectors(plan, rows, chunk, at, s * signs, slopes, out[frozen_loss_bound.VECTORS])
    if plan.form == "matrix":
        _add_products(rows, chunk, at, s, out[frozen_loss_bound.PRODUCTS])
    elif plan.form == "diagonal":
        profile = second_moment_bounds.positive_profile(sent, rows.sent_factor())
        second_moment_bounds.add_diagonals(
            chunk, at, s, profile, rows.has_offset, out[frozen_loss_bound.PRODUCTS]
        )


def warm_kernels() -> None:
    """Compile the loops for float64 chunks, or load their machine code from the cache."""
    one, id = np.ones(1), ChunkId("warm", 0, 0)
    for chunk in (
        dense_chunk(id, one, np.ones((1, 1))),
        csr_chunk(id, one, [0, 1], [0], one, 1),
        binary_csr_chunk(id, one, [0, 1], [0], 1),
    ):
        rows = RowMap(layout=chunk.layout, n_columns=1)
        forms: tuple[frozen_loss_bound.Form, ...] = ("matrix", "diagonal", "scalar")
        for form in forms:
            plan = BoundPlan(loss=loss_named("hinge"), n_sent=1, form=form, edges=())
            evaluated = EvaluatedChunk(chunk=chunk, targets=one, margins=one)
            add_statistics(plan, rows, one, evaluated, plan.zeros())


def _squares(chunk: Chunk, rows: RowMap) -> tuple[F64, F64]:
    """``|x~_i|^2`` and the squared reach of every row, each (n,).

    The reach is ``2 (|f x|^2 + |f shift|^2 + constant^2)``: the absolute terms of a product
    ``x~.w`` sum to at most ``reach * |w|``.
    """
    factor, shift = rows.factor, rows.shift
    f2 = np.ones(rows.n_columns) if factor is None else factor * factor
    scaled = _weighted_squares(chunk, f2)
    constant = rows.constant**2
    if shift is None:
        return scaled + constant, 2.0 * (scaled + constant)
    kept = float((shift * shift) @ f2)
    cross = np.empty(chunk.n_rows)
    make_forward(rows.layout, shift * f2)(chunk, cross)
    reach = 2.0 * (scaled + kept + constant)
    # A difference: add back the largest possible rounding error.
    return np.maximum(scaled - 2.0 * cross + kept, 0.0) + constant + 1e-12 * reach, reach


def _weighted_squares(chunk: Chunk, f2: F64) -> F64:
    """``sum_j f2_j x_ij^2`` of every row, (n,)."""
    out = np.empty(chunk.n_rows)
    kind = chunk.layout.kind
    if kind == "dense":
        values = chunk.values.astype(np.float64, copy=False)
        out[:] = (values * values) @ f2[: values.shape[1]]
    elif kind == "csr":
        values = chunk.values.astype(np.float64)
        csr_forward(chunk.indptr, chunk.indices, values * values, f2, out)
    else:
        make_forward(chunk.layout, f2)(chunk, out)
    return out


def _spectral(plan: BoundPlan, rows: RowMap, chunk: Chunk, at: I64, s: F64, squares: F64) -> F64:
    """Bounds of the bins' largest eigenvalues, (n_bins,): the trace where they are not needed."""
    trace = np.bincount(at, s * squares, plan.n_bins).astype(np.float64)
    if plan.form != "scalar" or rows.shift is not None:
        return trace
    factor = rows.sent_factor()[: rows.n_columns]
    most = second_moment_bounds.largest_eigenvalues(
        chunk, at, s, factor, rows.constant, plan.n_bins
    )
    return np.minimum(trace, most)


def _add_vectors(
    plan: BoundPlan, rows: RowMap, chunk: Chunk, at: I64, signed: F64, slopes: F64, out: F64
) -> None:
    """Add ``sum c_i x_i`` to the vectors; see ``BoundPlan.n_vectors``."""
    if not plan.has_kink:
        _add_rows(rows, chunk, np.zeros_like(at), signed * slopes, out)
    elif plan.form == "scalar":
        _add_rows(rows, chunk, np.zeros_like(at), np.where(slopes >= 0.0, signed, 0.0), out)
    else:
        _add_rows(rows, chunk, at, signed, out)
        _add_rows(rows, chunk, at + plan.n_bins, signed * slopes, out)


def _add_rows(rows: RowMap, chunk: Chunk, at: I64, c: F64, out: F64) -> None:
    kind = chunk.layout.kind
    if kind == "dense":
        kernels.dense_vectors(chunk.values, at, c, out)
    elif kind == "sequence":
        for b in np.unique(at).tolist():
            adjoint = make_adjoint(rows.layout, rows.n_columns)
            adjoint.add(chunk, np.where(at == b, c, 0.0))
            adjoint.result(out[b, : rows.n_columns])
    else:
        kernels.csr_vectors(kernels.SparseRows.of(chunk), at, c, out)
    if rows.has_offset:
        out[:, -1] += np.bincount(at, c, out.shape[0])


def _add_products(rows: RowMap, chunk: Chunk, at: I64, s: F64, out: F64) -> None:
    """Add ``s_i x_i x_i^T``, packed, to the rows' bins."""
    offset, width = float(rows.has_offset), rows.n_sent
    if chunk.layout.kind == "dense":
        kernels.dense_products(chunk.values, offset, width, at, s, out)
        return
    indptr, indices, values = chunk.indptr, chunk.indices, chunk.values
    layout = chunk.layout
    if layout.kind == "sequence":
        sigma, (lo, hi) = len(layout.alphabet), layout.ngrams
        first = first_columns(sigma, layout.length, layout.ngrams)
        columns = indices_of_letters(letters_of_codes(chunk.codes, layout), sigma, lo, hi, first)
        indptr = np.arange(chunk.n_rows + 1, dtype=np.int32) * np.int32(columns.shape[1])
        indices = columns.ravel()
    sparse = kernels.SparseRows(indptr, indices, values)
    kernels.csr_products(sparse, offset, width, at, s, out)
