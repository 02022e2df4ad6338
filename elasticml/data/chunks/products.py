"""Matrix-vector products with chunks, one code path for all kinds of chunk.

``forward``: ``X @ w`` for one chunk; ``adjoint``: ``X.T @ c`` summed over chunks. A sequence chunk
is never expanded: ``X = onehot(codes) @ A``, so ``w`` is folded once per pass into a (length, 256)
lookup table, and the transpose is accumulated in such a table and unfolded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from elasticml.arrays import F64, I64, address
from elasticml.data.chunks import kernels
from elasticml.data.chunks.body import Dtype
from elasticml.data.chunks.chunk import (
    Chunk,
    Layout,
    binary_csr_chunk,
    csr_chunk,
    dense_chunk,
    sequence_chunk,
)
from elasticml.data.chunks.ngrams import CODES_MAX, first_columns, sequence_layout
from elasticml.ids import ChunkId

_Number = TypeVar("_Number", np.float64, np.int64)
_INDEX: Final = np.empty(0, np.int32)
_CODE: Final = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Bodies:
    """Addresses of the bodies of chunks with the same layout, for one compiled call over all."""

    #: The id of one of them, for messages, and the layout of all.
    first: ChunkId
    layout: Layout
    #: (4, m): numbers of rows; addresses of row pointers, of indices, and of values or codes.
    places: I64
    #: The arrays at the addresses, which this keeps alive.
    arrays: Sequence[tuple[NDArray[Any], ...]]

    @staticmethod
    def of(chunks: Sequence[Chunk]) -> Bodies:
        """Load the chunks, at least one, and return where their bodies are."""
        layout = chunks[0].layout
        is_sequence = layout.kind == "sequence"
        arrays = [(c.indptr, c.indices, c.codes if is_sequence else c.values) for c in chunks]
        places = [
            (chunk.n_rows, *map(address, own)) for chunk, own in zip(chunks, arrays, strict=True)
        ]
        return Bodies(chunks[0].id, layout, np.array(places, np.int64).T.copy(), arrays)

    def where(self, chosen: NDArray[np.bool_]) -> Bodies:
        """Return some of the bodies; ``chosen`` (m,)."""
        places = self.places if chosen.all() else self.places[:, chosen]
        return Bodies(self.first, self.layout, places, self.arrays)

    @property
    def like(self) -> NDArray[Any]:
        """An array of the values' type."""
        return np.empty(0, self.layout.dtype)


class Forward:
    """Multiplies chunks by one fixed vector; created by :func:`make_forward`.

    Has no state between calls: threads may share it.
    """

    __slots__ = ("_d", "_layout", "_table", "_w")

    def __init__(self, layout: Layout, w: F64) -> None:
        self._layout = layout
        self._d = w.size
        self._w = read_only(w)
        self._table = read_only(_fold(layout, w)) if layout.kind == "sequence" else None

    def __call__(self, chunk: Chunk, out: F64) -> None:
        """Write ``X @ w`` of the chunk into ``out``.

        Parameters
        ----------
        chunk : Chunk
        out : ndarray (chunk.n_rows,), float64, C-contiguous
            Overwritten.

        Raises
        ------
        ValueError
            When ``out`` has a wrong shape, the chunk has more columns than the model, or its
            sequences have another layout.
        """
        _check(chunk, self._layout, self._d, out)
        kind = chunk.layout.kind
        if kind == "sequence":
            assert self._table is not None
            kernels.sequence_forward(chunk.codes, self._table, out)
        elif kind == "csr":
            kernels.csr_forward(chunk.indptr, chunk.indices, chunk.values, self._w, out)
        elif kind == "binary_csr":
            kernels.binary_forward(chunk.indptr, chunk.indices, self._w, out)
        else:
            kernels.dense_forward(chunk.values, self._w, out)

    def write_all(self, bodies: Bodies, offset: float, at_out: I64) -> None:
        """Write ``X @ w + offset`` of each chunk to the array (n_rows,) at its address."""
        _check_layout(bodies.layout, self._layout, self._d, bodies.first)
        own = bodies.layout
        rows, indptr, indices, values = bodies.places
        if own.kind == "sequence":
            assert self._table is not None
            kernels.sequence_forwards(rows, values, _CODE, self._table, offset, at_out)
        elif own.kind == "csr":
            arrays = rows, indptr, indices, values, _INDEX, bodies.like
            kernels.csr_forwards(*arrays, self._w, offset, at_out)
        elif own.kind == "binary_csr":
            kernels.binary_forwards(rows, indptr, indices, _INDEX, self._w, offset, at_out)
        else:
            kernels.dense_forwards(
                rows, values, own.n_columns, bodies.like, self._w, offset, at_out
            )

    def add_product(
        self, chunk: Chunk, offset: float, curvatures: F64, products: F64, out: F64
    ) -> None:
        """Implement :meth:`Adjoint.add_product`; ``out`` is the adjoint's sum or table."""
        _check(chunk, self._layout, self._d, products)
        c, kind = read_only(curvatures), chunk.layout.kind
        if kind == "sequence":
            assert self._table is not None
            kernels.sequence_product(chunk.codes, self._table, offset, c, products, out)
        elif kind == "csr":
            kernels.csr_product(
                chunk.indptr, chunk.indices, chunk.values, self._w, offset, c, products, out
            )
        elif kind == "binary_csr":
            kernels.binary_product(chunk.indptr, chunk.indices, self._w, offset, c, products, out)
        else:
            kernels.dense_product(chunk.values, self._w, offset, c, products, out)


