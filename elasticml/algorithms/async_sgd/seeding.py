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
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.checked_singles import squared_distance
from elasticml.algorithms.async_sgd.seeding_ops import (
    count_exchange,
    inertia_exchange,
    places_exchange,
    places_in,
    rows_exchange,
    weights_exchange,
)
from elasticml.algorithms.base import Exchange, Outcome
from elasticml.arrays import F64, I64
from elasticml.compiled import regrouping_kernel
from elasticml.errors import DataError

# Serial compiled loops of k-means++: the inertia with a candidate, and local search by swaps.

#: Square of two, with slack for rounding errors.
_TWICE_SQUARED: Final = 4.0 * (1.0 + 1e-9)


@regrouping_kernel
def potentials(
    rows: F64,
    weights: F64,
    centres: F64,
    candidates: I64,
    closest: F64,
    who: I64,
    away: F64,
    out: F64,
) -> None:
    """Write the inertia that each candidate would leave as a further centre.

    Parameters
    ----------
    rows : ndarray (n, D)
    weights : ndarray (n,)
    centres : ndarray (K, D)
    candidates : ndarray (T,)
        Rows.
    closest : ndarray (n,)
        Squared distances to the nearest of the centres.
    who : ndarray (n,)
        The nearest centres.
    away : ndarray (T, K)
        Overwritten.
    out : ndarray (T,)
    """
    for t in range(candidates.size):
        out[t] = 0.0
        for k in range(len(centres)):
            away[t, k] = squared_distance(rows[candidates[t]], centres[k])
    for i in range(len(rows)):
        for t in range(candidates.size):
            least = closest[i]
            # A candidate twice as far from the nearest centre as the row is not nearer to the row.
            if away[t, who[i]] < _TWICE_SQUARED * least:
                least = min(least, squared_distance(rows[i], rows[candidates[t]]))
            out[t] += weights[i] * least


@regrouping_kernel
def add_centre(rows: F64, centre: F64, k: int, closest: F64, who: I64) -> None:
    """Update the squared distances to the nearest centres, and those, with a ``k``-th centre."""
    for i in range(len(rows)):
        square = squared_distance(rows[i], centre)
        if square < closest[i]:
            closest[i], who[i] = square, k


@regrouping_kernel
def _swap(
    rows: F64,
    weights: F64,
    centres: F64,
    uniforms: F64,
    near: F64,
    second: F64,
    fresh: F64,
    missed: F64,
    away: F64,
    who: I64,
    next_who: I64,
) -> int:
    n, n_centres = len(rows), len(centres)
    swaps, stale = 0, -1
    for uniform in uniforms:
        inertia = 0.0
        for i in range(n):
            if who[i] == stale or next_who[i] == stale:
                near[i], second[i] = np.inf, np.inf
                for k in range(n_centres):
                    square = squared_distance(rows[i], centres[k])
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
        for k in range(n_centres):
            missed[k] = 0.0
            away[k] = np.sqrt(squared_distance(rows[drawn], centres[k]))
        with_it = 0.0
        for i in range(n):
            # The drawn row is at least this far; if that is farther than the second, it is neither.
            least = away[who[i]] - np.sqrt(near[i])
            if least > 0.0 and least * least > second[i]:
                fresh[i] = np.inf
            else:
                fresh[i] = squared_distance(rows[i], rows[drawn])
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
        for j in range(centres.shape[1]):
            centres[stale, j] = rows[drawn, j]
        for i in range(n):
            if who[i] == stale or next_who[i] == stale:
                continue
            if fresh[i] < near[i]:
                second[i], next_who[i] = near[i], who[i]
                near[i], who[i] = fresh[i], stale
            elif fresh[i] < second[i]:
                second[i], next_who[i] = fresh[i], stale
    return swaps


def swap_centres(rows: F64, weights: F64, centres: F64, uniforms: F64) -> int:
    """Improve centres by local search: swap them for rows that reduce the inertia.

    For every number in ``uniforms``, from 0 to 1, a row is drawn with probability proportional to
    weight times squared distance. It replaces the centre whose removal costs least, if this reduces
    the inertia.

    Parameters
    ----------
    rows : ndarray (n, D)
    weights : ndarray (n,)
    centres : ndarray (K, D)
        Modified in place.

    Returns
    -------
    int
        Number of swaps.
    """
    n, n_centres = len(rows), len(centres)
    squares = (np.empty(n), np.empty(n), np.empty(n))
    by_centre = (np.empty(n_centres), np.empty(n_centres))
    nearest = (np.full(n, -1), np.full(n, -1))
    arguments: tuple[Any, ...] = (*squares, *by_centre, *nearest)
    return int(_swap(rows, weights, centres, uniforms, *arguments))


How = Literal["kmeans++", "kmeans||", "sample"]
Start = Generator[Exchange, Outcome, Mapping[str, F64]]

#: k-means||: number of rounds, and mean number of rows drawn per round and centre.
_ROUNDS: Final = 5
_OVERSAMPLING: Final = 2.0
#: Rows of the sample of k-means++, per centre.
ROWS_EACH: Final = 30
#: Trial swaps of the local search, per centre.
_SWAPS_EACH: Final = 4
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


def plus_plus(rows: F64, weights: F64, clusters: int, rng: np.random.Generator) -> F64:
    """Choose centres among rows by greedy k-means++ and local search.

    Rows are drawn with probability proportional to weight times squared distance. Of ``2 + log K``
    candidates for a centre the one with the least inertia is taken. Then rows drawn the same way
    replace centres if this reduces the inertia: greedy choices alone can never be revised.

    Parameters
    ----------
    rows : ndarray (n, D)
    weights : ndarray (n,)

    Returns
    -------
    ndarray (clusters, D), new

    Raises
    ------
    DataError
        When there are fewer distinct rows than centres.
    """
    n = len(rows)
    _check(n, clusters)
    rows = np.ascontiguousarray(rows)
    centres = np.empty((clusters, rows.shape[1]))
    closest, who = np.full(n, np.inf), np.zeros(n, np.int64)
    chosen = int(rng.choice(n, p=weights / weights.sum()))
    trials = 2 + int(math.log(clusters))
    for done in range(clusters):
        if done:
            ends = np.cumsum(weights * closest)
            if not ends[-1] > 0.0:
                _check(done, clusters)
            drawn = np.searchsorted(ends, rng.random(trials) * ends[-1], side="right")
            candidates = np.unique(np.minimum(drawn, n - 1))
            away, after = np.empty((len(candidates), done)), np.empty(len(candidates))
            potentials(rows, weights, centres[:done], candidates, closest, who, away, after)
            chosen = int(candidates[after.argmin()])
        centres[done] = rows[chosen]
        add_centre(rows, centres[done], done, closest, who)
    swap_centres(rows, weights, centres, rng.random(_SWAPS_EACH * clusters))
    return centres


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
