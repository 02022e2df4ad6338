"""Greedy k-means++ among the rows of one process, and a local search that improves its centres.

Source: Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding" (SODA 2007), each
centre the best of several candidates; Lattanzi and Sohler, "A better k-means++ algorithm via local
search" (ICML 2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from elasticml.algorithms.async_sgd.checked_singles import (
    Layout,
    comparing_kernel,
    lay_out,
    score_sparse,
    squared_distance,
)
from elasticml.algorithms.async_sgd.local_kmeans import Rows, Stored
from elasticml.arrays import F64, I64
from elasticml.compiled import kernel, regrouping_kernel

#: Rows from which k-means++ chooses, for each of which it looks at each centre: for each cluster,
#: at least, and at most.
_ROWS_EACH: Final = 500
_ROWS_MIN: Final = 10_000
_ROWS_MAX: Final = 100_000
#: Of the local search: trial swaps per centre, the dense and the sparse rows that it looks at per
#: centre (more sparse ones do not pay), the least rows in all, and the swaps that are tried with
#: candidates of one draw.
_SWAPS_EACH: Final = 4
_SWAPS_MIN: Final = 40
_SWAP_ROWS_EACH: Final = (100, 30)
_SWAP_ROWS_MIN: Final = 2000
DRAWN: Final = 4
#: Candidates for a centre are this multiple of scikit-learn's ``2 + log K``, and at least 16.
_TRIALS: Final = 2
_TRIALS_MIN: Final = 16
#: Squared distances in a block, which stays in the L2 cache.
_BLOCK: Final = 2**15
#: Squared distances of sparse rows below this share of the squared norms are rounding errors.
_ROUNDING: Final = 1e-13
#: Those of dense rows below this share of the row's squared norm are computed again, as sums of
#: squared differences.
_INEXACT: Final = 1e-6


@comparing_kernel
def _sparse_squares(rows: Stored, some: I64, layout: Layout, scores: F64, squares: F64) -> None:
    """Write the squared distances (T, m) of rows of a CSR matrix to points."""
    indptr, indices, values, norms = rows.indptr, rows.indices, rows.values, rows.squares
    across, half_squares = layout.across, layout.half_squares
    for i in range(some.size):
        row = some[i]
        score_sparse(indptr, indices, values, row, across, half_squares, scores)
        for t in range(len(squares)):
            square = norms[row] + 2.0 * scores[t]
            # Equal rows have no distance, whatever the rounding errors.
            is_sure = square > _ROUNDING * (norms[row] + 2.0 * half_squares[t])
            squares[t, i] = square if is_sure else 0.0


@regrouping_kernel
def _refine(dense: Any, rows: I64, points: F64, limits: F64, squares: F64) -> None:
    """Compute those squared distances (T, m) of dense rows again that may be inexact.

    A row so near to a point has nearly its norm, and so the limits need no norms of points.
    """
    for t in range(len(points)):
        n_small = 0
        # Most points have none: a count is vectorized, and a test for each row is not.
        for i in range(rows.size):
            n_small += squares[t, i] < limits[i]
        for i in range(rows.size if n_small > 0 else 0):
            if squares[t, i] < limits[i]:
                squares[t, i] = squared_distance(dense[rows[i]], points[t])


class _Distances:
    """Squared distances of rows to points, of dense rows by BLAS.

    They are sums of squared norms and products, and so are wrong by rounding errors of these. Small
    ones of dense rows are computed again, and those of sparse rows that may be errors are zero.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._numbers = np.arange(rows.n)
        self._shift = np.zeros(rows.d)
        if not rows.is_sparse:
            X = rows.stored.dense
            self._shift = X[:: max(1, rows.n // 1000)].mean(axis=0, dtype=np.float64)
            # The products of these with ``-2 c, 1, |c|^2`` are the squared distances.
            self._extended = np.ones((rows.n, rows.d + 2))
            shifted = np.subtract(X, self._shift, out=self._extended[:, : rows.d])
            norms = self._extended[:, rows.d]
            np.einsum("ij,ij->i", shifted, shifted, out=norms)
            self._limits = _INEXACT * norms

    def to(self, points: F64, some: I64 | None = None) -> Iterator[tuple[Any, F64]]:
        """Yield blocks of all rows, or of some, and their squared distances (T, m), new."""
        if self.rows.is_sparse:
            layout = lay_out(points, self._shift, np.float64)
            scores = np.empty(layout.half_squares.size)
        else:
            near, ones = points - self._shift, np.ones((len(points), 1))
            with np.errstate(over="ignore"):
                extended = np.hstack([-2.0 * near, ones, (near * near).sum(axis=1)[:, None]])
        n, size = self.rows.n if some is None else some.size, max(64, _BLOCK // len(points))
        for start in range(0, n, size):
            part: Any = slice(start, min(start + size, n))
            part = part if some is None else some[part]
            if self.rows.is_sparse:
                block = self._numbers[part]
                squares = np.empty((len(points), block.size))
                _sparse_squares(self.rows.stored, block, layout, scores, squares)
            else:
                # Squares of very large numbers are infinite.
                with np.errstate(over="ignore", invalid="ignore"):
                    squares = extended @ self._extended[part].T
                rows = self._numbers[part]
                _refine(self.rows.stored.dense, rows, points, self._limits[part], squares)
            yield part, squares


def _choose(distances: _Distances, weights: F64, candidates: F64, closest: F64) -> F64:
    """Return the candidate (of (T, D)) that leaves the least inertia.

    Updates the squared distances ``closest`` (n,) to the nearest of the centres.
    """
    squares, after = np.empty((len(candidates), closest.size)), np.zeros(len(candidates))
    for part, found in distances.to(candidates):
        squares[:, part] = found
        after += np.minimum(found, closest[part], out=found) @ weights[part]
    chosen = int(after.argmin())
    np.minimum(closest, squares[chosen], out=closest)
    centre: F64 = candidates[chosen]
    return centre


def _nearest_two(distances: _Distances, centres: F64, some: I64, squares: F64, who: I64) -> None:
    """Write the squared distances (2, n) of some rows to their nearest two centres, and these."""
    for rows, found in distances.to(centres, some):
        columns = np.arange(rows.size)
        for k in range(2):
            least = found.argmin(axis=0)
            who[k, rows], squares[k, rows] = least, found[least, columns]
            found[least, columns] = np.inf


@kernel
def _swap(
    weights: F64, fresh: F64, inertia: float, missed: F64, squares: F64, who: I64, is_stale: Any
) -> tuple[int, float]:
    """Swap the centre whose loss costs least for a candidate, if this reduces the inertia.

    Returns the centre, -1 for none, and the inertia, or more where the second nearest centre of a
    row is not known: another swap has taken it.

    Parameters
    ----------
    fresh : ndarray (n,)
        Squared distances to the candidate.
    missed : ndarray (K,)
        Overwritten.
    squares, who : ndarray (2, n)
        Squared distances to the nearest two centres, and these; updated, as ``is_stale`` (n,).
    """
    near, second, first, other = squares[0], squares[1], who[0], who[1]
    after, gone = 0.0, 0
    for k in range(missed.size):
        missed[k] = 0.0
    for i in range(fresh.size):
        own = min(near[i], fresh[i])
        after += weights[i] * own
        missed[first[i]] += weights[i] * (min(second[i], fresh[i]) - own)
    for k in range(missed.size):
        gone = k if missed[k] < missed[gone] else gone
    after += missed[gone]
    if not after < inertia:
        return -1, inertia
    for i in range(fresh.size):
        if first[i] == gone:
            near[i], first[i], second[i], is_stale[i] = second[i], other[i], np.inf, True
        elif other[i] == gone:
            second[i], is_stale[i] = np.inf, True
        if fresh[i] < near[i]:
            second[i], other[i], near[i], first[i] = near[i], first[i], fresh[i], gone
        elif fresh[i] < second[i]:
            second[i], other[i] = fresh[i], gone
    return gone, after


def swap_centres(rows: Rows, weights: F64, centres: F64, uniforms: F64) -> int:
    """Improve centres by local search: swap them for rows that reduce the inertia.

    For every number in ``uniforms``, from 0 to 1, a row is drawn with probability proportional to
    weight times squared distance, several rows at a time. It replaces the centre whose removal
    costs least, if this reduces the inertia.

    Parameters
    ----------
    rows : Rows
    weights : ndarray (n,)
    centres : ndarray (K, D)
        Modified in place.

    Returns
    -------
    int
        Number of swaps.
    """
    distances, swaps = _Distances(rows), 0
    squares, who = np.full((2, rows.n), np.inf), np.zeros((2, rows.n), np.int64)
    missed, is_stale = np.empty(len(centres)), np.ones(rows.n, bool)
    for start in range(0, uniforms.size, DRAWN):
        _nearest_two(distances, centres, np.flatnonzero(is_stale), squares, who)
        is_stale[:] = False
        ends = np.cumsum(weights * squares[0])
        inertia = float(ends[-1])
        drawn = np.searchsorted(ends, uniforms[start : start + DRAWN] * inertia, side="right")
        candidates = rows.dense(np.minimum(drawn, rows.n - 1))
        fresh = np.hstack([found for _, found in distances.to(candidates)])
        for candidate, square in zip(candidates, fresh, strict=True):
            gone, after = _swap(weights, square, inertia, missed, squares, who, is_stale)
            if gone >= 0:
                swaps, inertia, centres[gone] = swaps + 1, after, candidate
    return swaps


def plus_plus(X: Any, weights: F64, clusters: int, rng: np.random.Generator) -> F64:
    """Choose centres among rows by greedy k-means++.

    Candidates are drawn with probability proportional to weight times squared distance. Of
    several candidates for a centre the one that leaves the least inertia is taken. Then rows of a
    sample replace centres if this reduces its inertia: greedy choices alone can never be revised.
    Of more than 10,000 rows, or 500 for each cluster, a sample is used, far rows included.

    Parameters
    ----------
    X : ndarray or CSR matrix (n, D), or Rows
    weights : ndarray (n,)
        Nonnegative, not all zero.

    Returns
    -------
    ndarray (m, D), new
        Distinct rows; m is less than ``clusters`` if there are fewer.
    """
    rows = X if isinstance(X, Rows) else Rows(X, None)
    size = min(max(_ROWS_MIN, _ROWS_EACH * clusters), _ROWS_MAX)
    some, mass = _coreset(rows, weights, size, rng)
    chosen = _greedy(some, mass, clusters, rng)
    if len(chosen) < clusters and size < min(rows.n, _ROWS_MAX):
        # The sample has too few distinct rows: a larger one, or all of up to 100,000 rows.
        some, mass = _coreset(rows, weights, _ROWS_MAX, rng)
        chosen = _greedy(some, mass, clusters, rng)
    centres: F64 = np.array(chosen)
    size = max(_SWAP_ROWS_MIN, _SWAP_ROWS_EACH[rows.is_sparse] * clusters)
    some, mass = _coreset(some, mass, size, rng)
    n_swaps = max(_SWAPS_MIN, _SWAPS_EACH * clusters)
    swap_centres(some, mass, centres, rng.random(n_swaps))
    return centres


def _greedy(rows: Rows, weights: F64, clusters: int, rng: np.random.Generator) -> list[F64]:
    trials = max(_TRIALS_MIN, _TRIALS * (2 + int(math.log(clusters))))
    distances, closest = _Distances(rows), np.full(rows.n, np.inf)
    ends, chosen = np.cumsum(weights), list[F64]()
    while len(chosen) < clusters and ends[-1] > 0.0:
        uniforms = rng.random(trials if chosen else 1)
        drawn = np.searchsorted(ends, uniforms * ends[-1], side="right")
        candidates = rows.dense(np.unique(np.minimum(drawn, rows.n - 1)))
        chosen.append(_choose(distances, weights, candidates, closest))
        ends = np.cumsum(weights * closest)
    return chosen


def _coreset(rows: Rows, weights: F64, size: int, rng: np.random.Generator) -> tuple[Rows, F64]:
    """Draw rows and weights (n,) whose inertia is near that of all, far rows included.

    Half of the probability is uniform, half proportional to weight times squared distance from the
    mean.

    Source: Bachem, Lucic and Krause, "Scalable k-means clustering via lightweight coresets" (KDD
    2018), Algorithm 1.
    """
    if rows.n <= size:
        return rows, weights
    squares = rows.squares_to_mean(weights) * weights
    total = squares.sum()
    chance = 0.5 * weights / weights.sum()
    chance += 0.5 * squares / total if total > 0.0 else chance
    drawn, counts = np.unique(
        np.searchsorted(np.cumsum(chance), rng.random(size) * chance.sum(), side="right"),
        return_counts=True,
    )
    drawn = np.minimum(drawn, rows.n - 1)
    return rows.take(drawn), counts * weights[drawn] / (size * chance[drawn])
