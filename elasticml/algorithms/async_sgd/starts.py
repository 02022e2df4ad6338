"""Where K-Means starts: k-means++ on a sample, k-means||, or random rows.

What needs the members' examples is a generator of questions: a driver asks every member, or one
process asks itself. Which rows are drawn depends on the seed and the chunks' ids, not on who has
them.

Source: Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding" (SODA 2007), each
centre the best of several candidates; Bahmani and others, "Scalable k-means++" (VLDB 2012).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.sampler import chunk_words
from elasticml.algorithms.async_sgd.start_kernels import potential
from elasticml.algorithms.async_sgd.statistics import dense_rows, nearest_of, whole
from elasticml.data.chunk import Chunk
from elasticml.errors import DataError

F64 = NDArray[np.float64]
How = Literal["kmeans++", "kmeans||", "sample"]

#: k-means||: rounds, and rows that a round draws on average, in units of the number of centres.
_ROUNDS: Final = 5
_OVERSAMPLING: Final = 2.0
#: Keeps these draws apart from all others made with the same seed.
_ROWS: Final = 0xA521
_FAR_ROWS: Final = 0xA522
_CENTRES: Final = 0xA523


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A question to every member about its chunks; :func:`answer` has the answers.

    ``rows``: a random share of them; ``far_rows``: each with a chance in proportion to its squared
    distance; ``inertia``; ``statistics``: sums and counts by nearest centre.
    """

    operation: Literal["rows", "far_rows", "inertia", "statistics"]
    #: For all but ``rows``.
    centres: F64 = field(default_factory=lambda: np.empty((0, 0)))
    #: ``rows``: chance of each. ``far_rows``: chance per unit of squared distance.
    rate: float = 0.0
    columns: int = 0
    seed: int = 0
    serial: int = 0


Answers = Sequence[Mapping[str, F64]]


def answer(ask: Ask, chunks: Sequence[Chunk]) -> dict[str, F64]:
    """Answer a question about these chunks.

    Returns
    -------
    dict of ndarray
        ``rows`` (n, D), ``inertia`` (1,), or ``sums`` (K, D) and ``counts`` (K,).
    """
    parts = whole(chunks)
    if ask.operation == "inertia":
        return {"inertia": np.array([nearest_of(ask.centres, parts).inertia(parts)])}
    if ask.operation == "statistics":
        found = nearest_of(ask.centres, parts).statistics(parts)
        return {"sums": found.sums, "counts": found.counts}
    drawn = [np.empty((0, ask.columns))]
    for chunk in chunks:
        purpose = _ROWS if ask.operation == "rows" else _FAR_ROWS
        rng = np.random.default_rng([purpose, ask.seed, ask.serial, *chunk_words(chunk)])
        chance = np.full(chunk.n_rows, ask.rate)
        if ask.operation == "far_rows":
            own = whole([chunk])
            chance *= nearest_of(ask.centres, own).lookup(own)[1]
            chance *= 1.0 if chunk.weights is None else chunk.weights
        picked = np.flatnonzero(rng.random(chunk.n_rows) < chance)
        drawn.append(dense_rows(chunk, picked, ask.columns))
    return {"rows": np.concatenate(drawn)}


def start(
    how: How, *, clusters: int, columns: int, n_rows: int, seed: int, rows_each: int = 30
) -> Generator[Ask, Answers, dict[str, F64]]:
    """Choose centres; yields questions, is sent all members' answers, returns ``centres``.

    Parameters
    ----------
    how : "kmeans++", "kmeans||" or "sample"
        ``kmeans++`` works on a random sample of about ``rows_each`` rows a centre, in one question;
        ``kmeans||`` goes over all data six times; ``sample`` takes rows at random.
    n_rows : int
        Of all members together.

    Raises
    ------
    DataError
        When the data have fewer different rows than there are centres.
    """
    rng = np.random.default_rng([_CENTRES, seed])
    # Enough that hardly ever fewer rows than centres are drawn, by chance, of small data.
    wanted = rows_each * clusters + 10.0 * math.sqrt(rows_each * clusters)
    share = min(1.0, wanted / max(1, n_rows))
    rows = _rows((yield Ask(operation="rows", rate=share, columns=columns, seed=seed)))
    if how == "kmeans||":
        return {"centres": (yield from _parallel(rows, clusters, seed, rng))}
    if how == "sample":
        different = np.unique(rows, axis=0)
        _check(len(different), clusters)
        return {"centres": rng.permutation(different)[:clusters].copy()}
    rows = rng.permutation(rows)[: rows_each * clusters]
    return {"centres": plus_plus(rows, np.ones(len(rows)), clusters, rng)}


def ask_here(
    questions: Generator[Ask, Answers, dict[str, F64]], chunks: Sequence[Chunk]
) -> dict[str, F64]:
    """Answer all questions from these chunks, and return what comes out."""
    try:
        ask = next(questions)
        while True:
            ask = questions.send([answer(ask, chunks)])
    except StopIteration as end:
        found: dict[str, F64] = end.value
        return found


def plus_plus(rows: F64, weights: F64, clusters: int, rng: np.random.Generator) -> F64:
    """Choose centres among rows, each with a chance in proportion to weight and squared distance.

    Of ``2 + log K`` candidates for a centre the one that leaves the least inertia is taken.

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
        When there are fewer different rows than centres.
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
    return rows[chosen].copy()


def _parallel(
    rows: F64, clusters: int, seed: int, rng: np.random.Generator
) -> Generator[Ask, Answers, F64]:
    _check(len(rows), 1)
    columns = rows.shape[1]
    candidates = rows[int(rng.integers(len(rows)))][None, :].copy()
    for serial in range(_ROUNDS):
        answers = yield Ask(operation="inertia", centres=candidates, columns=columns)
        inertia = sum(float(found["inertia"][0]) for found in answers)
        if inertia == 0.0:
            break
        rate = _OVERSAMPLING * clusters / inertia
        far = yield Ask(
            operation="far_rows",
            centres=candidates,
            rate=rate,
            columns=columns,
            seed=seed,
            serial=serial,
        )
        candidates = np.concatenate([candidates, _rows(far)])
    candidates = np.unique(candidates, axis=0)
    answers = yield Ask(operation="statistics", centres=candidates, columns=columns)
    counts = np.sum([found["counts"] for found in answers], axis=0)
    return plus_plus(candidates, counts, clusters, rng)


def _rows(answers: Answers) -> F64:
    """Put the members' rows together, in an order that does not depend on who had them."""
    rows = np.concatenate([found["rows"] for found in answers])
    return rows[np.lexsort(rows.T[::-1])]


def _check(found: int, clusters: int) -> None:
    if found < clusters:
        raise DataError(
            f"algorithm.k is {clusters}, but the data have only {found} different rows to start "
            "from; use a smaller k"
        )
