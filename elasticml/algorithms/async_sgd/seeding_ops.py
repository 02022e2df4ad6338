"""The exchanges of K-Means seeding and of Lloyd's algorithm, and a member's share of them.

``async_places``
    Up, reduced by maximum: the number of chunks in each block, which gives chunks their numbers.
``async_count``, ``async_rows``
    Random rows: each row of non-zero weight is drawn with probability ``rate``. With ``centres``
    the probability is ``rate`` times weight times squared distance to the nearest of them. The
    first exchange returns the number of rows drawn from each chunk, the second the rows.
``async_inertia``, ``async_weights``
    The weighted sum of squared distances; weights of rows by nearest centre.
``async_statistics``
    Sums and weights of rows by nearest centre.

Except in ``async_statistics``, the centres are a growing list of candidates. Each chunk's state
caches the distances to the candidates processed so far, until ``async_weights``. A chunk that
arrives without this cache recomputes it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import count
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.nearest_centres import dense_rows, nearest_of, whole
from elasticml.algorithms.async_sgd.sampler import chunk_words
from elasticml.algorithms.base import Arrays, Exchange, Outcome, Parallel, Work
from elasticml.algorithms.local_runner import answer_locally
from elasticml.algorithms.parallel import Serial, runs
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import LocalProtocolError

_PLACES: Final = "async_places"
_COUNT: Final = "async_count"
_ROWS: Final = "async_rows"
_INERTIA: Final = "async_inertia"
_WEIGHTS: Final = "async_weights"
_STATISTICS: Final = "async_statistics"
#: Names in a chunk's state: squared distance to the nearest candidate, its number, and the number
#: of candidates processed.
_CLOSEST: Final = "start.closest"
_NEAREST: Final = "start.nearest"
_MET: Final = "start.met"
#: Separates these draws from all others with the same seed.
_DRAW: Final = 0xA521


def places_exchange(n_blocks: int) -> Exchange:
    """Return the exchange for the number of chunks in each block."""
    returns = {"chunks": (n_blocks,)}
    return _exchange(_PLACES, {}, returns, reduce="max")


def places_in(outcome: Outcome) -> NDArray[np.int64]:
    """Return the number of each block's first chunk, then the number of chunks, (n_blocks + 1,)."""
    return np.concatenate(([0], np.cumsum(outcome.arrays["chunks"]))).astype(np.int64)


def count_exchange(
    rate: float, centres: F64 | None, places: NDArray[np.int64], seed: int, serial: int
) -> Exchange:
    """Return the exchange for the number of rows drawn from each chunk."""
    model = _model(centres, places=places)
    parameters = {"rate": rate, "seed": seed, "serial": serial}
    return _exchange(_COUNT, model, {"counts": (int(places[-1]),)}, parameters)


def rows_exchange(
    rate: float,
    centres: F64 | None,
    places: NDArray[np.int64],
    counts: F64,
    columns: int,
    seed: int,
    serial: int,
) -> Exchange:
    """Return the exchange for the rows that were counted; each chunk fills its own part."""
    firsts = np.cumsum(counts) - counts
    model = _model(centres, places=places, firsts=firsts)
    parameters = {"rate": rate, "seed": seed, "serial": serial}
    return _exchange(_ROWS, model, {"rows": (int(counts.sum()), columns)}, parameters)


def inertia_exchange(centres: F64) -> Exchange:
    """Return the exchange for the sum of squared distances to the nearest centres."""
    return _exchange(_INERTIA, _model(centres), {"inertia": ()})


def weights_exchange(candidates: F64) -> Exchange:
    """Return the exchange for weights by nearest candidate, which also clears the cache."""
    return _exchange(_WEIGHTS, _model(candidates), {"counts": (len(candidates),)})


def statistics_exchange(centres: F64) -> Exchange:
    """Return the exchange for sums and weights by nearest centre."""
    returns = {"sums": centres.shape, "counts": (len(centres),)}
    return _exchange(_STATISTICS, _model(centres), returns)


def answer(work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
    """Compute any of these exchanges over a member's chunks."""
    if work.operation == _PLACES:
        n_chunks = np.zeros(work.returns["chunks"])
        for chunk in chunks:
            _clear_cache(chunk)
            n_chunks[chunk.id.block] = max(n_chunks[chunk.id.block], chunk.id.ordinal + 1)
        return {"chunks": n_chunks}
    parts = parallel.map(lambda part: _partial(work, part), runs(chunks, parallel.n_threads))
    total = {name: np.zeros(shape) for name, shape in work.returns.items()}
    for part in parts:
        for name, array in part.items():
            total[name] += array
    return total


def run_locally(
    questions: Generator[Exchange, Outcome, Any],
    chunks: Sequence[Chunk],
    parallel: Parallel | None = None,
) -> Any:
    """Run a generator of exchanges over these chunks in this process, and return its result.

    Parameters
    ----------
    parallel : Parallel, optional
        By default the calling thread only.
    """
    examples = sum(chunk.n_rows for chunk in chunks)
    threads = Serial() if parallel is None else parallel
    try:
        asked = next(questions)
        for serial in count(1):
            outcome = answer_locally(
                asked, serial, lambda work: answer(work, chunks, threads), examples
            )
            asked = questions.send(outcome)
    except StopIteration as end:
        return end.value


def _partial(work: Work, chunks: Sequence[Chunk]) -> dict[str, F64]:
    if work.operation in (_INERTIA, _WEIGHTS):
        return _of_candidates(work, chunks)
    if work.operation == _STATISTICS:
        parts = whole(chunks)
        statistics = nearest_of(work.model["centres"], parts).statistics(parts)
        return {"sums": statistics.sums, "counts": statistics.counts}
    if work.operation not in (_COUNT, _ROWS):
        raise LocalProtocolError(f"operation {work.operation} is unknown to async_sgd")
    out = {name: np.zeros(shape) for name, shape in work.returns.items()}
    for chunk in chunks:
        place = int(work.model["places"][chunk.id.block]) + chunk.id.ordinal
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
    own = whole([chunk])
    nearest, closest = nearest_of(candidates[n_cached:], own).lookup(own)
    nearest += np.int32(n_cached)
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


def _model(centres: F64 | None, **others: NDArray[Any]) -> dict[str, F64]:
    arrays = others if centres is None else {"centres": centres, **others}
    return {name: np.ascontiguousarray(array, np.float64) for name, array in arrays.items()}


def _exchange(
    operation: str,
    model: Arrays,
    returns: Mapping[str, tuple[int, ...]],
    parameters: Mapping[str, float | int] | None = None,
    reduce: Any = "sum",
) -> Exchange:
    # Seeding without some chunks would be seeding of other data; waiting for them is cheap here.
    return Exchange(
        operation=operation,
        model=model,
        returns=returns,
        parameters={} if parameters is None else parameters,
        reduce=reduce,
        require="everybody",
    )
