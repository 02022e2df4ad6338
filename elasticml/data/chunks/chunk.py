"""The chunk: consecutive examples in one immutable buffer, with their mutable state.

The body (header, labels, weights, matrix or sequence codes) is immutable and content-addressed. The
state (per-example quantities of an algorithm) is versioned and belongs to the owner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from elasticml.data.chunks.body import (
    VIEWS,
    Buffer,
    Header,
    LazyBody,
    aligned_buffer,
    read_header,
    views_of,
    write_body,
)
from elasticml.data.chunks.body import Dtype as Dtype
from elasticml.data.chunks.body import Kind as Kind
from elasticml.data.chunks.body import Layout as Layout
from elasticml.ids import ChunkId, ChunkInfo, is_trained


class BodyStore(Protocol):
    """What a chunk needs of the out-of-core store that its body is in."""

    def add_form(self, form: Chunk) -> Chunk:
        """Add a derived form of a chunk, under the same id."""

    def row_array(self, n: int, dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """Return an array of length n in a file; content undefined."""


class Chunk:
    """Consecutive examples: views into one read-only buffer, and the owner's state.

    Attributes
    ----------
    labels : ndarray (n,), float64
    weights : ndarray (n,), float64, or None if all weights are 1
    values : ndarray
        Dense: (n, n_columns); CSR: (stored,); of the layout's dtype. Empty for the other kinds.
    indptr : ndarray (n + 1,), int32
    indices : ndarray (stored,), int32, ascending within a row
        CSR and binary CSR; empty for the other kinds. Binary CSR has no values: all are 1.
    codes : ndarray (n, length), uint8
        Sequences; (0, 0) for the other kinds.
    state : dict of ndarray
        Per-example state, written by the owner only; ``state_version`` increases with each change.
    is_mapped : bool
        Whether the body is in a file, from which its pages can be read again at any time.
    out_of_core : BodyStore or None
        The out-of-core store of a mapped chunk, if not all chunks fit into memory.
    lazy_body : LazyBody or None
        A body that is verified when one of its arrays is accessed; None for a verified one.
    """

    __slots__ = (
        *VIEWS,
        "lazy_body",
        "content_id",
        "id",
        "is_mapped",
        "layout",
        "n_rows",
        "n_stored",
        "nbytes",
        "out_of_core",
        "state",
        "state_version",
    )

    if TYPE_CHECKING:
        body: memoryview
        labels: NDArray[np.float64]
        weights: NDArray[np.float64] | None
        indptr: NDArray[np.int32]
        indices: NDArray[np.int32]
        values: NDArray[Any]
        codes: NDArray[np.uint8]

    def __init__(self, id: ChunkId, body: memoryview) -> None:
        header = read_header(body, str(id))
        self._set_header(id, header)
        self._set_views(views_of(header, body))

    @staticmethod
    def from_lazy_body(id: ChunkId, lazy_body: LazyBody) -> Chunk:
        """Return a chunk whose body is verified on access."""
        chunk = Chunk.__new__(Chunk)
        chunk._set_header(id, lazy_body.header)
        chunk.lazy_body = lazy_body
        views = views_of(lazy_body.header, lazy_body.stored)
        # Not yet verified; no computation uses them without the body, which is verified.
        chunk.labels, chunk.weights = views["labels"], views["weights"]
        return chunk

    def _set_header(self, id: ChunkId, header: Header) -> None:
        self.id = id
        self.layout: Layout = header.layout
        self.n_rows: int = header.n_rows
        self.n_stored: int = header.n_stored
        self.nbytes: int = header.nbytes
        self.content_id: str = header.digest.hex()
        self.state: dict[str, NDArray[Any]] = {}
        self.state_version: int = 0
        self.is_mapped: bool = False
        self.out_of_core: BodyStore | None = None
        self.lazy_body: LazyBody | None = None

    def _set_views(self, views: dict[str, Any]) -> None:
        for name, view in views.items():
            setattr(self, name, view)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Verify the body on access to one of its arrays."""
            if name not in VIEWS:
                raise AttributeError(f"a Chunk has no {name!r}")
            lazy_body = self.lazy_body
            if lazy_body is None:  # another thread has loaded it
                return object.__getattribute__(self, name)
            self._load(lazy_body)
            return object.__getattribute__(self, name)

    def _load(self, lazy_body: LazyBody) -> None:
        with lazy_body.lock:
            if self.lazy_body is not None:
                lazy_body.verify()
                self._set_views(views_of(lazy_body.header, lazy_body.stored.toreadonly()))
                self.lazy_body = None

    @property
    def is_loaded(self) -> bool:
        """Whether accessing the body needs no verification."""
        return self.lazy_body is None

    @property
    def stored(self) -> memoryview:
        """The bytes of the body, verified or not."""
        lazy_body = self.lazy_body
        return self.body if lazy_body is None else lazy_body.stored

    def load(self) -> None:
        """Verify the body, unless it has been.

        Raises
        ------
        DataError
            When it is damaged.
        """
        lazy_body = self.lazy_body
        if lazy_body is not None:
            self._load(lazy_body)

    @staticmethod
    def from_body(id: ChunkId, buffer: Buffer) -> Chunk:
        """Return a chunk over a received or mapped body, which is not copied if it is aligned.

        Parameters
        ----------
        buffer : bytes-like, contiguous
            The whole body. It must not be written to afterwards.

        Raises
        ------
        DataError
            When the buffer is not a body of this version, or is truncated.
        """
        view = memoryview(buffer).cast("B").toreadonly()
        if view.nbytes and np.frombuffer(view, np.uint8).ctypes.data % 8:
            copy = aligned_buffer(view.nbytes)
            copy[:] = view
            view = copy.toreadonly()
        return Chunk(id, view)

    def info(self) -> ChunkInfo:
        """Return id, training rows and bytes, for the ledger."""
        rows = self.n_rows if is_trained(self.id) else 0
        return ChunkInfo(id=self.id, rows=rows, nbytes=self.nbytes)

    def __repr__(self) -> str:
        """Name the chunk, its kind and its sizes."""
        kind, columns = self.layout.kind, self.layout.n_columns
        return f"<Chunk {self.id} {kind} {self.n_rows}x{columns} {self.nbytes} B>"


