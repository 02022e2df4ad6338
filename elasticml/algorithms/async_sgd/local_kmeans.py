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
    middle_of,
    nearest_checked,
    score_sparse,
    squared_distance,
    two_by_doubles,
)
from elasticml.algorithms.base import Parallel
from elasticml.arrays import F64, I32
from elasticml.compiled import inlined_kernel, kernel

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
#: The same of squared distances of centres, which are differences too.
_ROUNDING: Final = 1e-12
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
        self.X = X

    def dense(self, rows: Any) -> F64:
        """Return some rows, new, (n, d)."""
        if not self.is_sparse:
            return np.array(self.X[rows], np.float64)
        out = np.zeros((len(rows), self.d))
        for at, row in enumerate(rows):
            part = slice(*self.stored.indptr[row : row + 2])
            out[at, self.stored.indices[part]] = self.stored.values[part]
        return out

    def take(self, rows: Any) -> Rows:
        """Return some rows without weights."""
        return Rows(self.X[rows], None)

    def squares_to_mean(self, weights: F64) -> F64:
        """Return the squared distances (n,) of all rows to their weighted mean."""
        X, norms = self.X, self.stored.squares
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


class _Motion(NamedTuple):
    """How far centres moved, and what follows for the bounds."""

    #: Of each centre, and the most of all others, (K,).
    own: F64
    others: F64
    #: Half the distances to the nearest other centres: a row closer to its own has no other.
    safe: F64
    #: Error of a distance, and the same for the bounds; infinite if all distances are wanted.
    slack: float
    of_bounds: float


@inlined_kernel
def _is_open(
    i: int, labels: I32, upper: F64, lower: F64, moved: F64, others: F64, safe: F64, slack: float
) -> bool:
    """Move the bounds of a row; return whether they leave open which centre is its nearest."""
    own = labels[i]
    if own < 0:
        return True
    upper[i] += moved[own]
    lower[i] -= others[own]
    return not upper[i] * (1.0 + _SLACK) + slack < max(lower[i], safe[own])


@kernel
def _assign_dense(
    dense: Any, low: int, high: int, layout: Layout, motion: _Motion, bounds: _Bounds, block: Block
) -> None:
    """Find the nearest centres of rows ``low`` to ``high``; update labels and bounds."""
    labels, upper, lower = bounds
    moved, others, safe, _, slack = motion
    centres, X, rows, nearest, gaps = layout.centres, block.X, block.rows, block.labels, block.gaps
    row = low
    while row < high:
        left = np.int64(0)  # typed at once: a literal would compile what follows twice
        while row < high and left < len(X):
            i = row
            row += 1
            if not _is_open(i, labels, upper, lower, moved, others, safe, slack):
                continue
            # A loop: an assignment to a slice takes a second to compile.
            for j in range(X.shape[1]):
                X[left, j] = dense[i, j]
            own = labels[i]
            if own >= 0:
                upper[i] = np.sqrt(squared_distance(X[left], centres[own]))
                if upper[i] * (1.0 + _SLACK) < max(lower[i], safe[own]):
                    continue
            if len(centres) <= _FEW:
                own, half, gap = two_by_doubles(X[left], centres)
                labels[i] = own
                upper[i] = np.sqrt(2.0 * half)
                lower[i] = np.sqrt(2.0 * (half + gap)) * (1.0 - _SLACK)
                continue
            rows[left] = i
            left += 1
        nearest_checked(left, layout, block)
        for at in range(left):
            i, own = rows[at], nearest[at]
            square = squared_distance(X[at], centres[own])
            labels[i] = own
            upper[i] = np.sqrt(square)
            lower[i] = np.sqrt(square + 2.0 * gaps[at]) * (1.0 - _SLACK)


