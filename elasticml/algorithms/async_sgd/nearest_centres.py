"""Nearest centres of rows, sums by centre, and squared distances, for K-Means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd import nearest_kernels as kernels
from elasticml.algorithms.base import Parallel
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import ConfigError

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
#: A chunk and int64 rows of it; None: all.
Parts = Sequence[tuple[Chunk, NDArray[np.int64] | None]]

#: Size in bytes of a block of gathered rows, which stays in the L1 and L2 caches.
_BLOCK_BYTES: Final = 2**17
_BLOCK_ROWS_MAX: Final = 2048
#: Rows of a mini-batch per task; for fewer rows the dispatch to a thread would cost more.
_PIECE_ROWS: Final = 512
_NO_WEIGHTS: Final = np.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Weighted sums (K, D) of the rows nearest to each centre, and the sums (K,) of weights."""

    sums: F64
    counts: F64
    #: Weighted sum of squared distances to the nearest centres, if requested.
    inertia: float = 0.0


class Nearest:
    """Nearest-centre search with a fixed set of centres.

    Parameters
    ----------
    centres : ndarray (K, D), float64, C-contiguous
        Must not change while this object is in use.
    is_single : bool
        Compare in single precision, relative to the mean of the centres: far from the origin
        single precision has too few digits for differences.
    """

    def __init__(self, centres: F64, *, is_single: bool) -> None:
        self.centres = centres
        n_centres, d = centres.shape
        self._dtype: type[Any] = np.float32 if is_single else np.float64
        self._shift = centres.mean(axis=0) if is_single else np.zeros(d)
        width = -(-n_centres // kernels.LANES) * kernels.LANES
        self._across = np.zeros((d, width), self._dtype)
        self._half_squares = np.empty(width, self._dtype)
        kernels.prepare(centres, self._shift, self._across, self._half_squares)

    def statistics(self, parts: Parts, *, squares: bool = False) -> Statistics:
        """Sum rows by nearest centre, and with ``squares`` their squared distances; new arrays."""
        sums, counts = np.zeros(self.centres.shape), np.zeros(len(self.centres))
        inertia, out = 0.0, np.empty(_BLOCK_ROWS_MAX)
        for block in self._blocks(parts):
            kernels.add_rows(block.X, block.n, block.weights, block.labels, sums, counts)
            if squares:
                inertia += self._squares(block, out)
        if self._dtype is np.float32:
            sums += counts[:, None] * self._shift
        return Statistics(sums=sums, counts=counts, inertia=inertia)

    def inertia(self, parts: Parts) -> float:
        """Return the weighted sum of squared distances to the nearest centres."""
        total, out = 0.0, np.empty(_BLOCK_ROWS_MAX)
        for block in self._blocks(parts):
            total += self._squares(block, out)
        return total

    def lookup(self, parts: Parts) -> tuple[I32, F64]:
        """Return each row's nearest centre and squared distance to it; new, shape (n,)."""
        labels, distances = [np.empty(0, np.int32)], [np.empty(0)]
        for block in self._blocks(parts):
            squares = np.empty(block.n)
            self._squares(block, squares)
            labels.append(block.labels[: block.n].copy())
            distances.append(squares)
        return np.concatenate(labels), np.concatenate(distances)

    def _squares(self, block: _Block, out: F64) -> float:
        return float(
            kernels.add_squares(
                block.X, block.n, block.weights, block.labels, self.centres, self._shift, out
            )
        )

    def _blocks(self, parts: Parts) -> Iterator[_Block]:
        """Gather rows into blocks across chunks, and label them."""
        n_rows = sum(chunk.n_rows if rows is None else rows.size for chunk, rows in parts)
        d = self.centres.shape[1]
        size = min(_BLOCK_ROWS_MAX, max(32, _BLOCK_BYTES // (8 * d)), max(1, n_rows))
        # One additional row, since the kernel processes rows in pairs.
        X = np.zeros((size + 1, d), self._dtype)
        labels = np.empty(size + 1, np.int32)
        weighted = any(chunk.weights is not None for chunk, _ in parts)
        weights = np.ones(size) if weighted else _NO_WEIGHTS
        n = 0
        for chunk, rows in parts:
            taken = np.arange(chunk.n_rows) if rows is None else rows
            at = 0
            while at < taken.size:
                part = taken[at : at + size - n]
                _gather(chunk, part, self._shift, X, n)
                if weighted:
                    weights[n : n + part.size] = (
                        1.0 if chunk.weights is None else chunk.weights[part]
                    )
                at, n = at + part.size, n + part.size
                if n == size:
                    yield self._labelled(X, n, weights, labels)
                    n = 0
        if n:
            yield self._labelled(X, n, weights, labels)

    def _labelled(self, X: NDArray[Any], n: int, weights: F64, labels: I32) -> _Block:
        n_centres = len(self.centres)
        kernels.nearest(X, n, self._across, self._half_squares, n_centres, labels)
        return _Block(X=X, n=n, weights=weights, labels=labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """The first ``n`` rows of these arrays, which are reused by the next block."""

    X: NDArray[Any]
    n: int
    weights: F64
    labels: I32


def nearest_of(centres: F64, parts: Parts) -> Nearest:
    """Prepare centres for rows of these chunks, in the chunks' precision."""
    return Nearest(centres, is_single=bool(parts) and parts[0][0].layout.dtype == "float32")


def statistics_of(centres: F64, parts: Parts, parallel: Parallel) -> Statistics:
    """Sum rows by nearest centre, in pieces of 512 rows; independent of the number of threads."""
    nearest = nearest_of(centres, parts)
    sums = parallel.map(nearest.statistics, _pieces(parts))
    for more in sums[1:]:
        sums[0].sums[...] += more.sums
        sums[0].counts[...] += more.counts
    return sums[0]  # type: ignore[no-any-return]


def _pieces(parts: Parts) -> list[Parts]:
    """Split rows into consecutive pieces of 512, at least one piece."""
    pieces: list[list[tuple[Chunk, NDArray[np.int64] | None]]] = [[]]
    room = _PIECE_ROWS
    for chunk, rows in parts:
        left = np.arange(chunk.n_rows) if rows is None else rows
        while left.size:
            if not room:
                pieces.append([])
                room = _PIECE_ROWS
            pieces[-1].append((chunk, left[:room]))
            left, room = left[room:], room - min(room, left.size)
    return list(pieces)


def whole(chunks: Sequence[Chunk]) -> Parts:
    """Return parts with all rows of the chunks."""
    return [(chunk, None) for chunk in chunks]


def dense_rows(chunk: Chunk, rows: NDArray[np.int64], d: int) -> F64:
    """Return rows of a chunk, new, (n, d), float64."""
    X = np.empty((rows.size, d))
    _gather(chunk, rows, np.zeros(d), X, 0)
    return X


def _gather(chunk: Chunk, rows: NDArray[np.int64], shift: F64, X: NDArray[Any], start: int) -> None:
    kind = chunk.layout.kind
    if kind == "sequence" or chunk.layout.n_columns > shift.size:
        raise ConfigError(
            f"algorithm.problem is 'kmeans' and chunk {chunk.id} is {kind} with "
            f"{chunk.layout.n_columns} columns, wanted numbers in {shift.size} columns; "
            "read the data as numbers",
            key="algorithm.problem",
        )
    if kind == "dense":
        kernels.gather_dense(chunk.values, rows, shift, X, start)
    else:
        kernels.gather_csr(chunk.indptr, chunk.indices, chunk.values, rows, shift, X, start)
