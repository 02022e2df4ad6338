"""K-Means over rows in the memory of one process: mini-batches, then Lloyd's with bounds.

Mini-batches take the steps of :class:`elasticml.algorithms.async_sgd.kmeans.KMeans`. Lloyd's
iterations are exact: a row keeps its centre without a look at the others while an upper bound of
its distance is below a lower bound of those to all others. The others are compared in blocks.

Source: Hamerly, "Making k-means even faster" (SDM 2010).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import scipy.sparse

from elasticml.algorithms.async_sgd.checked_singles import (
    nearest_checked,
    padded,
    prepare_single,
    squared_distance,
)
from elasticml.algorithms.async_sgd.nearest_centres import (
    add_rows,
    gather_csr,
    gather_dense,
    move_to_means,
)
from elasticml.algorithms.base import Parallel
from elasticml.algorithms.parallel import Serial
from elasticml.arrays import F64, I32, I64
from elasticml.compiled import kernel

#: Size in bytes of a block of gathered rows, which stays in the L2 cache.
_BLOCK_BYTES: Final = 2**18
_BLOCK_ROWS_MAX: Final = 1024
#: Rows of a mini-batch whose sums are added up first, by one thread.
_PIECE_ROWS: Final = 512
#: Products of a piece for which waking a thread pays: about 0.2 ms.
_PIECE_PRODUCTS_MIN: Final = 8_000_000
#: Fewest rows per piece of an assignment.
_ASSIGNED_ROWS_MIN: Final = 1024
#: Bounds are compared with this relative slack, for rounding errors of their sums.
_SLACK: Final = 1e-9
#: Half the distance to the nearest other centre is a bound too; it costs K^2 distances, and is
#: computed for at least so many rows per centre.
_ROWS_PER_CENTRE: Final = 20


class Rows:
    """Rows of numbers, dense or CSR, with weights.

    Parameters
    ----------
    X : ndarray (n, d) or CSR matrix (n, d), float64 or float32
    weights : ndarray (n,), optional
        Nonnegative; ones by default.
    """

    def __init__(self, X: Any, weights: F64 | None) -> None:
        self.n, self.d = X.shape
        nothing = np.empty(0, np.int32)
        self.weights = np.empty(0) if weights is None else np.ascontiguousarray(weights, np.float64)
        if scipy.sparse.issparse(X):
            index = np.int64 if X.nnz > np.iinfo(np.int32).max else np.int32
            indices = (X.indptr.astype(index), X.indices.astype(np.int32))
            self.arrays: tuple[Any, Any, Any, Any] = (np.empty((0, 0), X.dtype), *indices, X.data)
        else:
            self.arrays = (np.ascontiguousarray(X), nothing, nothing, np.empty(0, X.dtype))

    @property
    def block(self) -> int:
        """Rows of a block."""
        rows: int = max(16, min(_BLOCK_ROWS_MAX, _BLOCK_BYTES // (8 * self.d)))
        return rows


@kernel
def _gather(
    dense: Any, indptr: Any, indices: I32, values: Any, rows: I64, zeros: F64, X: F64
) -> None:
    if indptr.size > 0:
        gather_csr(indptr, indices, values, rows, zeros, X, 0)
    else:
        gather_dense(dense, rows, zeros, X, 0)


@kernel
def _clear(sums: F64, counts: F64) -> None:
    # Loops: an assignment to a slice takes a second to compile.
    for k in range(counts.size):
        counts[k] = 0.0
        for j in range(sums.shape[1]):
            sums[k, j] = 0.0


@kernel
def _piece_sums(
    dense: Any,
    indptr: Any,
    indices: I32,
    values: Any,
    weights: F64,
    rows: I64,
    block: int,
    centres: F64,
    shift: F64,
    across: Any,
    half_squares: Any,
    radius: float,
    sums: F64,
    counts: F64,
) -> float:
    """Write sums and weights of rows by nearest centre; return their weighted squared distances."""
    d = centres.shape[1]
    zeros, X = np.zeros(d), np.empty((block, d))
    labels, halves, gaps = np.empty(block, np.int32), np.empty(block), np.empty(block)
    some = np.empty(block if weights.size > 0 else 0)
    total = 0.0
    _clear(sums, counts)
    for start in range(0, rows.size, block):
        part = rows[start : start + block]
        _gather(dense, indptr, indices, values, part, zeros, X)
        nearest_checked(
            X, part.size, centres, shift, across, half_squares, radius, labels, halves, gaps
        )
        if weights.size > 0:
            for i in range(part.size):
                some[i] = weights[part[i]]
        add_rows(X, part.size, some, labels, sums, counts)
        for i in range(part.size):
            total += 2.0 * max(0.0, halves[i]) * (some[i] if some.size > 0 else 1.0)
    return total


@kernel
def _prepare(centres: F64, shift: F64, across: Any, half_squares: Any) -> Any:
    """Lay centres out relative to their mean; see :func:`prepare_single`."""
    for j in range(shift.size):
        total = 0.0
        for k in range(len(centres)):
            total += centres[k, j]
        shift[j] = total / len(centres)
    return prepare_single(centres, shift, across, half_squares)


def mini_batch_pass(
    rows: Rows, order: I64, batch: int, centres: F64, mass: F64, parallel: Parallel
) -> float:
    """Take a mini-batch step with every ``batch`` rows in this order; modifies centres and mass.

    The result does not depend on the threads, which share steps whose pieces pay.

    Returns
    -------
    float
        Weighted sum of the rows' squared distances to the nearest centre before their own step.
    """
    pays = _PIECE_ROWS * centres.size >= _PIECE_PRODUCTS_MIN
    threads = parallel if pays else Serial()
    n_centres, d = centres.shape
    shift, width = np.empty(d), padded(n_centres)
    across, half_squares = np.empty((d, width), np.float32), np.empty(width, np.float32)
    total = 0.0
    for first in range(0, order.size, batch):
        some = order[first : first + batch]
        radius = _prepare(centres, shift, across, half_squares)
        layout: tuple[Any, ...] = (rows.block, centres.copy(), shift, across, half_squares, radius)

        def piece(
            start: int, some: I64 = some, layout: tuple[Any, ...] = layout
        ) -> tuple[float, F64, F64]:
            sums, counts = np.empty((n_centres, d)), np.empty(n_centres)
            part = some[start : start + _PIECE_ROWS]
            arguments: tuple[Any, ...] = (*rows.arrays, rows.weights, part, *layout, sums, counts)
            squares = _piece_sums(*arguments)
            return squares, sums, counts

        sums, counts = np.zeros((n_centres, d)), np.zeros(n_centres)
        starts = range(0, len(some), _PIECE_ROWS)
        for squares, piece_sums, piece_counts in threads.map(piece, starts):
            total += squares
            sums += piece_sums
            counts += piece_counts
        move_to_means(centres, mass, sums, counts)
    return total


@kernel
def _half_to_nearest(centres: F64, out: F64) -> None:
    """Write half of each centre's distance to the nearest other one."""
    for k in range(len(centres)):
        out[k] = np.inf
        for m in range(k):
            half = 0.5 * np.sqrt(squared_distance(centres[k], centres[m]))
            out[k] = min(out[k], half)
            out[m] = min(out[m], half)


