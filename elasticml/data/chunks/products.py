"""Matrix-vector products with chunks, one code path for all kinds of chunk.

``forward``: ``X @ w`` for one chunk; ``adjoint``: ``X.T @ c`` summed over chunks. A sequence chunk
is never expanded: ``X = onehot(codes) @ A``, so ``w`` is folded once per pass into a (length, 256)
lookup table, and the transpose is accumulated in such a table and unfolded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from elasticml.arrays import F64, I64, address
from elasticml.data.chunks import kernels
from elasticml.data.chunks.body import Dtype
from elasticml.data.chunks.chunk import (
    Chunk,
    Kind,
    Layout,
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

    def arguments(self) -> tuple[Any, ...]:
        """Return the first arguments of the kernels over many chunks of this layout."""
        kind, (rows, indptr, indices, values) = self.layout.kind, self.places
        if kind == "sequence":
            return rows, values, _CODE
        like = None if kind == "binary_csr" else np.empty(0, self.layout.dtype)
        if kind == "dense":
            return rows, values, self.layout.n_columns, like
        return rows, indptr, indices, values, _INDEX, like


class _Kernels(NamedTuple):
    """The products with rows of one kind: of a chunk, and of many chunks."""

    forward: Callable[..., None]
    adjoint: Callable[..., None]
    product: Callable[..., None]
    forwards: Callable[..., None]
    adjoints: Callable[..., None]


_SPARSE: Final = _Kernels(
    kernels.csr_forward,
    kernels.csr_adjoint,
    kernels.csr_product,
    kernels.csr_forwards,
    kernels.csr_adjoints,
)
_OF_KIND: Final[Mapping[Kind, _Kernels]] = {
    "dense": _Kernels(
        kernels.dense_forward,
        kernels.dense_adjoint,
        kernels.dense_product,
        kernels.dense_forwards,
        kernels.dense_adjoints,
    ),
    "csr": _SPARSE,
    "binary_csr": _SPARSE,
    "sequence": _Kernels(
        kernels.sequence_forward,
        kernels.sequence_adjoint,
        kernels.sequence_product,
        kernels.sequence_forwards,
        kernels.sequence_adjoints,
    ),
}


def _arrays(chunk: Chunk) -> tuple[Any, ...]:
    """Return the first arguments of the kernels over a chunk."""
    kind = chunk.layout.kind
    if kind == "dense":
        return (chunk.values,)
    if kind == "sequence":
        return (chunk.codes,)
    return chunk.indptr, chunk.indices, chunk.values if kind == "csr" else None


class Forward:
    """Multiplies chunks by one fixed vector; created by :func:`make_forward`.

    Has no state between calls: threads may share it.
    """

    __slots__ = ("_d", "_layout", "_w")

    def __init__(self, layout: Layout, w: F64) -> None:
        self._layout = layout
        self._d = w.size
        #: The vector; of sequences its sums over the n-grams of a code, by position and code.
        self._w = read_only(_fold(layout, w) if layout.kind == "sequence" else w)

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
        _OF_KIND[chunk.layout.kind].forward(*_arrays(chunk), self._w, out)

    def write_all(self, bodies: Bodies, offset: float, at_out: I64) -> None:
        """Write ``X @ w + offset`` of each chunk to the array (n_rows,) at its address."""
        _check_layout(bodies.layout, self._layout, self._d, bodies.first)
        forwards = _OF_KIND[bodies.layout.kind].forwards
        forwards(*bodies.arguments(), self._w, offset, at_out)

    def add_product(
        self, chunk: Chunk, offset: float, curvatures: F64, products: F64, out: F64
    ) -> None:
        """Implement :meth:`Adjoint.add_product`; ``out`` is the adjoint's sum or table."""
        _check(chunk, self._layout, self._d, products)
        product = _OF_KIND[chunk.layout.kind].product
        product(*_arrays(chunk), self._w, offset, read_only(curvatures), products, out)


class Adjoint:
    """Sums ``X.T @ c`` over chunks; created by :func:`make_adjoint`.

    The sum is in the order of the calls. Only one thread at a time may add to it; parallel threads
    use one adjoint each and :meth:`merge` them in a fixed order.
    """

    __slots__ = ("_d", "_layout", "_sum")

    def __init__(self, layout: Layout, d: int) -> None:
        self._layout = layout
        self._d = d
        #: Of sequences by position and code, which ``result`` unfolds into columns.
        self._sum = np.zeros((layout.length, CODES_MAX) if layout.kind == "sequence" else d)

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
        adjoint = _OF_KIND[chunk.layout.kind].adjoint
        adjoint(*_arrays(chunk), read_only(coefficients), self._sum)

    def add_all(self, bodies: Bodies, at_coefficients: I64) -> None:
        """Add ``X.T @ coefficients`` of each chunk; the coefficients (n_rows,) are at addresses."""
        _check_layout(bodies.layout, self._layout, self._d, bodies.first)
        adjoints = _OF_KIND[bodies.layout.kind].adjoints
        adjoints(*bodies.arguments(), at_coefficients, self._sum)

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
        forward.add_product(chunk, offset, curvatures, products, self._sum)

    def merge(self, other: Adjoint) -> None:
        """Add the other's sum to this one; both have the same layout and width."""
        self._sum += other._sum

    def clear(self) -> None:
        """Set the sum to zero, to reuse the buffers."""
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
        if self._layout.kind != "sequence":
            out += self._sum
            return
        sigma, lo, hi, first = _numbering(self._layout)
        kernels.unfold_table(read_only(self._sum), sigma, lo, hi, self._layout.length, first, out)


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
        csr_chunk(id, one, [0, 1], [0], None, 1),
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