@comparing_kernel
def _assign_sparse(
    stored: Stored, low: int, high: int, layout: Layout, motion: _Motion, bounds: _Bounds
) -> None:
    """Do the same as :func:`_assign_dense` for the rows of a CSR matrix."""
    labels, upper, lower = bounds
    moved, others, safe, slack, of_bounds = motion
    centres, across, half_squares = layout.centres, layout.across, layout.half_squares
    _, indptr, indices, values, squares, _ = stored
    scores = np.empty(half_squares.size)
    for row in range(low, high):
        if not _is_open(row, labels, upper, lower, moved, others, safe, of_bounds):
            continue
        own = labels[row]
        if own >= 0 and len(centres) > _FEW:
            total = 0.0
            for at in range(indptr[row], indptr[row + 1]):
                total += values[at] * centres[own, indices[at]]
            square = squares[row] - 2.0 * (total - half_squares[own])
            upper[row] = np.sqrt(max(0.0, square))
            if upper[row] * (1.0 + _SLACK) + slack < max(lower[row], safe[own]):
                continue
        score_sparse(indptr, indices, values, row, across, half_squares, scores)
        place, least, second = 0, np.inf, np.inf
        for k in range(len(centres)):
            if scores[k] < least:
                place, least, second = k, scores[k], least
            elif scores[k] < second:
                second = scores[k]
        labels[row] = place
        upper[row] = np.sqrt(max(0.0, squares[row] + 2.0 * least))
        lower[row] = np.sqrt(max(0.0, squares[row] + 2.0 * second)) * (1.0 - _SLACK)


def _safe_distances(centres: F64) -> F64:
    """Return half of each centre's distance to the nearest other one, less rounding errors."""
    near = centres - centres.mean(axis=0)
    norms = (near * near).sum(axis=1)
    squares = (norms + norms[:, None]) * (1.0 - _ROUNDING) - 2.0 * (near @ near.T)
    np.fill_diagonal(squares, np.inf)
    safe: F64 = 0.5 * np.sqrt(np.maximum(squares.min(axis=1), 0.0))
    return safe


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


def means_of(centres: F64, sums: F64, counts: F64) -> F64:
    """Return the means (K, D) of the rows nearest to each centre; a centre without rows stays."""
    means = sums / np.where(counts > 0.0, counts, 1.0)[:, None]
    return np.where(counts[:, None] > 0.0, means, centres)


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
        rows, bounds, n_centres, slack = self._rows, self._bounds, len(centres), 0.0
        if rows.is_sparse:
            largest = rows.stored.squares.max(initial=0.0) + (centres**2).sum(axis=1).max()
            slack = 2.0 * _CANCELLED * float(np.sqrt(largest))
            layout = lay_out(self.centres, np.zeros(rows.d), np.float64)
        else:
            layout = lay_out(self.centres, middle_of(self.centres), np.float32)
        has_safe = rows.n >= _ROWS_PER_CENTRE * n_centres
        safe = _safe_distances(centres) if has_safe else np.zeros(n_centres)
        others, furthest = np.full(n_centres, self._moved.max()), self._moved.argmax()
        others[furthest] = np.sort(self._moved)[-2:][0]
        motion = _Motion(self._moved, others, safe, slack, np.inf if is_exact else slack)
        n_pieces = max(1, min(rows.n // _ASSIGNED_ROWS_MIN, self._parallel.n_threads))

        def piece(i: int) -> None:
            part = (rows.n * i // n_pieces, rows.n * (i + 1) // n_pieces, layout, motion, bounds)
            if rows.is_sparse:
                _assign_sparse(rows.stored, *part)
            else:
                size = max(16, min(_BLOCK_ROWS_MAX, _BLOCK_BYTES // (8 * rows.d)))
                _assign_dense(rows.stored.dense, *part, empty_block(size, *centres.shape))

        self._parallel.map(piece, range(n_pieces))
        self._moved[:] = 0.0

    def sums(self) -> tuple[F64, F64, int]:
        """Return the sums (K, D) and weights (K,) of the centres' rows, and how many rows moved."""
        sums = self._sums, self._counts
        n_moved = _move_rows(self._rows.stored, self._summed, self.labels, *sums)
        self._summed[:] = self.labels
        return *sums, n_moved

    def squares(self) -> F64:
        """Return the squared distances (n,) to the centres, exact after an exact move."""
        return self._bounds.upper**2