class Adjoint:
    """Sums ``X.T @ c`` over chunks; created by :func:`make_adjoint`.

    The sum is in the order of the calls. Only one thread at a time may add to it; parallel threads
    use one adjoint each and :meth:`merge` them in a fixed order.
    """

    __slots__ = ("_d", "_layout", "_sum", "_table")

    def __init__(self, layout: Layout, d: int) -> None:
        self._layout = layout
        self._d = d
        is_sequence = layout.kind == "sequence"
        #: Sum over sequence chunks, by position and code; unfolded into columns by ``result``.
        self._table = np.zeros((layout.length, CODES_MAX)) if is_sequence else None
        #: Sum over chunks of all other kinds.
        self._sum = np.zeros(0 if is_sequence else d)

    def add(self, chunk: Chunk, coefficients: F64) -> None:
        """Add ``X.T @ coefficients`` of the chunk; rows with coefficient zero cost nothing.

        Parameters
        ----------
        chunk : Chunk
        coefficients : ndarray (chunk.n_rows,), float64, C-contiguous

        Raises
        ------
        ValueError
            As for :class:`Forward`.
        """
        _check(chunk, self._layout, self._d, coefficients)
        c = read_only(coefficients)
        kind = chunk.layout.kind
        if kind == "sequence":
            assert self._table is not None
            kernels.sequence_adjoint(chunk.codes, c, self._table)
        elif kind == "csr":
            kernels.csr_adjoint(chunk.indptr, chunk.indices, chunk.values, c, self._sum)
        elif kind == "binary_csr":
            kernels.binary_adjoint(chunk.indptr, chunk.indices, c, self._sum)
        else:
            kernels.dense_adjoint(chunk.values, c, self._sum)

    def add_all(self, bodies: Bodies, at_coefficients: I64) -> None:
        """Add ``X.T @ coefficients`` of each chunk; the coefficients (n_rows,) are at addresses."""
        _check_layout(bodies.layout, self._layout, self._d, bodies.first)
        own = bodies.layout
        rows, indptr, indices, values = bodies.places
        if own.kind == "sequence":
            assert self._table is not None
            kernels.sequence_adjoints(rows, values, _CODE, at_coefficients, self._table)
        elif own.kind == "csr":
            arrays = rows, indptr, indices, values, _INDEX, bodies.like
            kernels.csr_adjoints(*arrays, at_coefficients, self._sum)
        elif own.kind == "binary_csr":
            kernels.binary_adjoints(rows, indptr, indices, _INDEX, at_coefficients, self._sum)
        else:
            kernels.dense_adjoints(
                rows, values, own.n_columns, bodies.like, at_coefficients, self._sum
            )

    def add_product(
        self, chunk: Chunk, forward: Forward, offset: float, curvatures: F64, products: F64
    ) -> None:
        """Add ``X.T @ products`` for ``products = curvatures * (X @ v + offset)``, in one pass.

        Parameters
        ----------
        chunk : Chunk
        forward : Forward
            Forward product of the vector v, for the same layout.
        offset : float
            Product of v with a column of ones that no chunk stores (the intercept).
        curvatures : ndarray (chunk.n_rows,), float64, C-contiguous
            Rows with curvature zero cost nothing.
        products : ndarray (chunk.n_rows,), float64, C-contiguous
            Overwritten.

        Raises
        ------
        ValueError
            As for :class:`Forward`.
        """
        _check(chunk, self._layout, self._d, curvatures)
        forward.add_product(
            chunk, offset, curvatures, products, self._sum if self._table is None else self._table
        )

    def merge(self, other: Adjoint) -> None:
        """Add the other's sum to this one; both have the same layout and width."""
        if self._table is not None and other._table is not None:
            self._table += other._table
        self._sum += other._sum

    def clear(self) -> None:
        """Set the sum to zero, to reuse the buffers."""
        if self._table is not None:
            self._table[:] = 0.0
        self._sum[:] = 0.0

    def result(self, out: F64) -> None:
        """Add the sum to ``out``; the sum itself is kept.

        Parameters
        ----------
        out : ndarray (d,), float64, C-contiguous
            May be a view of a model with an intercept, without the last element.

        Raises
        ------
        ValueError
            When ``out`` has another length.
        """
        if out.shape != (self._d,):
            raise ValueError(f"out has shape {out.shape}, wanted ({self._d},)")
        if self._table is None:
            out += self._sum
            return
        sigma, lo, hi, first = _numbering(self._layout)
        kernels.unfold_table(read_only(self._table), sigma, lo, hi, self._layout.length, first, out)


