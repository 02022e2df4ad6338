"""Nearest centres of rows, sums by centre, and squared distances, for K-Means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.arrays import F64, I32, I64
from elasticml.compiled import compiled, kernel
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import ConfigError

# Serial compiled loops of K-Means: gather rows, find the nearest centres, sum by centre.
#
# Every loop is single-threaded and releases the GIL. Distances are compared as ``|c|^2/2 - x.c``,
# centres along the vector registers and two rows at a time, so that a centre is loaded once for
# both. The compiler may reassociate the sum of a distance; sums by centre keep the order of rows.


#: float64 or float32.
Real = NDArray[np.float64] | NDArray[np.float32]

#: Centres are padded to a multiple of this, which is a whole number of vector registers.
LANES: Final = 16


#: Reassociated sums, without NaN handling: sources reject NaN.
_comparing_kernel = compiled(fastmath={"reassoc", "contract", "nnan", "nsz"})


@kernel
def gather_dense(values: Real, rows: I64, shift: F64, out: Real, start: int) -> None:
    """Write ``values[rows] - shift`` into ``out[start:]``; rows may have fewer columns."""
    width = values.shape[1]
    for i in range(rows.size):
        row = rows[i]
        for j in range(width):
            out[start + i, j] = values[row, j] - shift[j]
        for j in range(width, shift.size):
            out[start + i, j] = -shift[j]


@kernel
def gather_csr(
    indptr: I32, indices: I32, values: Real, rows: I64, shift: F64, out: Real, start: int
) -> None:
    """Write the rows of a CSR chunk minus ``shift`` densely into ``out[start:]``.

    ``values`` is empty for binary chunks: all stored values are 1.
    """
    for i in range(rows.size):
        row = rows[i]
        for j in range(shift.size):
            out[start + i, j] = -shift[j]
        for at in range(indptr[row], indptr[row + 1]):
            out[start + i, indices[at]] += values[at] if values.size > 0 else 1.0


@kernel
def prepare(centres: F64, shift: F64, across: Real, half_squares: Real) -> None:
    """Lay centres out for :func:`nearest`: transposed, shifted, padded.

    Parameters
    ----------
    centres : ndarray (K, D)
    across : ndarray (D, P), P a multiple of 16 of at least K
        Padding is zero.
    half_squares : ndarray (P,)
        ``|c|^2/2`` of the centres as rounded in ``across``; padding is infinite.
    """
    n_centres, d = centres.shape
    for k in range(half_squares.size):
        half_squares[k] = np.inf
    for k in range(n_centres):
        total = 0.0
        for j in range(d):
            across[j, k] = centres[k, j] - shift[j]
            c = np.float64(across[j, k])
            total += c * c
        half_squares[k] = 0.5 * total


@_comparing_kernel
def nearest(X: Real, n: int, across: Real, half_squares: Real, n_centres: int, labels: I32) -> None:
    """Write the nearest centre of each of the first ``n`` rows; ties go to the first centre.

    For an odd ``n``, ``X`` must have one more row.
    """
    d, width = across.shape
    # If scores overflow, none equals the minimum; the label must still be a valid centre.
    last = n_centres - 1
    scores = np.empty((2, width), X.dtype)
    a, b = scores[0], scores[1]
    fours = d // 4 * 4
    for i in range(0, n, 2):
        x, y = X[i], X[i + 1]
        for k in range(width):
            a[k] = half_squares[k]
            b[k] = half_squares[k]
        for j in range(0, fours, 4):
            x0, x1, x2, x3 = x[j], x[j + 1], x[j + 2], x[j + 3]
            y0, y1, y2, y3 = y[j], y[j + 1], y[j + 2], y[j + 3]
            for k in range(width):
                c0, c1, c2, c3 = across[j, k], across[j + 1, k], across[j + 2, k], across[j + 3, k]
                a[k] -= x0 * c0 + x1 * c1 + x2 * c2 + x3 * c3
                b[k] -= y0 * c0 + y1 * c1 + y2 * c2 + y3 * c3
        for j in range(fours, d):
            x0, y0 = x[j], y[j]
            for k in range(width):
                a[k] -= x0 * across[j, k]
                b[k] -= y0 * across[j, k]
        low, other = a[0], b[0]
        for k in range(1, width):
            low = min(low, a[k])
            other = min(other, b[k])
        k = 0
        while k < last and a[k] != low:
            k += 1
        labels[i] = k
        if i + 1 < n:
            k = 0
            while k < last and b[k] != other:
                k += 1
            labels[i + 1] = k


@kernel
def add_rows(X: Real, n: int, weights: F64, labels: I32, sums: F64, counts: F64) -> None:
    """Add each of the first ``n`` rows to its label's sum, and its weight to the count.

    ``weights`` is empty for ones.
    """
    d = sums.shape[1]
    for i in range(n):
        k = labels[i]
        if weights.size > 0:
            s = weights[i]
            counts[k] += s
            for j in range(d):
                sums[k, j] += s * X[i, j]
        else:
            counts[k] += 1.0
            for j in range(d):
                sums[k, j] += X[i, j]


@_comparing_kernel
def add_squares(
    X: Real, n: int, weights: F64, labels: I32, centres: F64, shift: F64, out: F64
) -> float:
    """Write the squared distances to the labels' centres, and return their weighted sum."""
    total = 0.0
    for i in range(n):
        k, square = labels[i], 0.0
        for j in range(shift.size):
            # Differences instead of scores, which cancel near a centre.
            difference = X[i, j] - (centres[k, j] - shift[j])
            square += difference * difference
        out[i] = square
        total += weights[i] * square if weights.size > 0 else square
    return total