def digest_of_chunks(chunks: Iterable[Chunk]) -> str:
    """Digest the content ids of chunks; 16 hex digits."""
    digest = hashlib.blake2b(digest_size=8)
    for chunk in chunks:
        digest.update(f"{chunk.id.block}.{chunk.id.ordinal}:{chunk.content_id}\n".encode())
    return digest.hexdigest()


def dense_chunk(
    id: ChunkId,
    labels: ArrayLike,
    values: NDArray[Any],
    weights: ArrayLike | None = None,
    *,
    dtype: Dtype = "float64",
) -> Chunk:
    """Build a dense chunk.

    Parameters
    ----------
    labels : array_like (n,)
    values : ndarray (n, d)
    weights : array_like (n,), optional

    Raises
    ------
    ValueError
        When lengths differ.
    """
    if values.ndim != 2:
        raise ValueError(f"dense values must have 2 dimensions, got shape {values.shape}")
    layout = Layout(kind="dense", dtype=dtype, n_columns=values.shape[1])
    return Chunk(
        id, write_body(layout, labels, weights, {"values": values}, n_rows=values.shape[0])
    )


def csr_chunk(
    id: ChunkId,
    labels: ArrayLike,
    indptr: ArrayLike,
    indices: ArrayLike,
    values: ArrayLike | None,
    n_columns: int,
    weights: ArrayLike | None = None,
    *,
    dtype: Dtype = "float64",
) -> Chunk:
    """Build a sparse chunk; ``indptr`` starts at 0, ``indices`` ascend within a row.

    Parameters
    ----------
    labels : array_like (n,)
    indptr : array_like (n + 1,)
    indices : array_like (stored,), zero-based, below ``n_columns``
    values : array_like (stored,), optional
        None if all are 1: the chunk is of kind ``binary_csr``.
    weights : array_like (n,), optional

    Raises
    ------
    ValueError
        When lengths differ, or a row pointer or an index is out of range.
    """
    arrays = {"indptr": indptr, "indices": indices}
    kind: Kind = "binary_csr" if values is None else "csr"
    if values is not None:
        arrays["values"] = values
    layout = Layout(kind=kind, dtype=dtype, n_columns=n_columns)
    return Chunk(
        id, write_body(layout, labels, weights, arrays, n_rows=len(np.asarray(indptr)) - 1)
    )


def sequence_chunk(
    id: ChunkId,
    labels: ArrayLike,
    codes: NDArray[np.uint8],
    layout: Layout,
    weights: ArrayLike | None = None,
) -> Chunk:
    """Build a chunk of equal-length sequences.

    Parameters
    ----------
    labels : array_like (n,)
    codes : ndarray (n, layout.length), uint8
    layout : Layout
        Layout of kind ``sequence``, which defines the codes.
    weights : array_like (n,), optional

    Raises
    ------
    ValueError
        When lengths differ.
    """
    if layout.kind != "sequence" or codes.ndim != 2 or codes.shape[1] != layout.length:
        raise ValueError(
            f"codes of shape {codes.shape} do not fit a {layout.kind} layout of length "
            f"{layout.length}"
        )
    return Chunk(id, write_body(layout, labels, weights, {"codes": codes}, n_rows=codes.shape[0]))
