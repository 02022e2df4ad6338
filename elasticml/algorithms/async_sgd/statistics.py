"""What K-Means asks of rows: their nearest centres, sums by centre, squared distances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd import nearest_kernels as kernels
from elasticml.algorithms.base import Parallel
from elasticml.data.chunk import Chunk
from elasticml.errors import ConfigError

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
#: A chunk and int64 rows of it; None: all.
Parts = Sequence[tuple[Chunk, NDArray[np.int64] | None]]

#: Rows are gathered in blocks of about so many bytes, which stay in the nearest caches.
_BLOCK_BYTES: Final = 2**17
_BLOCK_ROWS_MAX: Final = 2048
#: Rows of a mini-batch that one thread sums; of fewer the hand-over would take longer.
_PIECE_ROWS: Final = 512
_NO_WEIGHTS: Final = np.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Weighted sums (K, D) of the rows nearest to each centre, and the sums (K,) of weights."""

    sums: F64
    counts: F64
    #: Their weighted squared distances to the nearest centres, where these were asked for.
    inertia: float = 0.0


class Nearest:
    """Centres laid out for looking rows up among them.

    Parameters
    ----------
    centres : ndarray (K, D), float64, C-contiguous
        Not to be changed while this is in use.
    is_single : bool
        Compare in single precision, with everything moved to the centres' mean: far from the
        origin single precision has no digits left for differences.
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
        """Sum rows by nearest centre, and their squared distances if wanted; new arrays."""
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
        """Sum the rows' weighted squared distances to their nearest centres."""
        total, out = 0.0, np.empty(_BLOCK_ROWS_MAX)
        for block in self._blocks(parts):
            total += self._squares(block, out)
        return total

    def lookup(self, parts: Parts) -> tuple[I32, F64]:
        """Return each row's nearest centre and squared distance to it; new, shape (n,)."""
        found, near = [np.empty(0, np.int32)], [np.empty(0)]
        for block in self._blocks(parts):
            squares = np.empty(block.n)
            self._squares(block, squares)
            found.append(block.labels[: block.n].copy())
            near.append(squares)
        return np.concatenate(found), np.concatenate(near)

    def _squares(self, block: _Block, out: F64) -> float:
        return float(
            kernels.add_squares(
                block.X, block.n, block.weights, block.labels, self.centres, self._shift, out
            )
        )

    def _blocks(self, parts: Parts) -> Iterator[_Block]:
        """Gather rows into blocks, whichever chunks they are of, and label them."""
        wanted = sum(chunk.n_rows if rows is None else rows.size for chunk, rows in parts)
        d = self.centres.shape[1]
        size = min(_BLOCK_ROWS_MAX, max(32, _BLOCK_BYTES // (8 * d)), max(1, wanted))
        # One row more, since rows are looked up by twos.
        X = np.zeros((size + 1, d), self._dtype)
        labels = np.empty(size + 1, np.int32)
        weighted = any(chunk.weights is not None for chunk, _ in parts)
        weights = np.ones(size) if weighted else _NO_WEIGHTS
        n = 0
        for chunk, rows in parts:
            taken = np.arange(chunk.n_rows) if rows is None else rows
            at = 0
            while at < taken.size:
                some = taken[at : at + size - n]
                _gather(chunk, some, self._shift, X, n)
                if weighted:
                    weights[n : n + some.size] = (
                        1.0 if chunk.weights is None else chunk.weights[some]
                    )
                at, n = at + some.size, n + some.size
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
    """The first ``n`` rows of these arrays, which the next block overwrites."""

    X: NDArray[Any]
    n: int
    weights: F64
    labels: I32


def nearest_of(centres: F64, parts: Parts) -> Nearest:
    """Lay centres out for rows of these chunks, in their precision."""
    return Nearest(centres, is_single=bool(parts) and parts[0][0].layout.dtype == "float32")


def statistics_of(centres: F64, parts: Parts, parallel: Parallel) -> Statistics:
    """Sum rows by nearest centre, in pieces of 512 rows: the same bits whatever the threads."""
    nearest = nearest_of(centres, parts)
    found = parallel.map(nearest.statistics, _pieces(parts))
    for more in found[1:]:
        found[0].sums[...] += more.sums
        found[0].counts[...] += more.counts
    return found[0]  # type: ignore[no-any-return]


def _pieces(parts: Parts) -> list[Parts]:
    """Cut rows into consecutive runs of 512, at least one."""
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
    """All rows of the chunks."""
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
