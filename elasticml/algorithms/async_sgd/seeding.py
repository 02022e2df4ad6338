"""The exchanges before and after a K-Means job's loops: its initial centres, and passes over all.

The parts that need the members' examples are generators of exchanges. The rows drawn depend on the
seed and the chunks' ids, not on the owners. Each row has its own position in the result, so that
the sum over members concatenates them.

``async_count``, ``async_rows``
    Random rows: each row of non-zero weight is drawn with probability ``rate``. The first exchange
    returns the number of rows drawn from each chunk, the second the rows.
``async_pass``
    Sums and weights of rows by nearest centre, and the inertia.
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

How = Literal["kmeans++", "sample"]

_COUNT: Final = "async_count"
_ROWS: Final = "async_rows"
_PASS: Final = "async_pass"
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
    how : "kmeans++" or "sample"
        ``kmeans++`` runs on a random sample of about ``rows_each`` rows per centre; ``sample``
        takes random rows.
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
    rows = yield from _draw(share, at, columns, seed)
    if how == "kmeans++" and len(rows):
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


def _draw(rate: float, at: F64, columns: int, seed: int) -> Generator[Exchange, Outcome, F64]:
    """Count the rows that each chunk draws, then fetch them; each chunk fills its own part."""
    model: dict[str, NDArray[Any]] = {"places": at}
    parameters = {"rate": rate, "seed": seed}
    outcome = yield _exchange(_COUNT, model, {"counts": (int(at[-1]),)}, parameters)
    counts = outcome.arrays["counts"]
    if not counts.any():
        return np.empty((0, columns))
    model = {**model, "firsts": np.cumsum(counts) - counts}
    returns = {"rows": (int(counts.sum()), columns)}
    outcome = yield _exchange(_ROWS, model, returns, parameters)
    rows: F64 = outcome.arrays["rows"]
    return rows


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
        return chunk_numbers.chunk_counts(work, chunks)
    parts = parallel.map(lambda part: _partial(work, part), runs(chunks, parallel.n_threads))
    total = {name: np.zeros(shape) for name, shape in work.returns.items()}
    for part in parts:
        for name, array in part.items():
            total[name] += array
    return total


#: A member's shares of the exchanges of this module, by their names.
OPERATIONS: Final[Mapping[str, Operation]] = dict.fromkeys(
    (chunk_numbers.CHUNK_COUNTS, _COUNT, _ROWS, _PASS), answer
)


def _partial(work: Work, chunks: Sequence[Chunk]) -> dict[str, F64]:
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


def _drawn(work: Work, chunk: Chunk) -> NDArray[np.int64]:
    rng = np.random.default_rng([_DRAW, int(work.parameters["seed"]), 0, *chunk_words(chunk)])
    is_drawn = rng.random(chunk.n_rows) < float(work.parameters["rate"])
    return np.flatnonzero(is_drawn if chunk.weights is None else is_drawn & (chunk.weights > 0.0))
