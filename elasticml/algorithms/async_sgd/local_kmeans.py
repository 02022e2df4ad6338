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
    empty_layout,
    nearest_checked,
    prepare_single,
    scratch,
    squared_distance,
)
from elasticml.algorithms.async_sgd.nearest_centres import move_to_means
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
_NOTHING: Final = np.empty(0)
_NO_SUMS: Final = np.empty((0, 0))
_NO_ORDER: Final = np.empty(0, np.int64)
#: Rows without labels and bounds.
_NO_STATE: Final = (_NOTHING, _NOTHING, np.empty(0, np.int32), _NOTHING, _NOTHING)
#: Half the distance to the nearest other centre is a bound too; it costs K^2 distances, and is
#: computed where there are at least this many rows per centre.
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
    dense: Any, indptr: Any, indices: I32, values: Any, order: I64, places: I64, n: int, X: F64
) -> None:
    """Write the first ``n`` rows at ``places`` of ``order`` into ``X``; see :func:`_assign`."""
    # Loops: an assignment to a slice takes a second to compile.
    d = X.shape[1]
    for at in range(n):
        row = order[places[at]] if order.size > 0 else places[at]
        if indptr.size == 0:
            for j in range(d):
                X[at, j] = dense[row, j]
            continue
        for j in range(d):
            X[at, j] = 0.0
        for k in range(indptr[row], indptr[row + 1]):
            X[at, indices[k]] += values[k]


@kernel
def _still_open(
    X: F64, rows: I64, n: int, centres: F64, safe: F64, labels: I32, upper: F64, lower: F64
) -> int:
    """Compute the distances of rows to their own centres; keep the rows that this leaves open."""
    left = 0
    for at in range(n):
        row = rows[at]
        own = labels[row]
        if own >= 0:
            upper[row] = np.sqrt(squared_distance(X[at], centres[own]))
            if upper[row] * (1.0 + _SLACK) < max(lower[row], safe[own]):
                continue
        rows[left] = row
        if left < at:
            for j in range(X.shape[1]):
                X[left, j] = X[at, j]
        left += 1
    return left


@kernel
def _assign(
    dense: Any,
    indptr: Any,
    indices: I32,
    values: Any,
    weights: F64,
    order: I64,
    low: int,
    high: int,
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
    X: F64,
    rows: I64,
    nearest: I32,
    halves: F64,
    gaps: F64,
    singles: Any,
    norms: Any,
    scores: Any,
    bits: I32,
    sums: F64,
    counts: F64,
) -> float:
    """Find the nearest centres of rows; update labels and bounds, or sum the rows by centre.

    Parameters
    ----------
    dense, indptr, indices, values, weights
        Of :class:`Rows`.
    order, low, high
        The rows are ``order[low:high]``; with an empty order, ``low`` to ``high``.
    shift, across, half_squares, radius
        What :func:`_prepare` wrote and returned.
    moved : ndarray (K,)
        Distances that the centres have moved since the bounds were true.
    safe : ndarray (K,)
        Half the distances to the nearest other centres: a row closer to its own has no other.
    labels : ndarray (n,)
        -1 for rows without bounds. If it is empty, rows are summed.
    upper, lower : ndarray (n,)
        Bounds of a row's distance to its centre, and to all others.
    is_exact : bool
        Make all upper bounds the distances.
    X, rows, nearest, halves, gaps, singles, norms, scores, bits
        From :func:`_space`.
    sums, counts : ndarray (K, D), ndarray (K,)
        Rows and weights are added to these.

    Returns
    -------
    float
        Weighted sum of the squared distances of summed rows.
    """
    most, next_most, furthest = 0.0, 0.0, -1
    for k in range(moved.size):
        if moved[k] > most:
            most, next_most, furthest = moved[k], most, k
        elif moved[k] > next_most:
            next_most = moved[k]
    n, total = 0, 0.0
    for i in range(low, high):
        is_open = True
        if labels.size > 0 and labels[i] >= 0:
            own = labels[i]
            upper[i] += moved[own]
            lower[i] -= next_most if own == furthest else most
            bound = max(lower[i], safe[own])
            is_open = is_exact or not upper[i] * (1.0 + _SLACK) < bound
        if is_open:
            rows[n] = i
            n += 1
        if n < rows.size and (n == 0 or i + 1 < high):
            continue
        _gather(dense, indptr, indices, values, order, rows, n, X)
        if labels.size > 0:
            n = _still_open(X, rows, n, centres, safe, labels, upper, lower)
        nearest_checked(
            X, n, centres, shift, across, half_squares, radius, singles, norms, scores, bits,
            nearest, halves, gaps,
        )  # fmt: skip
        for at in range(n):
            row, own = rows[at], nearest[at]
            if labels.size > 0:
                square = squared_distance(X[at], centres[own])
                labels[row] = own
                upper[row] = np.sqrt(square)
                lower[row] = np.sqrt(square + 2.0 * gaps[at]) * (1.0 - _SLACK)
            else:
                weight = weights[order[row]] if weights.size > 0 else 1.0
                counts[own] += weight
                for j in range(sums.shape[1]):
                    sums[own, j] += weight * X[at, j]
                total += 2.0 * max(0.0, halves[at]) * weight
        n = 0
    return total


