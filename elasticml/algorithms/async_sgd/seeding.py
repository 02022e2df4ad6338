"""K-Means initialization: k-means++ on a sample, k-means||, or random rows.

The parts that need the members' examples are generators of exchanges, run by a driver or within one
process. The rows drawn depend on the seed and the chunks' ids, not on the owners. Each row has its
own position in the result, so that the sum over members concatenates them.

Source: Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding" (SODA 2007), each
centre the best of several candidates; Lattanzi and Sohler, "A better k-means++ algorithm via local
search" (ICML 2019); Bahmani and others, "Scalable k-means++" (VLDB 2012).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.checked_singles import (
    LANES,
    ROWS,
    comparing_kernel,
    empty_layout,
    prepare_single,
    relative_error,
    score_four,
    scratch,
    squared_distance,
    to_single,
)
from elasticml.algorithms.async_sgd.local_kmeans import Rows, sparse_layout
from elasticml.algorithms.async_sgd.seeding_ops import (
    count_exchange,
    inertia_exchange,
    places_exchange,
    places_in,
    rows_exchange,
    weights_exchange,
)
from elasticml.algorithms.base import Exchange, Outcome
from elasticml.arrays import F32, F64, I32, I64
from elasticml.compiled import kernel, regrouping_kernel
from elasticml.errors import DataError


@comparing_kernel
def _potentials_dense(
    rows: F32,
    norms: F32,
    weights: F64,
    across: F32,
    half_squares: F32,
    closest: F64,
    scores: F32,
    squares: F32,
    out: F64,
) -> None:
    """Write the inertia that each candidate would leave as a further centre.

    Parameters
    ----------
    rows, norms
        From ``checked_singles.to_single``.
    weights : ndarray (n,)
    across, half_squares
        Of the candidates, from ``checked_singles.prepare_single``.
    closest : ndarray (n,)
        Squared distances to the nearest of the centres.
    scores : ndarray (4, P)
        Overwritten.
    squares : ndarray (n, at least T)
        Squared distances to the candidates.
    out : ndarray (T,)
    """
    n_candidates = out.size
    out[:] = 0.0
    for start in range(0, weights.size, ROWS):
        score_four(rows, start, across, half_squares, norms, scores)
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
    indptr: Any,
    indices: I32,
    values: Any,
    norms: F64,
    weights: F64,
    across: F64,
    half_squares: F64,
    closest: F64,
    scores: F64,
    squares: F64,
    out: F64,
) -> None:
    """Do the same as :func:`_potentials_dense` for the rows of a CSR matrix."""
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
            dense = rows.arrays[0]
            self._shift = dense[:: max(1, rows.n // 1000)].mean(axis=0, dtype=np.float64)
            self._singles, self._norms, self._scores, _ = scratch(rows.n, n_candidates, rows.d)
            to_single(dense, rows.n, self._shift, self._singles, self._norms)

    def choose(self, candidates: F64) -> F64:
        """Take the candidate (T, D) that leaves the least inertia; return it."""
        rows, after = self._rows, np.empty(len(candidates))
        squares = self._squares
        arguments: Any
        if rows.is_sparse:
            wide = sparse_layout(candidates)
            arguments = (*rows.arrays[1:], rows.squares, self._weights, *wide, self.closest)
            arguments = (*arguments, np.empty(len(wide[1])), squares, after)
            _potentials_sparse(*arguments)
            chosen = int(after.argmin())
            np.minimum(self.closest, squares[:, chosen], out=self.closest)
        else:
            layout = empty_layout(*candidates.shape)
            radius = prepare_single(candidates, self._shift, *layout)
            arguments = (self._singles, self._norms, self._weights, *layout, self.closest)
            arguments = (*arguments, self._scores, squares, after)
            _potentials_dense(*arguments)
            chosen = int(after.argmin())
            found = (self._norms, radius, squares[:, chosen], self.closest)
            _closer(rows.arrays[0], candidates[chosen], *found)
        centre: F64 = candidates[chosen]
        return centre


class _StoredRows(NamedTuple):
    """Rows for compiled code: dense, or the parts of a CSR matrix, with their squared norms."""

    dense: F64
    indptr: I32
    indices: I32
    values: F64
    squares: F64


@regrouping_kernel
def _square_to(rows: _StoredRows, i: int, point: F64, norm: float) -> Any:
    """Return the squared distance of row ``i`` to a point of the squared norm ``norm``."""
    if rows.dense.size > 0:
        return squared_distance(rows.dense[i], point)
    total = 0.0
    for at in range(rows.indptr[i], rows.indptr[i + 1]):
        total += rows.values[at] * point[rows.indices[at]]
    return max(0.0, rows.squares[i] + norm - 2.0 * total)


@kernel
def _write_row(rows: _StoredRows, i: int, out: F64) -> None:
    for j in range(out.size):
        out[j] = rows.dense[i, j] if rows.dense.size > 0 else 0.0
    if rows.dense.size == 0:
        for at in range(rows.indptr[i], rows.indptr[i + 1]):
            out[rows.indices[at]] = rows.values[at]


@regrouping_kernel
def _swap(
    rows: _StoredRows,
    weights: F64,
    centres: F64,
    norms: F64,
    uniforms: F64,
    near: F64,
    second: F64,
    fresh: F64,
    missed: F64,
    away: F64,
    candidate: F64,
    who: I64,
    next_who: I64,
) -> int:
    n, n_centres = weights.size, len(centres)
    swaps, stale = 0, -1
    for uniform in uniforms:
        inertia = 0.0
        for i in range(n):
            if who[i] == stale or next_who[i] == stale:
                near[i], second[i] = np.inf, np.inf
                for k in range(n_centres):
                    square = _square_to(rows, i, centres[k], norms[k])
                    if square < near[i]:
                        second[i], next_who[i] = near[i], who[i]
                        near[i], who[i] = square, k
                    elif square < second[i]:
                        second[i], next_who[i] = square, k
            inertia += weights[i] * near[i]
        left, drawn = uniform * inertia, 0
        while drawn < n - 1 and left >= weights[drawn] * near[drawn]:
            left -= weights[drawn] * near[drawn]
            drawn += 1
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
            else:
                fresh[i] = _square_to(rows, i, candidate, norm)
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
    of_rows = (np.empty(n), np.empty(n), np.empty(n))
    by_centre = (np.empty(n_centres), np.empty(n_centres))
    nearest = (np.full(n, -1), np.full(n, -1))
    norms = (centres * centres).sum(axis=1)
    state: tuple[Any, ...] = (*of_rows, *by_centre, np.empty(rows.d), *nearest)
    stored = _StoredRows(*rows.arrays, rows.squares)
    return int(_swap(stored, weights, centres, norms, uniforms, *state))


How = Literal["kmeans++", "kmeans||", "sample"]
Start = Generator[Exchange, Outcome, Mapping[str, F64]]

#: k-means||: number of rounds, and mean number of rows drawn per round and centre.
_ROUNDS: Final = 5
_OVERSAMPLING: Final = 2.0
#: Rows of the sample of k-means++, per centre.
ROWS_EACH: Final = 100
#: Of the local search: trial swaps per centre, rows that it looks at per centre, and the least rows
#: in all.
_SWAPS_EACH: Final = 4
_SWAP_ROWS_EACH: Final = 30
_SWAP_ROWS_MIN: Final = 2000
#: Candidates for a centre are at least this multiple of scikit-learn's ``2 + log K``, and a whole
#: number of vectors.
_TRIALS: Final = 2
#: Separates these draws from all others with the same seed.
_CENTRES: Final = 0xA523


def start(
    how: How,
    *,
    clusters: int,
    columns: int,
    n_rows: int,
    n_blocks: int,
    seed: int,
    rows_each: int = ROWS_EACH,
) -> Start:
    """Choose centres; yields exchanges, is sent their outcomes, returns ``centres``.

    Parameters
    ----------
    how : "kmeans++", "kmeans||" or "sample"
        ``kmeans++`` runs on a random sample of about ``rows_each`` rows per centre; ``kmeans||``
        passes over all data five times, each time with its new candidates; ``sample`` takes random
        rows.
    n_rows, n_blocks : int
        Size of the data set.

    Raises
    ------
    DataError
        When the data have fewer distinct rows than there are centres.
    """
    rng = np.random.default_rng([_CENTRES, seed])
    at = places_in((yield places_exchange(n_blocks)))
    # Draw a few more than needed: their number is random.
    n_drawn = rows_each * clusters + 5.0 * math.sqrt(rows_each * clusters)
    share = min(1.0, n_drawn / max(1, n_rows))
    rows = yield from _draw(share, None, at, columns, seed, 0)
    if how == "kmeans||":
        return {"centres": (yield from _parallel(rows, clusters, at, seed, rng))}
    if how == "kmeans++":
        rows = rng.permutation(rows)[: rows_each * clusters]
    return {"centres": from_sample(how, rows, clusters, rng)}


def from_sample(how: How, rows: F64, clusters: int, rng: np.random.Generator) -> F64:
    """Choose centres (clusters, D) among rows of a sample, by k-means++ or at random."""
    if how == "kmeans++":
        return plus_plus(rows, np.ones(len(rows)), clusters, rng)
    different = np.unique(rows, axis=0)
    _check(len(different), clusters)
    centres: F64 = rng.permutation(different)[:clusters].copy()
    return centres


def _draw(
    rate: float, centres: F64 | None, at: NDArray[np.int64], columns: int, seed: int, serial: int
) -> Generator[Exchange, Outcome, F64]:
    """Count the rows that each chunk draws, then fetch them."""
    outcome = yield count_exchange(rate, centres, at, seed, serial)
    counts = outcome.arrays["counts"]
    if not counts.any():
        return np.empty((0, columns))
    outcome = yield rows_exchange(rate, centres, at, counts, columns, seed, serial)
    rows: F64 = outcome.arrays["rows"]
    return rows


def plus_plus(X: Any, weights: F64, clusters: int, rng: np.random.Generator) -> F64:
    """Choose centres among rows by greedy k-means++.

    Candidates are drawn with probability proportional to weight times squared distance. Of
    16 candidates for a centre (more with many thousands of centres) the one that leaves the least
    inertia is taken. Then rows of a sample replace centres if this reduces its inertia: greedy
    choices alone can never be revised.

    Parameters
    ----------
    X : ndarray or CSR matrix (n, D)
    weights : ndarray (n,)

    Returns
    -------
    ndarray (clusters, D), new

    Raises
    ------
    DataError
        When there are fewer distinct rows than centres.
    """
    rows = Rows(X, None)
    _check(rows.n, clusters)
    trials = -(-_TRIALS * (2 + int(math.log(clusters))) // LANES) * LANES
    greedy, centres = _Greedy(rows, weights, trials), np.empty((clusters, rows.d))
    centres[0] = greedy.choose(rows.dense([int(rng.choice(rows.n, p=weights / weights.sum()))]))
    for done in range(1, clusters):
        ends = np.cumsum(weights * greedy.closest)
        if not ends[-1] > 0.0:
            _check(done, clusters)
        drawn = np.searchsorted(ends, rng.random(trials) * ends[-1], side="right")
        centres[done] = greedy.choose(rows.dense(np.unique(np.minimum(drawn, rows.n - 1))))
    size = max(_SWAP_ROWS_MIN, _SWAP_ROWS_EACH * clusters)
    some, mass = _coreset(rows, weights, size, rng)
    swap_centres(some, mass, centres, rng.random(_SWAPS_EACH * clusters))
    return centres


def _coreset(rows: Rows, weights: F64, size: int, rng: np.random.Generator) -> tuple[Rows, F64]:
    """Draw rows and weights (n,) whose inertia is near that of all, far rows included.

    Half of the probability is uniform, half proportional to weight times squared distance from the
    mean.

    Source: Bachem, Lucic and Krause, "Scalable k-means clustering via lightweight coresets" (KDD
    2018), Algorithm 1.
    """
    if rows.n <= size:
        return rows.take(np.arange(rows.n)), weights
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


def _parallel(
    rows: F64, clusters: int, at: NDArray[np.int64], seed: int, rng: np.random.Generator
) -> Generator[Exchange, Outcome, F64]:
    _check(len(rows), 1)
    columns = rows.shape[1]
    candidates = rows[int(rng.integers(len(rows)))][None, :].copy()
    for serial in range(1, _ROUNDS + 1):
        outcome = yield inertia_exchange(candidates)
        inertia = float(outcome.arrays["inertia"])
        if inertia == 0.0:
            break
        rate = _OVERSAMPLING * clusters / inertia
        far = yield from _draw(rate, candidates, at, columns, seed, serial)
        candidates = np.concatenate([candidates, far])
    outcome = yield weights_exchange(candidates)
    return plus_plus(candidates, outcome.arrays["counts"], clusters, rng)


def _check(n_rows: int, clusters: int) -> None:
    if n_rows < clusters:
        raise DataError(
            f"algorithm.k is {clusters}, but the data have only {n_rows} different rows to start "
            "from; use a smaller k"
        )
