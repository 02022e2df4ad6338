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
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

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


#: Rows per tile: their distances stay in the L1 cache during the loop over columns.
_TILE = 512


@regrouping_kernel
def potential(across: F64, candidate: F64, weights: F64, closest: F64, out: F64) -> float:
    """Write ``min(closest, |x - candidate|^2)`` for every row, and return the weighted sum.

    Parameters
    ----------
    across : ndarray (D, n)
        The rows, transposed.
    candidate : ndarray (D,)
    weights, closest, out : ndarray (n,)
    """
    d, n = across.shape
    total = 0.0
    squares = np.empty(_TILE)
    for start in range(0, n, _TILE):
        size = min(_TILE, n - start)
        for i in range(size):
            squares[i] = 0.0
        for j in range(d):
            c = candidate[j]
            for i in range(size):
                difference = across[j, start + i] - c
                squares[i] += difference * difference
        for i in range(size):
            least = min(closest[start + i], squares[i])
            out[start + i] = least
            total += weights[start + i] * least
    return total


@regrouping_kernel
def _square(x: F64, c: F64) -> float:
    total = 0.0
    for j in range(x.size):
        total += (x[j] - c[j]) * (x[j] - c[j])
    return total


@regrouping_kernel
def _look_up(x: F64, centres: F64, near: F64, who: I64) -> None:
    """Write the two smallest squared distances and their centres."""
    near[0], near[1], who[0], who[1] = np.inf, np.inf, -1, -1
    for k in range(len(centres)):
        square = _square(x, centres[k])
        if square < near[0]:
            near[1], who[1] = near[0], who[0]
            near[0], who[0] = square, k
        elif square < near[1]:
            near[1], who[1] = square, k


@regrouping_kernel
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
    near, who = np.empty((n, 2)), np.empty((n, 2), np.int64)
    fresh, missed = np.empty(n), np.empty(n_centres)
    for i in range(n):
        _look_up(rows[i], centres, near[i], who[i])
    swaps = 0
    for uniform in uniforms:
        inertia = 0.0
        for i in range(n):
            inertia += weights[i] * near[i, 0]
        left, drawn = uniform * inertia, 0
        while drawn < n - 1 and left >= weights[drawn] * near[drawn, 0]:
            left -= weights[drawn] * near[drawn, 0]
            drawn += 1
        missed[:] = 0.0
        with_it = 0.0
        for i in range(n):
            fresh[i] = _square(rows[i], rows[drawn])
            own = min(near[i, 0], fresh[i])
            with_it += weights[i] * own
            missed[who[i, 0]] += weights[i] * (min(near[i, 1], fresh[i]) - own)
        least = np.argmin(missed)
        if not with_it + missed[least] < inertia:
            continue
        swaps += 1
        centres[least] = rows[drawn]
        for i in range(n):
            if who[i, 0] == least or who[i, 1] == least:
                _look_up(rows[i], centres, near[i], who[i])
            elif fresh[i] < near[i, 0]:
                near[i, 1], who[i, 1] = near[i, 0], who[i, 0]
                near[i, 0], who[i, 0] = fresh[i], least
            elif fresh[i] < near[i, 1]:
                near[i, 1], who[i, 1] = fresh[i], least
    return swaps


How = Literal["kmeans++", "kmeans||", "sample"]
Start = Generator[Exchange, Outcome, Mapping[str, F64]]

#: k-means||: number of rounds, and mean number of rows drawn per round and centre.
_ROUNDS: Final = 5
_OVERSAMPLING: Final = 2.0
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
    rows_each: int = 30,
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
    if how == "sample":
        different = np.unique(rows, axis=0)
        _check(len(different), clusters)
        return {"centres": rng.permutation(different)[:clusters].copy()}
    sample = rng.permutation(rows)[: rows_each * clusters]
    return {"centres": plus_plus(sample, np.ones(len(sample)), clusters, rng)}


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
    across = np.ascontiguousarray(rows.T)
    first = int(rng.choice(n, p=weights / weights.sum()))
    chosen, closest = [first], np.full(n, np.inf)
    left = potential(across, rows[first], weights, closest.copy(), closest)
    trials = 2 + int(math.log(clusters))
    for done in range(1, clusters):
        if not left > 0.0:
            _check(done, clusters)
        ends = np.cumsum(weights * closest)
        drawn = np.searchsorted(ends, rng.random(trials) * ends[-1], side="right")
        best: tuple[float, int, F64] | None = None
        for candidate in sorted(set(np.minimum(drawn, n - 1).tolist())):
            after = np.empty(n)
            total = potential(across, rows[candidate], weights, closest, after)
            if best is None or total < best[0]:
                best = (total, candidate, after)
        assert best is not None
        left, closest = best[0], best[2]
        chosen.append(best[1])
    centres = np.ascontiguousarray(rows[chosen])
    swap_centres(np.ascontiguousarray(rows), weights, centres, rng.random(_SWAPS_EACH * clusters))
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
