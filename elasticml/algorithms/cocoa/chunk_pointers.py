"""Addresses of the chunks' arrays, so that one compiled call can visit rows of all chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.row_kernels import KIND_CODES, Reals
from elasticml.arrays import F64, I64, address
from elasticml.data.chunks.chunk import Chunk, Layout
from elasticml.data.chunks.ngrams import (
    CODES_MAX,
    first_columns,
    indices_of_letters,
    letters_of_codes,
)
from elasticml.data.out_of_core.store import row_array

#: Columns of the address table: kind, numbers of rows and columns, and addresses.
KIND, N_ROWS, WIDTH, INDPTR, INDICES, VALUES, TARGETS, WEIGHTS, ALPHA, NORMS, SKIPS, OFFSETS = (
    range(12)
)
N_FIELDS: Final = 12
#: Columns of what :func:`grams_of` returns.
GRAM_FIELDS: Final = 3 + CODES_MAX


@dataclass(slots=True, eq=False)
class ChunkCache:
    """What solvers keep of a chunk between passes; a function of the chunk, except ``skips``."""

    #: (n_rows,) squared norms of the rows, without the intercept's constant; empty at first.
    norms: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    #: (n_rows,) epochs to skip each row: see :mod:`elasticml.algorithms.cocoa.shrinking`.
    skips: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    #: The norms are computed: for a chunk that streams, after its body was first loaded.
    is_measured: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One chunk with the targets, weights and dual variables of its rows."""

    chunk: Chunk
    #: (n_rows,), -1 and +1 in classification.
    targets: F64
    #: (n_rows,) sample weight times class weight; None if all are one.
    weights: F64 | None
    #: (n_rows,) dual variables; changed in place.
    alpha: F64
    #: (n_rows,) numbers that are added to the margins; None if all are zero.
    offsets: F64 | None = None
    cache: ChunkCache = field(default_factory=ChunkCache)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.chunk.n_rows


class ChunkRows(NamedTuple):
    """The rows of a member's chunks."""

    #: (chunks, N_FIELDS), int64, one chunk in each row.
    table: I64
    #: (any, GRAM_FIELDS), int64.
    grams: I64
    #: (0,), of the type of the chunks' values.
    like: Reals
    #: Consecutive rows of a bucket.
    bucket: int


def rows_of(pieces: Sequence[Piece], dtype: np.dtype[Any], bucket: int) -> ChunkRows:
    """Return where the rows of pieces are, except for bodies: see :func:`locate_body`.

    All arrays must stay alive. The first call makes room for what is kept of a chunk with values of
    this type.
    """
    check(pieces, dtype)
    table = np.zeros((len(pieces), N_FIELDS), np.int64)
    for row, piece in zip(table, pieces, strict=True):
        chunk, layout, cache = piece.chunk, piece.chunk.layout, piece.cache
        if not cache.norms.size:
            cache.norms, cache.skips = row_array(chunk, dtype), np.zeros(chunk.n_rows, np.uint8)
        width = layout.length if layout.kind == "sequence" else layout.n_columns
        row[:VALUES] = KIND_CODES[layout.kind], chunk.n_rows, width, 0, 0
        own = piece.targets, piece.weights, piece.alpha, cache.norms, cache.skips, piece.offsets
        row[TARGETS:] = [0 if array is None else address(array) for array in own]
    grams = grams_of(pieces[0].chunk.layout) if pieces else np.zeros((0, GRAM_FIELDS), np.int64)
    return ChunkRows(table, grams, np.empty(0, dtype), bucket)


def locate_body(table: NDArray[np.int64], number: int, chunk: Chunk) -> None:
    """Write the addresses of a chunk's body."""
    is_sequence = chunk.layout.kind == "sequence"
    table[number, INDPTR] = address(chunk.indptr)
    table[number, INDICES] = address(chunk.indices)
    table[number, VALUES] = address(chunk.codes if is_sequence else chunk.values)


def grams_of(layout: Layout) -> NDArray[np.int64]:
    """Return a sequence layout's n-grams for the row loops, (hi - lo + 1, 259); else no rows.

    Columns: first column of the model, number of n-grams of that length, number of positions, and
    then the n-gram with which the hi-gram of each code begins. A table, because a division for each
    n-gram took twice as long as everything else.
    """
    if layout.kind != "sequence":
        return np.zeros((0, GRAM_FIELDS), np.int64)
    sigma, (lo, hi) = len(layout.alphabet), layout.ngrams
    first = first_columns(sigma, layout.length, layout.ngrams)
    grams = np.zeros((hi - lo + 1, GRAM_FIELDS), np.int64)
    for row, n in zip(grams, range(lo, hi + 1), strict=True):
        row[:3] = first[n - lo], sigma**n, layout.length - n + 1
        row[3:] = np.arange(CODES_MAX) // sigma ** (hi - n)
    return grams


def set_columns(codes: NDArray[np.uint8], layout: Layout) -> NDArray[np.int32]:
    """Return the columns that are 1 in each row of a sequence chunk, (n_rows, k), ascending."""
    sigma, (lo, hi) = len(layout.alphabet), layout.ngrams
    first = first_columns(sigma, layout.length, layout.ngrams)
    return indices_of_letters(letters_of_codes(codes, layout), sigma, lo, hi, first)


def check(pieces: Sequence[Piece], dtype: np.dtype[Any]) -> None:
    """Assert that kernels do not misread the pieces' arrays: they have addresses alone."""
    for piece in pieces:
        chunk, layout = piece.chunk, piece.chunk.layout
        for array in (piece.targets, piece.alpha, piece.weights, piece.offsets):
            if array is not None:
                assert array.shape == (chunk.n_rows,) and array.dtype == np.float64, chunk.id
                assert array.flags.c_contiguous, chunk.id
        if layout.kind in ("dense", "csr"):
            assert np.dtype(layout.dtype) == dtype, chunk.id
        assert layout.kind != "sequence" or layout == pieces[0].chunk.layout, chunk.id


def stored_of(chunk: Chunk) -> int:
    """Count the values of a chunk's rows, including ones that are not stored."""
    layout = chunk.layout
    if layout.kind == "sequence":
        lengths = range(layout.ngrams[0], layout.ngrams[1] + 1)
        return chunk.n_rows * sum(layout.length - n + 1 for n in lengths)
    return chunk.n_stored


def total_stored(pieces: Sequence[Piece]) -> int:
    """Count the values that one epoch reads."""
    return sum(stored_of(piece.chunk) for piece in pieces)


def total_weight(pieces: Sequence[Piece]) -> float:
    """Return the total weight of all rows."""
    return float(sum(p.chunk.n_rows if p.weights is None else p.weights.sum() for p in pieces))


def is_same(old: Sequence[Piece], new: Sequence[Piece]) -> bool:
    """Whether all arrays are identical objects."""
    names = "chunk", "alpha", "targets", "weights", "offsets"
    return len(old) == len(new) and all(
        a is b or all(getattr(a, name) is getattr(b, name) for name in names)
        for a, b in zip(old, new, strict=True)
    )