@kernel
def move_to_means(centres: F64, mass: F64, sums: F64, counts: F64) -> None:
    """Add the counts to ``mass``, and move each centre by ``n/mass (mean - centre)``."""
    for k in range(mass.size):
        if counts[k] > 0.0:
            mass[k] += counts[k]
            for j in range(centres.shape[1]):
                centres[k, j] += (sums[k, j] - counts[k] * centres[k, j]) / mass[k]


#: A chunk and int64 rows of it; None: all.
Parts = Sequence[tuple[Chunk, NDArray[np.int64] | None]]

#: Size in bytes of a block of gathered rows, which stays in the L1 and L2 caches.
_BLOCK_BYTES: Final = 2**17
_BLOCK_ROWS_MAX: Final = 2048
#: Rows of a mini-batch whose sums are added up first.
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
        width = -(-n_centres // LANES) * LANES
        self._across = np.zeros((d, width), self._dtype)
        self._half_squares = np.empty(width, self._dtype)
        prepare(centres, self._shift, self._across, self._half_squares)

    def statistics(self, parts: Parts, *, squares: bool = False) -> Statistics:
        """Sum rows by nearest centre, and with ``squares`` their squared distances; new arrays."""
        sums, counts = np.zeros(self.centres.shape), np.zeros(len(self.centres))
        inertia, out = 0.0, np.empty(_BLOCK_ROWS_MAX)
        for block in self._blocks(parts):
            add_rows(block.X, block.n, block.weights, block.labels, sums, counts)
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
            add_squares(
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
        nearest(X, n, self._across, self._half_squares, n_centres, labels)
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


def statistics_of(centres: F64, parts: Parts) -> Statistics:
    """Sum rows by nearest centre, in pieces of 512 rows, as mini-batches of one process do."""
    nearest = nearest_of(centres, parts)
    sums = [nearest.statistics(piece) for piece in _pieces(parts)]
    for more in sums[1:]:
        sums[0].sums[...] += more.sums
        sums[0].counts[...] += more.counts
    return sums[0]


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
        gather_dense(chunk.values, rows, shift, X, start)
    else:
        gather_csr(chunk.indptr, chunk.indices, chunk.values, rows, shift, X, start)
