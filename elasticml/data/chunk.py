"""The chunk: consecutive examples in one immutable buffer, and their state beside it.

The body (header, labels, weights, matrix or sequence codes) never changes and is addressed by its
content; the state (per-example quantities of an algorithm) is versioned and belongs to the owner.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elasticml.data.away import Away
from elasticml.data.body import (
    VIEWS,
    Buffer,
    Header,
    aligned_buffer,
    content_id,
    read_header,
    views_of,
    write_body,
)
from elasticml.data.body import Dtype as Dtype
from elasticml.data.body import Kind as Kind
from elasticml.data.body import Layout as Layout
from elasticml.data.body import layout_from_json as layout_from_json
from elasticml.data.state import decode_state, encode_state
from elasticml.errors import DataError
from elasticml.terms import ChunkId, ChunkInfo

if TYPE_CHECKING:
    from elasticml.data.shelf import Shelf


class Chunk:
    """Consecutive examples: views into one read-only buffer, and the owner's state.

    Attributes
    ----------
    labels : ndarray (n,), float64
    weights : ndarray (n,), float64, or None when every example weighs one
    values : ndarray
        Dense: (n, n_columns); CSR: (stored,); of the layout's dtype. Empty for the other kinds.
    indptr : ndarray (n + 1,), int32
    indices : ndarray (stored,), int32, ascending within a row
        CSR and binary CSR; empty for the other kinds. Binary CSR stores ones only, hence no values.
    codes : ndarray (n, length), uint8
        Sequences; (0, 0) for the other kinds.
    state : dict of ndarray
        Per-example state, written by the owner only; ``state_version`` grows with each change.
    is_mapped : bool
        The body lies in a file, from which its pages can be read again at any time.
    shelf : Shelf or None
        On which a mapped chunk stands where not all of them fit into memory.
    away : Away or None
        Where the body is that comes when one of its arrays is looked at; None where it is here.
    """

    __slots__ = (
        *VIEWS,
        "away",
        "content_id",
        "id",
        "is_mapped",
        "layout",
        "n_rows",
        "n_stored",
        "nbytes",
        "shelf",
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
        self._describe(id, header)
        self._show(views_of(header, body))

    @staticmethod
    def of_away(id: ChunkId, away: Away) -> Chunk:
        """Make a chunk whose body comes when it is looked at."""
        chunk = Chunk.__new__(Chunk)
        chunk._describe(id, away.header)
        chunk.away = away
        if away.packed is None:
            views = views_of(away.header, away.stored)
            # Checked with the body, which nobody computes without.
            chunk.labels, chunk.weights = views["labels"], views["weights"]
        return chunk

    def _describe(self, id: ChunkId, header: Header) -> None:
        self.id = id
        self.layout: Layout = header.layout
        self.n_rows: int = header.n_rows
        self.n_stored: int = header.n_stored
        self.nbytes: int = header.nbytes
        self.content_id: str = header.digest.hex()
        self.state: dict[str, NDArray[Any]] = {}
        self.state_version: int = 0
        self.is_mapped: bool = False
        self.shelf: Shelf | None = None
        self.away: Away | None = None

    def _show(self, views: dict[str, Any]) -> None:
        for name, view in views.items():
            setattr(self, name, view)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Bring the body here: one of its arrays is looked at."""
            if name not in VIEWS:
                raise AttributeError(f"a Chunk has no {name!r}")
            away = self.away
            if away is None:  # it has come meanwhile
                return object.__getattribute__(self, name)
            with away.lock:
                if name in ("labels", "weights") and not away.is_here:
                    views = views_of(away.header, away.head())
                    self._show(views)
                    return views[name]
                return self._come(away)[name]

    def _come(self, away: Away) -> dict[str, Any]:
        """Have the body here, and return what is to be seen of it; the lock is held."""
        if away.is_here:
            return {name: object.__getattribute__(self, name) for name in VIEWS}
        shelf = self.shelf
        body = away.opened(aligned_buffer if shelf is None else shelf.pool.take)
        views = views_of(away.header, body)
        self._show(views)
        away.is_here = True
        if away.packed is None or not self.is_mapped:
            # A body that was checked is like any other, and one that was received compressed would
            # be in memory twice.
            self.away = None
        return views

    @property
    def is_here(self) -> bool:
        """Whether the body can be looked at as it is, without being unpacked or checked."""
        away = self.away
        return away is None or away.is_here

    @property
    def is_checked(self) -> bool:
        """Whether the body has proved to be what was written."""
        away = self.away
        return away is None or away.is_checked

    @property
    def is_packed(self) -> bool:
        """Whether the body lies somewhere compressed, so that it can be let go and come again."""
        return self.away is not None and self.away.packed is not None

    @property
    def stored(self) -> memoryview:
        """The body as it lies in its file or in memory, compressed or not."""
        away = self.away
        return self.body if away is None else away.stored

    def bring(self, *, pin: bool = False) -> None:
        """Have the body here, unpacked and checked.

        Parameters
        ----------
        pin : bool
            Nobody lets it go until :meth:`unpin` has been called as often.

        Raises
        ------
        DataError
            When it is damaged.
        """
        away = self.away
        if away is not None:
            with away.lock:
                self._come(away)
                away.pins += pin

    def unpin(self) -> None:
        """Take back a pin; the body stays here until it is let go."""
        away = self.away
        if away is not None:
            with away.lock:
                away.pins -= 1

    def let_go(self) -> bool:
        """Forget a body that was unpacked, unless it is pinned; return whether it was here.

        Its memory is used again when nobody looks at any of its arrays any more.
        """
        away = self.away
        if away is None or away.packed is None:
            return False
        with away.lock:
            if away.pins:
                return False
            was_here, away.is_here = away.is_here, False
            for name in VIEWS:
                with suppress(AttributeError):
                    delattr(self, name)
        return was_here

    @staticmethod
    def from_body(id: ChunkId, buffer: Buffer, *, verify: bool = False) -> Chunk:
        """Look at a received or mapped body as a chunk, without copying it where it is aligned.

        Parameters
        ----------
        buffer : bytes-like, contiguous
            The whole body. Nobody may write to it afterwards.
        verify : bool
            Recompute the content id (about 1 GB/s).

        Raises
        ------
        DataError
            When the buffer is no body of this version, is cut short, or (with ``verify``) damaged.
        """
        view = memoryview(buffer).cast("B").toreadonly()
        if view.nbytes and np.frombuffer(view, np.uint8).ctypes.data % 8:
            copy = aligned_buffer(view.nbytes)
            copy[:] = view
            view = copy.toreadonly()
        chunk = Chunk(id, view)
        if verify and content_id(view) != chunk.content_id:
            raise DataError(
                f"chunk {id} is damaged: content id {content_id(view)}, wanted {chunk.content_id}; "
                "remove the cached copy or send it again",
                chunk=str(id),
            )
        return chunk

    def info(self) -> ChunkInfo:
        """Say what the ledger needs to know."""
        return ChunkInfo(id=self.id, rows=self.n_rows, nbytes=self.nbytes)

    def encode_state(self) -> memoryview:
        """Copy state and version into one contiguous read-only buffer."""
        return encode_state(self.state, self.state_version)

    def decode_state(self, buffer: Buffer) -> None:
        """Take over the state in ``buffer``; its arrays are copies that the owner may write to.

        Raises
        ------
        DataError
            When the buffer is no state of this version.
        """
        decoded = decode_state(buffer)
        self.state, self.state_version = decoded.arrays, decoded.version

    def __repr__(self) -> str:
        """Name the chunk, its kind and its sizes."""
        kind, columns = self.layout.kind, self.layout.n_columns
        return f"<Chunk {self.id} {kind} {self.n_rows}x{columns} {self.nbytes} B>"


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
    values: ArrayLike,
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
    values : array_like (stored,)
    weights : array_like (n,), optional

    Raises
    ------
    ValueError
        When lengths differ, or a row pointer or an index is out of range.
    """
    layout = Layout(kind="csr", dtype=dtype, n_columns=n_columns)
    arrays = {"indptr": indptr, "indices": indices, "values": values}
    return Chunk(
        id, write_body(layout, labels, weights, arrays, n_rows=len(np.asarray(indptr)) - 1)
    )


def binary_csr_chunk(
    id: ChunkId,
    labels: ArrayLike,
    indptr: ArrayLike,
    indices: ArrayLike,
    n_columns: int,
    weights: ArrayLike | None = None,
    *,
    dtype: Dtype = "float64",
) -> Chunk:
    """Build a sparse chunk in which every stored value is 1; parameters as :func:`csr_chunk`.

    Raises
    ------
    ValueError
        When lengths differ, or a row pointer or an index is out of range.
    """
    layout = Layout(kind="binary_csr", dtype=dtype, n_columns=n_columns)
    arrays = {"indptr": indptr, "indices": indices}
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
        Of kind ``sequence``; says what the codes mean.
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