@kernel
def _assign(
    dense: Any,
    indptr: Any,
    indices: I32,
    values: Any,
    low: int,
    high: int,
    block: int,
    centres: F64,
    shift: F64,
    across: Any,
    half_squares: Any,
    radius: float,
    moved: F64,
    safe: F64,
    labels: I32,
    upper: F64,
    lower: F64,
    is_exact: bool,
) -> None:
    """Update labels and bounds of rows ``low`` to ``high`` after the centres moved.

    Parameters
    ----------
    moved : ndarray (K,)
        Distances that the centres have moved since the bounds were true.
    safe : ndarray (K,)
        Half the distances to the nearest other centres: a row closer to its own has no other.
    labels : ndarray (n,)
        -1 for rows without bounds.
    upper, lower : ndarray (n,)
        Bounds of a row's distance to its centre, and to all others.
    is_exact : bool
        Make all upper bounds the distances.
    """
    n_centres, d = centres.shape
    most, next_most, furthest = 0.0, 0.0, -1
    for k in range(n_centres):
        if moved[k] > most:
            most, next_most, furthest = moved[k], most, k
        elif moved[k] > next_most:
            next_most = moved[k]
    zeros = np.zeros(d)
    X, rows = np.empty((block, d)), np.empty(block, np.int64)
    nearest, halves, gaps = np.empty(block, np.int32), np.empty(block), np.empty(block)
    n = 0
    for i in range(low, high):
        own = labels[i]
        is_open = True
        if own >= 0:
            upper[i] += moved[own]
            lower[i] -= next_most if own == furthest else most
            bound = max(lower[i], safe[own])
            is_open = is_exact or not upper[i] * (1.0 + _SLACK) < bound
        if is_open:
            rows[n] = i
            n += 1
        if n < block and (n == 0 or i + 1 < high):
            continue
        _gather(dense, indptr, indices, values, rows[:n], zeros, X)
        left = np.int64(0)
        for at in range(n):
            row = rows[at]
            own = labels[row]
            if own >= 0:
                upper[row] = np.sqrt(squared_distance(X[at], centres[own]))
                if upper[row] * (1.0 + _SLACK) < max(lower[row], safe[own]):
                    continue
            rows[left] = row
            if left < at:
                for j in range(d):
                    X[left, j] = X[at, j]
            left += 1
        nearest_checked(
            X, left, centres, shift, across, half_squares, radius, nearest, halves, gaps
        )
        for at in range(left):
            row, own = rows[at], nearest[at]
            square = squared_distance(X[at], centres[own])
            labels[row] = own
            upper[row] = np.sqrt(square)
            lower[row] = np.sqrt(square + 2.0 * gaps[at]) * (1.0 - _SLACK)
        n = 0


