"""Lloyd's algorithm for K-Means over rows in the memory of one process, with bounds.

The iterations are exact: a row keeps its centre without a look at the others while an upper bound
of its distance is below a lower bound of those to all others. Dense rows are compared with all
centres in blocks, sparse ones value by value.

Source: Hamerly, "Making k-means even faster" (SDM 2010).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import scipy.sparse

from elasticml.algorithms.async_sgd.checked_singles import (
    Block,
    Layout,
    comparing_kernel,
    empty_block,
    lay_out,
    nearest_checked,
    squared_distance,
    two_by_doubles,
)
from elasticml.algorithms.base import Parallel
from elasticml.arrays import F64, I32, I64
from elasticml.compiled import kernel

#: Size in bytes of a block of gathered rows, which stays in the L2 cache.
_BLOCK_BYTES: Final = 2**18
_BLOCK_ROWS_MAX: Final = 1024
#: Fewest rows per piece of an assignment.
_ASSIGNED_ROWS_MIN: Final = 1024
#: Bounds are compared with this relative slack, for rounding errors of their sums.
_SLACK: Final = 1e-9
#: Absolute error of a sparse row's distance, as a share of the norms of row and centre: its square
#: is a difference, and has a relative error of some units of double precision.
_CANCELLED: Final = 1e-7
#: So few centres are compared in double precision at once: single precision pays for more.
_FEW: Final = 8
#: Half the distance to the nearest other centre is a bound too; it costs K^2 distances, and is
#: computed where there are at least this many rows per centre.
_ROWS_PER_CENTRE: Final = 20


class Stored(NamedTuple):
    """Rows for compiled code: dense, or the parts of a CSR matrix; the others are empty."""

    dense: Any
    indptr: Any
    indices: I32
    values: Any
    #: Squared norms of sparse rows.
    squares: F64
    #: Empty for ones.
    weights: F64


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
        self.weights = np.empty(0) if weights is None else np.ascontiguousarray(weights, np.float64)
        self.is_sparse = scipy.sparse.issparse(X)
        if self.is_sparse:
            if not X.has_canonical_format:
                X = X.copy()
                X.sum_duplicates()
            index = np.int64 if X.nnz > np.iinfo(np.int32).max else np.int32
            indices = (X.indptr.astype(index, copy=False), X.indices.astype(np.int32, copy=False))
            values = scipy.sparse.csr_matrix((X.data.astype(np.float64) ** 2, X.indices, X.indptr))
            squares = np.asarray(values.sum(axis=1), np.float64).ravel()
            empty: Any = np.empty((0, 0), X.dtype)
            self.stored = Stored(empty, *indices, X.data, squares, self.weights)
        else:
            X = np.ascontiguousarray(X)
            nothing, values = np.empty(0, np.int32), np.empty(0, X.dtype)
            self.stored = Stored(X, nothing, nothing, values, np.empty(0), self.weights)
        self._X = X

    def dense(self, rows: Any) -> F64:
        """Return some rows, new, (n, d)."""
        if not self.is_sparse:
            return np.array(self._X[rows], np.float64)
        out = np.zeros((len(rows), self.d))
        for at, row in enumerate(rows):
            part = slice(*self.stored.indptr[row : row + 2])
            out[at, self.stored.indices[part]] = self.stored.values[part]
        return out

    def take(self, rows: Any, dtype: Any = None) -> Rows:
        """Return some rows without weights, by default of the same type."""
        X = self._X[rows]
        return Rows(X if dtype is None else X.astype(dtype), None)

    def squares_to_mean(self, weights: F64) -> F64:
        """Return the squared distances (n,) of all rows to their weighted mean."""
        X, norms = self._X, self.stored.squares
        if not self.is_sparse:
            norms = np.einsum("ij,ij->i", X, X, dtype=np.float64)
        mean = X.T @ (weights / weights.sum())
        products: F64 = X @ mean
        return np.maximum(norms - 2.0 * products + float(mean @ mean), 0.0)


class _Bounds(NamedTuple):
    """Labels of rows, -1 for none, and bounds of their distances."""

    labels: I32
    #: Of the distance to its own centre.
    upper: F64
    #: Of those to all others.
    lower: F64


@kernel
def _open_rows(
    moved: F64, safe: F64, slack: float, bounds: _Bounds, is_exact: bool, low: int, rows: I64
) -> int:
    """Move the bounds of rows from ``low`` on; write and count those that they leave open."""
    labels, upper, lower = bounds
    most, next_most, furthest = 0.0, 0.0, -1
    for k in range(moved.size):
        if moved[k] > most:
            most, next_most, furthest = moved[k], most, k
        elif moved[k] > next_most:
            next_most = moved[k]
    n = 0
    for i in range(low, low + rows.size):
        own = labels[i]
        if own >= 0:
            upper[i] += moved[own]
            lower[i] -= next_most if own == furthest else most
            bound = max(lower[i], safe[own])
            if not is_exact and upper[i] * (1.0 + _SLACK) + slack < bound:
                continue
        rows[n] = i
        n += 1
    return n


@kernel
def _assign_dense(
    dense: Any, rows: I64, n: int, layout: Layout, safe: F64, bounds: _Bounds, X: F64, block: Block
) -> None:
    """Find the nearest centres of the first ``n`` of ``rows``; update labels and bounds.

    Parameters
    ----------
    safe : ndarray (K,)
        Half the distances to the nearest other centres: a row closer to its own has no other.
    X : ndarray (m, D)
        Overwritten, as ``block``.
    """
    labels, upper, lower = bounds
    centres, nearest, gaps = layout.centres, block.labels, block.gaps
    d = X.shape[1]
    for start in range(0, n, len(X)):
        left = np.int64(0)  # typed at once: a literal would compile what follows twice
        for at in range(start, min(start + len(X), n)):
            row = rows[at]
            # A loop: an assignment to a slice takes a second to compile.
            for j in range(d):
                X[left, j] = dense[row, j]
            own = labels[row]
            if own >= 0:
                upper[row] = np.sqrt(squared_distance(X[left], centres[own]))
                if upper[row] * (1.0 + _SLACK) < max(lower[row], safe[own]):
                    continue
            if len(centres) <= _FEW:
                own, half, gap = two_by_doubles(X[left], centres)
                labels[row] = own
                upper[row] = np.sqrt(2.0 * half)
                lower[row] = np.sqrt(2.0 * (half + gap)) * (1.0 - _SLACK)
                continue
            rows[start + left] = row
            left += 1
        nearest_checked(X, left, layout, block)
        for at in range(left):
            row, own = rows[start + at], nearest[at]
            square = squared_distance(X[at], centres[own])
            labels[row] = own
            upper[row] = np.sqrt(square)
            lower[row] = np.sqrt(square + 2.0 * gaps[at]) * (1.0 - _SLACK)


@comparing_kernel
def _assign_sparse(
    stored: Stored,
    rows: I64,
    n: int,
    layout: Layout,
    slack: float,
    safe: F64,
    bounds: _Bounds,
    scores: F64,
) -> None:
    """Do the same as :func:`_assign_dense` for the rows of a CSR matrix.

    Parameters
    ----------
    slack : float
        Error of a distance.
    scores : ndarray (P,)
        Overwritten.
    """
    labels, upper, lower = bounds
    centres, across, half_squares = layout.centres, layout.across, layout.half_squares
    _, indptr, indices, values, squares, _ = stored
    for i in range(n):
        row = rows[i]
        start, end = indptr[row], indptr[row + 1]
        own = labels[row]
        if own >= 0:
            total = 0.0
            for at in range(start, end):
                total += values[at] * centres[own, indices[at]]
            square = squares[row] - 2.0 * (total - half_squares[own])
            upper[row] = np.sqrt(max(0.0, square))
            if upper[row] * (1.0 + _SLACK) + slack < max(lower[row], safe[own]):
                continue
        for k in range(scores.size):
            scores[k] = half_squares[k]
        for at in range(start, end):
            value, column = values[at], across[indices[at]]
            for k in range(scores.size):
                scores[k] -= value * column[k]
        place, least, second = 0, np.inf, np.inf
        for k in range(len(centres)):
            if scores[k] < least:
                place, least, second = k, scores[k], least
            elif scores[k] < second:
                second = scores[k]
        labels[row] = place
        upper[row] = np.sqrt(max(0.0, squares[row] + 2.0 * least))
        lower[row] = np.sqrt(max(0.0, squares[row] + 2.0 * second)) * (1.0 - _SLACK)


@kernel
def _safe_distances(centres: F64, safe: F64) -> None:
    """Write half of each centre's distance to the nearest other one."""
    for k in range(safe.size):
        safe[k] = np.inf
        for m in range(k):
            half = 0.5 * np.sqrt(squared_distance(centres[k], centres[m]))
            safe[k] = min(safe[k], half)
            safe[m] = min(safe[m], half)


