"""Greedy k-means++ among the rows of one process, and a local search that improves its centres.

Source: Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding" (SODA 2007), each
centre the best of several candidates; Lattanzi and Sohler, "A better k-means++ algorithm via local
search" (ICML 2019).
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from elasticml.algorithms.async_sgd.checked_singles import (
    ROWS,
    Block,
    Layout,
    comparing_kernel,
    empty_block,
    lay_out,
    relative_error,
    score_four,
    squared_distance,
    to_single,
)
from elasticml.algorithms.async_sgd.local_kmeans import Rows, Stored
from elasticml.arrays import F32, F64, I32, I64
from elasticml.compiled import kernel, regrouping_kernel

#: Rows from which k-means++ chooses, at most: it looks at each of them for each centre.
_ROWS_MAX: Final = 100_000
#: Of the local search: trial swaps per centre, the dense and the sparse rows that it looks at per
#: centre (more sparse ones do not pay), and the least rows in all.
_SWAPS_EACH: Final = 4
_SWAP_ROWS_EACH: Final = (100, 30)
_SWAP_ROWS_MIN: Final = 2000
#: Candidates for a centre are at least this multiple of scikit-learn's ``2 + log K``, and a
#: multiple of 16, a whole number of vectors.
_TRIALS: Final = 2


@comparing_kernel
def _potentials_dense(
    block: Block, weights: F64, layout: Layout, closest: F64, squares: F32, out: F64
) -> None:
    """Write the inertia that each candidate would leave as a further centre.

    Parameters
    ----------
    block
        With all rows.
    layout
        Of the candidates.
    closest : ndarray (n,)
        Squared distances to the nearest of the centres.
    squares : ndarray (n, at least T)
        Squared distances to the candidates.
    out : ndarray (T,)
    """
    n_candidates, across, half_squares = out.size, layout.across, layout.half_squares
    singles, norms, scores = block.singles, block.norms, block.scores
    out[:] = 0.0
    for start in range(0, weights.size, ROWS):
        score_four(singles, start, across, half_squares, norms, scores)
        for i in range(start, min(start + ROWS, weights.size)):
            weight, least, score = weights[i], closest[i], scores[i - start]
            for t in range(n_candidates):
                square = 2.0 * max(np.float64(score[t]), 0.0)
                squares[i, t] = square
                out[t] += weight * min(least, square)


@kernel
def _closer(dense: Any, centre: F64, norms: F32, radius: float, squares: F32, closest: F64) -> None:
    """Update the squared distances to the nearest centres with a further one.

    Distances of the size of single precision's error are computed again: equal rows have none.
    """
    share = relative_error(centre.size)
    for i in range(closest.size):
        reach = np.sqrt(2.0 * np.float64(norms[i])) + radius
        square: float = np.float64(squares[i])
        if square < 100.0 * share * reach * reach:
            square = 0.0
            for j in range(centre.size):
                square += (dense[i, j] - centre[j]) * (dense[i, j] - centre[j])
        closest[i] = min(closest[i], square)


@comparing_kernel
def _potentials_sparse(
    rows: Stored, weights: F64, layout: Layout, closest: F64, squares: F64, out: F64, scores: F64
) -> None:
    """Do the same as :func:`_potentials_dense` for the rows of a CSR matrix."""
    indptr, indices, values, norms = rows.indptr, rows.indices, rows.values, rows.squares
    across, half_squares = layout.across, layout.half_squares
    n_candidates = out.size
    out[:] = 0.0
    for i in range(weights.size):
        for t in range(scores.size):
            scores[t] = half_squares[t]
        for at in range(indptr[i], indptr[i + 1]):
            value, column = values[at], across[indices[at]]
            for t in range(scores.size):
                scores[t] -= value * column[t]
        weight, least = weights[i], closest[i]
        for t in range(n_candidates):
            square = norms[i] + 2.0 * scores[t]
            # Equal rows have no distance, whatever the rounding errors.
            square = square if square > 1e-13 * (norms[i] + 2.0 * half_squares[t]) else 0.0
            squares[i, t] = square
            out[t] += weight * min(least, square)


class _Greedy:
    """Squared distances of rows to the nearest of the centres chosen so far.

    Parameters
    ----------
    rows : Rows
    weights : ndarray (n,)
    n_candidates : int
        Most candidates that are looked at together.
    """

    def __init__(self, rows: Rows, weights: F64, n_candidates: int) -> None:
        self._rows, self._weights = rows, weights
        self.closest = np.full(rows.n, np.inf)
        dtype = np.float64 if rows.is_sparse else np.float32
        self._squares = np.empty((rows.n, n_candidates), dtype)
        if not rows.is_sparse:
            dense = rows.stored.dense
            self._shift = dense[:: max(1, rows.n // 1000)].mean(axis=0, dtype=np.float64)
            self._block = empty_block(rows.n, n_candidates, rows.d)
            to_single(dense, rows.n, self._shift, self._block.singles, self._block.norms)

    def choose(self, candidates: F64) -> F64:
        """Take the candidate (T, D) that leaves the least inertia; return it."""
        stored, weights, squares = self._rows.stored, self._weights, self._squares
        after = np.empty(len(candidates))
        if self._rows.is_sparse:
            layout = lay_out(candidates, np.zeros(self._rows.d), np.float64)
            scores = np.empty(layout.half_squares.size)
            _potentials_sparse(stored, weights, layout, self.closest, squares, after, scores)
            chosen = int(after.argmin())
            np.minimum(self.closest, squares[:, chosen], out=self.closest)
        else:
            layout = lay_out(candidates, self._shift, np.float32)
            _potentials_dense(self._block, weights, layout, self.closest, squares, after)
            chosen = int(after.argmin())
            found = (self._block.norms, layout.radius, squares[:, chosen], self.closest)
            _closer(stored.dense, candidates[chosen], *found)
        centre: F64 = candidates[chosen]
        return centre


@regrouping_kernel
def _square_to(
    indptr: Any, indices: I32, values: F64, squares: F64, i: int, point: F64, norm: float
) -> Any:
    """Return the squared distance of sparse row ``i`` to a point of the squared norm ``norm``."""
    total = 0.0
    for at in range(indptr[i], indptr[i + 1]):
        total += values[at] * point[indices[at]]
    return max(0.0, squares[i] + norm - 2.0 * total)


@kernel
def _write_row(rows: Stored, i: int, out: F64) -> None:
    for j in range(out.size):
        out[j] = rows.dense[i, j] if rows.dense.size > 0 else 0.0
    if rows.dense.size == 0:
        for at in range(rows.indptr[i], rows.indptr[i + 1]):
            out[rows.indices[at]] = rows.values[at]


@kernel
def _draw(weights: F64, near: F64, left: float) -> int:
    """Return the row in whose share of the inertia ``left`` is."""
    drawn = 0
    while drawn < weights.size - 1 and left >= weights[drawn] * near[drawn]:
        left -= weights[drawn] * near[drawn]
        drawn += 1
    return drawn


@regrouping_kernel
def _swap(
    rows: Stored,
    weights: F64,
    centres: F64,
    norms: F64,
    uniforms: F64,
    of_rows: F64,
    of_centres: F64,
    candidate: F64,
    numbers: I64,
) -> int:
    """Do what :func:`swap_centres` says.

    No record is passed in its loops: each call would count the references of the record's arrays,
    which takes longer than a distance.
    """
    near, second, fresh = of_rows[0], of_rows[1], of_rows[2]
    missed, away = of_centres[0], of_centres[1]
    who, next_who = numbers[0], numbers[1]
    dense, indptr, indices, values, squares, _ = rows
    n, n_centres, swaps, stale = weights.size, len(centres), 0, -1
    for uniform in uniforms:
        inertia = 0.0
        for i in range(n):
            if who[i] == stale or next_who[i] == stale:
                near[i], second[i] = np.inf, np.inf
                for k in range(n_centres):
                    if dense.size > 0:
                        square = squared_distance(dense[i], centres[k])
                    else:
                        square = _square_to(
                            indptr, indices, values, squares, i, centres[k], norms[k]
                        )
                    if square < near[i]:
                        second[i], next_who[i] = near[i], who[i]
                        near[i], who[i] = square, k
                    elif square < second[i]:
                        second[i], next_who[i] = square, k
            inertia += weights[i] * near[i]
        drawn = _draw(weights, near, uniform * inertia)
        _write_row(rows, drawn, candidate)
        norm, with_it = rows.squares[drawn] if rows.squares.size > 0 else 0.0, 0.0
        for k in range(n_centres):
            missed[k] = 0.0
            away[k] = np.sqrt(squared_distance(candidate, centres[k]))
        for i in range(n):
            # The drawn row is at least this far; if that is farther than the second, it is neither.
            least = away[who[i]] - np.sqrt(near[i])
            if least > 0.0 and least * least > second[i]:
                fresh[i] = np.inf
            elif dense.size > 0:
                fresh[i] = squared_distance(dense[i], candidate)
            else:
                fresh[i] = _square_to(indptr, indices, values, squares, i, candidate, norm)
            own = min(near[i], fresh[i])
            with_it += weights[i] * own
            missed[who[i]] += weights[i] * (min(second[i], fresh[i]) - own)
        stale = 0
        for k in range(n_centres):
            stale = k if missed[k] < missed[stale] else stale
        if not with_it + missed[stale] < inertia:
            stale = n_centres
            continue
        swaps += 1
        norms[stale] = norm
        for j in range(candidate.size):
            centres[stale, j] = candidate[j]
        for i in range(n):
            if who[i] == stale or next_who[i] == stale:
                continue
            if fresh[i] < near[i]:
                second[i], next_who[i] = near[i], who[i]
                near[i], who[i] = fresh[i], stale
            elif fresh[i] < second[i]:
                second[i], next_who[i] = fresh[i], stale
    return swaps


def swap_centres(rows: Rows, weights: F64, centres: F64, uniforms: F64) -> int:
    """Improve centres by local search: swap them for rows that reduce the inertia.

    For every number in ``uniforms``, from 0 to 1, a row is drawn with probability proportional to
    weight times squared distance. It replaces the centre whose removal costs least, if this reduces
    the inertia.

    Parameters
    ----------
    rows : Rows
        Of float64.
    weights : ndarray (n,)
    centres : ndarray (K, D)
        Modified in place.

    Returns
    -------
    int
        Number of swaps.
    """
    n, n_centres = rows.n, len(centres)
    norms = (centres * centres).sum(axis=1)
    space = (np.empty((3, n)), np.empty((2, n_centres)), np.empty(rows.d), np.full((2, n), -1))
    return int(_swap(rows.stored, weights, centres, norms, uniforms, *space))


def plus_plus(X: Any, weights: F64, clusters: int, rng: np.random.Generator) -> F64:
    """Choose centres among rows by greedy k-means++.

    Candidates are drawn with probability proportional to weight times squared distance. Of
    16 candidates for a centre (more with many thousands of centres) the one that leaves the least
    inertia is taken. Then rows of a sample replace centres if this reduces its inertia: greedy
    choices alone can never be revised. Of more than 100,000 rows a sample is used, far rows
    included.

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
    rows, weights = _coreset(rows, weights, _ROWS_MAX, rng)
    trials = -(-_TRIALS * (2 + int(math.log(clusters))) // 16) * 16
    greedy, ends, chosen = _Greedy(rows, weights, trials), np.cumsum(weights), list[F64]()
    while len(chosen) < clusters and ends[-1] > 0.0:
        uniforms = rng.random(trials if chosen else 1)
        drawn = np.searchsorted(ends, uniforms * ends[-1], side="right")
        chosen.append(greedy.choose(rows.dense(np.unique(np.minimum(drawn, rows.n - 1)))))
        ends = np.cumsum(weights * greedy.closest)
    centres: F64 = np.array(chosen)
    size = max(_SWAP_ROWS_MIN, _SWAP_ROWS_EACH[rows.is_sparse] * clusters)
    some, mass = _coreset(rows, weights, size, rng)
    uniforms = rng.random(_SWAPS_EACH * clusters)
    swap_centres(some.take(slice(None), np.float64), mass, centres, uniforms)
    return centres


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