@kernel
def _move_rows(
    dense: Any,
    indptr: Any,
    indices: I32,
    values: Any,
    weights: F64,
    before: I32,
    labels: I32,
    sums: F64,
    counts: F64,
) -> int:
    """Take rows with a new label from the old one's sum to the new one's; return their number."""
    d = sums.shape[1]
    zeros = np.zeros(d)
    X, rows = np.empty((1, d)), np.empty(1, np.int64)
    n_moved = 0
    for i in range(labels.size):
        if labels[i] == before[i]:
            continue
        n_moved += 1
        rows[0] = i
        _gather(dense, indptr, indices, values, rows, zeros, X)
        weight = weights[i] if weights.size > 0 else 1.0
        for j in range(d):
            sums[labels[i], j] += weight * X[0, j]
        counts[labels[i]] += weight
        if before[i] >= 0:
            for j in range(d):
                sums[before[i], j] -= weight * X[0, j]
            counts[before[i]] -= weight
    return n_moved


class Assignment:
    """Labels of rows, kept up to date with moving centres.

    Parameters
    ----------
    rows : Rows
    centres : ndarray (K, D)
    parallel : Parallel
        Labels do not depend on its threads.
    """

    def __init__(self, rows: Rows, centres: F64, parallel: Parallel) -> None:
        n_centres, d = centres.shape
        self._rows, self._parallel = rows, parallel
        self.centres = centres.copy()
        self.labels = np.full(rows.n, -1, np.int32)
        self._upper, self._lower = np.zeros(rows.n), np.zeros(rows.n)
        self._sums, self._counts = np.zeros((n_centres, d)), np.zeros(n_centres)
        self._summed = self.labels.copy()
        width = padded(n_centres)
        self._across = np.empty((d, width), np.float32)
        self._half_squares = np.empty(width, np.float32)
        self._moved = np.zeros(n_centres)

    def move_to(self, centres: F64, *, is_exact: bool = False) -> None:
        """Move the centres, and update labels; with ``is_exact`` all distances."""
        self._moved += np.sqrt(((centres - self.centres) ** 2).sum(axis=1)) * (1.0 + _SLACK)
        self.centres = centres.copy()
        self._update(is_exact)

    def _update(self, is_exact: bool) -> None:
        rows, centres = self._rows, self.centres
        shift = np.empty(centres.shape[1])
        radius = _prepare(centres, shift, self._across, self._half_squares)
        safe = np.zeros(len(centres))
        if rows.n >= _ROWS_PER_CENTRE * len(centres):
            _half_to_nearest(centres, safe)
        n_pieces = max(1, min(rows.n // _ASSIGNED_ROWS_MIN, self._parallel.n_threads))
        ends = [rows.n * i // n_pieces for i in range(n_pieces + 1)]
        layout = (rows.block, centres, shift, self._across, self._half_squares, radius)
        state = (self._moved, safe, self.labels, self._upper, self._lower, is_exact)
        arrays: tuple[Any, ...] = rows.arrays
        rest: tuple[Any, ...] = (*layout, *state)

        def piece(i: int) -> None:
            arguments: tuple[Any, ...] = (*arrays, ends[i], ends[i + 1], *rest)
            _assign(*arguments)

        self._parallel.map(piece, range(n_pieces))
        self._moved[:] = 0.0

    def means(self) -> tuple[F64, F64, int]:
        """Return the means (K, D) of the centres' rows, their weights, and how many rows moved.

        A centre without rows stays.
        """
        rows, summed = self._rows, self._summed
        sums = (self._sums, self._counts)
        arguments: tuple[Any, ...] = (*rows.arrays, rows.weights, summed, self.labels, *sums)
        moved = _move_rows(*arguments)
        summed[:] = self.labels
        has_rows = self._counts > 0.0
        means = self.centres.copy()
        means[has_rows] = self._sums[has_rows] / self._counts[has_rows, None]
        return means, self._counts.copy(), moved

    def squares(self) -> F64:
        """Return the squared distances (n,) to the centres, exact after an exact move."""
        return self._upper**2
