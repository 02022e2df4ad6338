"""The exchanges before and after a K-Means job's loops: its initial centres, and passes over all.

The parts that need the members' examples are generators of exchanges. The rows drawn depend on the
seed and the chunks' ids, not on the owners. Each row has its own position in the result, so that
the sum over members concatenates them.

``async_count``, ``async_rows``
    Random rows: each row of non-zero weight is drawn with probability ``rate``. With ``centres``
    the probability is ``rate`` times weight times squared distance to the nearest of them. The
    first exchange returns the number of rows drawn from each chunk, the second the rows.
``async_inertia``, ``async_weights``
    The weighted sum of squared distances; weights of rows by nearest centre.
``async_pass``
    Sums and weights of rows by nearest centre, and the inertia.

Except in ``async_pass``, the centres are a growing list of candidates. Each chunk's state caches
the distances to the candidates processed so far, until ``async_weights``. A chunk that arrives
without this cache recomputes it.

Source: k-means++ on a sample, see :mod:`elasticml.algorithms.async_sgd.plus_plus`; Bahmani and
others, "Scalable k-means++" (VLDB 2012).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms import chunk_numbers
from elasticml.algorithms.async_sgd.base import Start
from elasticml.algorithms.async_sgd.nearest_centres import dense_rows, statistics_of, whole
from elasticml.algorithms.async_sgd.plus_plus import plus_plus
from elasticml.algorithms.async_sgd.sampler import chunk_words
from elasticml.algorithms.base import Arrays, Exchange, Operation, Outcome, Parallel, Work
from elasticml.algorithms.parallel import runs
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import DataError

How = Literal["kmeans++", "kmeans||", "sample"]

_COUNT: Final = "async_count"
_ROWS: Final = "async_rows"
_INERTIA: Final = "async_inertia"
_WEIGHTS: Final = "async_weights"
_PASS: Final = "async_pass"
#: Names in a chunk's state: squared distance to the nearest candidate, its number, and the number
#: of candidates processed.
_CLOSEST: Final = "start.closest"
_NEAREST: Final = "start.nearest"
_MET: Final = "start.met"
#: k-means||: number of rounds, and mean number of rows drawn per round and centre.
_ROUNDS: Final = 5
_OVERSAMPLING: Final = 2.0
#: Rows of the sample of k-means++, per centre.
ROWS_EACH: Final = 100
#: Separate these draws from all others with the same seed.
_CENTRES: Final = 0xA523
_DRAW: Final = 0xA521


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
    at = yield from chunk_numbers.number_chunks(n_blocks)
    # Draw a few more than needed: their number is random.
    n_drawn = rows_each * clusters + 5.0 * math.sqrt(rows_each * clusters)
    share = min(1.0, n_drawn / max(1, n_rows))
    rows = yield from _draw(share, None, at, columns, seed, 0)
    if how == "kmeans||" and len(rows):
        centres = yield from _parallel(rows, clusters, at, seed, rng)
    elif how == "kmeans++" and len(rows):
        rows = rng.permutation(rows)[: rows_each * clusters]
        centres = plus_plus(rows, np.ones(len(rows)), clusters, rng)
    else:
        centres = rng.permutation(np.unique(rows, axis=0))[:clusters].copy()
    if len(centres) < clusters:
        raise DataError(
            f"algorithm.k is {clusters}, but the data have only {len(centres)} different rows to "
            "start from; use a smaller k"
        )
    return {"centres": centres}


def _draw(
    rate: float, centres: F64 | None, at: F64, columns: int, seed: int, serial: int
) -> Generator[Exchange, Outcome, F64]:
    """Count the rows that each chunk draws, then fetch them; each chunk fills its own part."""
    model: dict[str, NDArray[Any]] = {"places": at}
    if centres is not None:
        model["centres"] = centres
    parameters = {"rate": rate, "seed": seed, "serial": serial}
    outcome = yield _exchange(_COUNT, model, {"counts": (int(at[-1]),)}, parameters)
    counts = outcome.arrays["counts"]
    if not counts.any():
        return np.empty((0, columns))
    model = {**model, "firsts": np.cumsum(counts) - counts}
    returns = {"rows": (int(counts.sum()), columns)}
    outcome = yield _exchange(_ROWS, model, returns, parameters)
    rows: F64 = outcome.arrays["rows"]
    return rows


def _parallel(
    rows: F64, clusters: int, at: F64, seed: int, rng: np.random.Generator
) -> Generator[Exchange, Outcome, F64]:
    candidates = rows[int(rng.integers(len(rows)))][None, :].copy()
    for serial in range(1, _ROUNDS + 1):
        outcome = yield _exchange(_INERTIA, {"centres": candidates}, {"inertia": ()})
        inertia = float(outcome.arrays["inertia"])
        if inertia == 0.0:
            break
        rate = _OVERSAMPLING * clusters / inertia
        far = yield from _draw(rate, candidates, at, rows.shape[1], seed, serial)
        candidates = np.concatenate([candidates, far])
    returns = {"counts": (len(candidates),)}
    outcome = yield _exchange(_WEIGHTS, {"centres": candidates}, returns)
    return plus_plus(candidates, outcome.arrays["counts"], clusters, rng)


def pass_exchange(centres: F64) -> Exchange:
    """Return the exchange of a pass: sums and weights by nearest centre, and the inertia."""
    returns = {"sums": centres.shape, "counts": (len(centres),), "inertia": ()}
    return _exchange(_PASS, {"centres": centres}, returns)


def _exchange(
    operation: str,
    model: Mapping[str, NDArray[Any]],
    returns: Mapping[str, tuple[int, ...]],
    parameters: Mapping[str, float | int] | None = None,
) -> Exchange:
    # Seeding without some chunks would be seeding of other data; waiting for them is cheap here.
    return Exchange(
        operation=operation,
        model={name: np.ascontiguousarray(array, np.float64) for name, array in model.items()},
        returns=returns,
        parameters={} if parameters is None else parameters,
        require="everybody",
    )


def answer(work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
    """Compute any of these exchanges over a member's chunks."""
    if work.operation == chunk_numbers.CHUNK_COUNTS:
        for chunk in chunks:
            _clear_cache(chunk)
        return chunk_numbers.chunk_counts(work, chunks)
    parts = parallel.map(lambda part: _partial(work, part), runs(chunks, parallel.n_threads))
    total = {name: np.zeros(shape) for name, shape in work.returns.items()}
    for part in parts:
        for name, array in part.items():
            total[name] += array
    return total