@kernel
def _prepare(centres: F64, shift: F64, across: Any, half_squares: Any, safe: F64) -> Any:
    """Lay centres out relative to their mean; see :func:`prepare_single`.

    Writes half of each centre's distance to the nearest other one into ``safe``, unless it is
    empty.
    """
    for j in range(shift.size):
        total = 0.0
        for k in range(len(centres)):
            total += centres[k, j]
        shift[j] = total / len(centres)
    for k in range(safe.size):
        safe[k] = np.inf
        for m in range(k):
            half = 0.5 * np.sqrt(squared_distance(centres[k], centres[m]))
            safe[k] = min(safe[k], half)
            safe[m] = min(safe[m], half)
    return prepare_single(centres, shift, across, half_squares)


def _space(block: int, n_centres: int, d: int) -> tuple[Any, ...]:
    """Return arrays that :func:`_assign` overwrites, for blocks of ``block`` rows."""
    by_row = (np.empty(block, np.int32), np.empty(block), np.empty(block))
    return (np.empty((block, d)), np.empty(block, np.int64), *by_row, *scratch(block, n_centres, d))


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
    shift, arrays = np.empty(d), empty_layout(n_centres, d)
    data: tuple[Any, ...] = (*rows.arrays, rows.weights, order)
    shared = _space(rows.block, n_centres, d)
    total = 0.0
    for first in range(0, order.size, batch):
        end = min(first + batch, order.size)
        radius = _prepare(centres, shift, *arrays, _NOTHING)
        layout = (centres.copy(), shift, *arrays, radius)

        def piece(
            start: int, end: int = end, layout: tuple[Any, ...] = layout
        ) -> tuple[float, F64, F64]:
            sums, counts = np.zeros((n_centres, d)), np.zeros(n_centres)
            space = _space(rows.block, n_centres, d) if pays else shared
            rest = (*layout, *_NO_STATE, False, *space, sums, counts)
            part = (start, min(start + _PIECE_ROWS, end))
            arguments: tuple[Any, ...] = (*data, *part, *rest)
            return _assign(*arguments), sums, counts

        sums, counts = np.zeros((n_centres, d)), np.zeros(n_centres)
        starts = range(first, end, _PIECE_ROWS)
        for squares, piece_sums, piece_counts in threads.map(piece, starts):
            total += squares
            sums += piece_sums
            counts += piece_counts
        move_to_means(centres, mass, sums, counts)
    return total


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
    n_moved = 0
    for i in range(labels.size):
        if labels[i] == before[i]:
            continue
        n_moved += 1
        weight = weights[i] if weights.size > 0 else 1.0
        for side in range(2):
            k = labels[i] if side == 0 else before[i]
            if k < 0:
                continue
            counts[k] += weight
            for j in range(dense.shape[1]):
                sums[k, j] += weight * dense[i, j]
            if indptr.size > 0:
                for at in range(indptr[i], indptr[i + 1]):
                    sums[k, indices[at]] += weight * values[at]
            weight = -weight
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
        self._layout = empty_layout(n_centres, d)
        self._moved = np.zeros(n_centres)

    def move_to(self, centres: F64, *, is_exact: bool = False) -> None:
        """Move the centres, and update labels; with ``is_exact`` all distances."""
        self._moved += np.sqrt(((centres - self.centres) ** 2).sum(axis=1)) * (1.0 + _SLACK)
        self.centres = centres.copy()
        self._update(is_exact)

    def _update(self, is_exact: bool) -> None:
        rows, centres = self._rows, self.centres
        shift, safe = np.empty(centres.shape[1]), np.zeros(len(centres))
        pays = rows.n >= _ROWS_PER_CENTRE * len(centres)
        radius = _prepare(centres, shift, *self._layout, safe if pays else _NOTHING)
        n_pieces = max(1, min(rows.n // _ASSIGNED_ROWS_MIN, self._parallel.n_threads))
        ends = [rows.n * i // n_pieces for i in range(n_pieces + 1)]
        data: tuple[Any, ...] = (*rows.arrays, rows.weights, _NO_ORDER)
        layout = (centres, shift, *self._layout, radius)
        state = (self._moved, safe, self.labels, self._upper, self._lower, is_exact)

        def piece(i: int) -> None:
            space = _space(rows.block, *centres.shape)
            rest = (*layout, *state, *space, _NO_SUMS, _NOTHING)
            arguments: tuple[Any, ...] = (*data, ends[i], ends[i + 1], *rest)
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