def make_forward(layout: Layout, w: F64) -> Forward:
    """Prepare ``X @ w`` for the chunks of one pass.

    Parameters
    ----------
    layout : Layout
        Layout of the data set (``DatasetStats.layout``). Kinds other than sequences may be mixed.
    w : ndarray (d,), float64, C-contiguous
        ``d`` is at least the chunks' ``n_columns``. Not copied: do not write to it during the pass
        (for sequences it is folded once, here).

    Returns
    -------
    Forward
        ``forward(chunk, out)``.

    Raises
    ------
    ValueError
        When ``w`` is shorter than a sequence layout's columns.

    Notes
    -----
    Error: rounding only, at most ``(k + 3) u sum|x_j w_j|`` for k stored values, u = 2**-53.
    """
    if w.ndim != 1 or (layout.kind == "sequence" and w.size < layout.n_columns):
        raise ValueError(f"w has shape {w.shape}, wanted ({layout.n_columns},)")
    return Forward(layout, np.ascontiguousarray(w, np.float64))


def make_adjoint(layout: Layout, d: int) -> Adjoint:
    """Prepare ``X.T @ c``, summed over chunks.

    Parameters
    ----------
    layout : Layout
        As for :func:`make_forward`.
    d : int
        Length of the result, at least the chunks' ``n_columns``.

    Raises
    ------
    ValueError
        When ``d`` is smaller than a sequence layout's columns.
    """
    if layout.kind == "sequence" and d < layout.n_columns:
        raise ValueError(f"d is {d}, wanted at least {layout.n_columns}")
    return Adjoint(layout, d)


def chunks_to_warm_up(kind: str | None, dtype: str | None) -> list[Chunk]:
    """Return a chunk of one row for each kind of float64 chunks.

    Parameters
    ----------
    kind : str or None
        The only kind of chunks; None: all.
    dtype : str or None
        Their type of values instead.
    """
    values: Dtype = "float32" if dtype == "float32" else "float64"
    one, id = np.ones(1), ChunkId("warm", 0, 0)
    layout = sequence_layout("AC", 8, (1, 2))
    chunks = (
        dense_chunk(id, one, np.ones((1, 1)), dtype=values),
        csr_chunk(id, one, [0, 1], [0], one, 1, dtype=values),
        binary_csr_chunk(id, one, [0, 1], [0], 1),
        sequence_chunk(id, one, np.zeros((1, 8), np.uint8), layout),
    )
    return [chunk for chunk in chunks if kind in (None, chunk.layout.kind)]


def warm_kernels(kind: str | None = None, dtype: str | None = None) -> None:
    """Compile the products with a vector from both sides, or load their machine code.

    Members call it before they report ready, so that no exchange waits for compilation.
    """
    for chunk in chunks_to_warm_up(kind, dtype):
        w, out = np.ones(chunk.layout.n_columns), np.empty(1)
        make_forward(chunk.layout, w)(chunk, out)
        adjoint = make_adjoint(chunk.layout, w.size)
        adjoint.add(chunk, out)
        bodies, at = Bodies.of([chunk]), np.array([address(out)])
        make_forward(chunk.layout, w).write_all(bodies, 0.0, at)
        adjoint.add_all(bodies, at)
        adjoint.result(w)


def _check(chunk: Chunk, layout: Layout, d: int, vector: F64) -> None:
    if vector.shape != (chunk.n_rows,):
        raise ValueError(
            f"chunk {chunk.id}: vector has shape {vector.shape}, wanted ({chunk.n_rows},)"
        )
    _check_layout(chunk.layout, layout, d, chunk.id)


def _check_layout(own: Layout, layout: Layout, d: int, id: ChunkId) -> None:
    if own.kind == "sequence" or layout.kind == "sequence":
        if own != layout:
            raise ValueError(f"chunk {id} has layout {own}, wanted {layout}")
    elif own.n_columns > d:
        raise ValueError(
            f"chunk {id} has {own.n_columns} columns, the model {d}; "
            f"read the data with n_columns={d}"
        )


def _numbering(layout: Layout) -> tuple[int, int, int, NDArray[np.int64]]:
    sigma, (lo, hi) = len(layout.alphabet), layout.ngrams
    return sigma, lo, hi, read_only(first_columns(sigma, layout.length, layout.ngrams))


def _fold(layout: Layout, w: F64) -> F64:
    sigma, lo, hi, first = _numbering(layout)
    table = np.empty((layout.length, CODES_MAX))
    kernels.fold_weights(read_only(w), sigma, lo, hi, layout.length, first, table)
    return table


def read_only(array: NDArray[_Number]) -> NDArray[_Number]:
    """Return a read-only view, as chunks are read-only: each kernel is then compiled only once."""
    view = array[:]
    view.flags.writeable = False
    return view