#: A member's shares of the exchanges of this module, by their names.
OPERATIONS: Final[Mapping[str, Operation]] = dict.fromkeys(
    (chunk_numbers.CHUNK_COUNTS, _COUNT, _ROWS, _INERTIA, _WEIGHTS, _PASS), answer
)


def _partial(work: Work, chunks: Sequence[Chunk]) -> dict[str, F64]:
    if work.operation in (_INERTIA, _WEIGHTS):
        return _of_candidates(work, chunks)
    if work.operation == _PASS:
        found = statistics_of(work.model["centres"], whole(chunks))
        inertia = np.array(found.inertia)
        return {"sums": found.sums, "counts": found.counts, "inertia": inertia}
    out = {name: np.zeros(shape) for name, shape in work.returns.items()}
    numbers = chunk_numbers.numbers_of(work.model["places"], chunks)
    for chunk, place in zip(chunks, numbers, strict=True):
        rows = _drawn(work, chunk)
        if work.operation == _COUNT:
            out["counts"][place] = rows.size
        elif rows.size:
            first = int(work.model["firsts"][place])
            out["rows"][first : first + rows.size] = dense_rows(chunk, rows, out["rows"].shape[1])
    return out


def _of_candidates(work: Work, chunks: Sequence[Chunk]) -> dict[str, F64]:
    out = {name: np.zeros(shape) for name, shape in work.returns.items()}
    for chunk in chunks:
        _update_cache(chunk, work.model["centres"])
        weights = np.ones(chunk.n_rows) if chunk.weights is None else chunk.weights
        if work.operation == _INERTIA:
            out["inertia"] += float(chunk.state[_CLOSEST] @ weights)
        else:
            nearest = chunk.state[_NEAREST]
            out["counts"] += np.bincount(nearest, weights, minlength=out["counts"].size)
            _clear_cache(chunk)
    return out


def _update_cache(chunk: Chunk, candidates: F64) -> None:
    """Add new candidates to the chunk's cached nearest candidates and distances."""
    state = chunk.state
    n_cached = int(state[_MET][0]) if _MET in state else 0
    if n_cached == len(candidates):
        return
    found = statistics_of(candidates[n_cached:], whole([chunk]))
    nearest, closest = found.labels + np.int32(n_cached), found.squares
    if n_cached:
        # Ties go to the first candidate, as everywhere.
        stays = state[_CLOSEST] <= closest
        nearest = np.where(stays, state[_NEAREST], nearest)
        closest = np.where(stays, state[_CLOSEST], closest)
    state[_CLOSEST], state[_NEAREST] = closest, nearest
    state[_MET] = np.array([len(candidates)], np.int64)
    chunk.state_version += 1


def _clear_cache(chunk: Chunk) -> None:
    if any([chunk.state.pop(name, None) is not None for name in (_CLOSEST, _NEAREST, _MET)]):
        chunk.state_version += 1


def _drawn(work: Work, chunk: Chunk) -> NDArray[np.int64]:
    seed, serial = int(work.parameters["seed"]), int(work.parameters["serial"])
    rng = np.random.default_rng([_DRAW, seed, serial, *chunk_words(chunk)])
    chance = np.full(chunk.n_rows, float(work.parameters["rate"]))
    if "centres" in work.model:
        _update_cache(chunk, work.model["centres"])
        chance *= chunk.state[_CLOSEST]
        chance *= 1.0 if chunk.weights is None else chunk.weights
    elif chunk.weights is not None:
        chance *= chunk.weights > 0.0
    return np.flatnonzero(rng.random(chunk.n_rows) < chance)