@kernel
def _move_rows(rows: Stored, before: I32, labels: I32, sums: F64, counts: F64) -> int:
    """Take rows with a new label from the old one's sum to the new one's; return their number."""
    dense, indptr, indices, values, _, weights = rows
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
        self._bounds = _Bounds(self.labels, np.zeros(rows.n), np.zeros(rows.n))
        self._sums, self._counts = np.zeros((n_centres, d)), np.zeros(n_centres)
        self._summed = self.labels.copy()
        self._moved = np.zeros(n_centres)

    def move_to(self, centres: F64, *, is_exact: bool = False) -> None:
        """Move the centres, and update labels; with ``is_exact`` all distances."""
        self._moved += np.sqrt(((centres - self.centres) ** 2).sum(axis=1)) * (1.0 + _SLACK)
        self.centres = centres.copy()
        rows, bounds, safe, slack = self._rows, self._bounds, np.zeros(len(centres)), 0.0
        if rows.n >= _ROWS_PER_CENTRE * len(centres):
            _safe_distances(self.centres, safe)
        if rows.is_sparse:
            largest = rows.stored.squares.max(initial=0.0) + (centres**2).sum(axis=1).max()
            slack = 2.0 * _CANCELLED * float(np.sqrt(largest))
            layout = lay_out(self.centres, np.zeros(rows.d), np.float64)
        else:
            layout = lay_out(self.centres, centres.mean(axis=0), np.float32)
        n_pieces = max(1, min(rows.n // _ASSIGNED_ROWS_MIN, self._parallel.n_threads))
        ends = [rows.n * i // n_pieces for i in range(n_pieces + 1)]

        def piece(i: int) -> None:
            still = np.empty(ends[i + 1] - ends[i], np.int64)
            n = _open_rows(self._moved, safe, slack, bounds, is_exact, ends[i], still)
            if rows.is_sparse:
                scores = np.empty(layout.half_squares.size)
                _assign_sparse(rows.stored, still, n, layout, slack, safe, bounds, scores)
            else:
                size = max(16, min(_BLOCK_ROWS_MAX, _BLOCK_BYTES // (8 * rows.d)))
                space = (np.empty((size, rows.d)), empty_block(size, *centres.shape))
                _assign_dense(rows.stored.dense, still, n, layout, safe, bounds, *space)

        self._parallel.map(piece, range(n_pieces))
        self._moved[:] = 0.0

    def means(self) -> tuple[F64, F64, int]:
        """Return the means (K, D) of the centres' rows, their weights, and how many rows moved.

        A centre without rows stays.
        """
        summed, sums = self._summed, (self._sums, self._counts)
        moved = _move_rows(self._rows.stored, summed, self.labels, *sums)
        summed[:] = self.labels
        has_rows = self._counts > 0.0
        means = self.centres.copy()
        means[has_rows] = self._sums[has_rows] / self._counts[has_rows, None]
        return means, self._counts.copy(), moved

    def squares(self) -> F64:
        """Return the squared distances (n,) to the centres, exact after an exact move."""
        return self._bounds.upper**2
