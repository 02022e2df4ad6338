"""What asynchronous SGD is measured against: SimuParallelSGD, and BATCH, Lloyd's by MapReduce.

Source: the two baselines of the asynchronous SGD paper.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Arrays, Problem
from elasticml.algorithms.async_sgd.questions import statistics_exchange
from elasticml.algorithms.async_sgd.sampler import Sampler
from elasticml.algorithms.base import Exchange, Outcome
from elasticml.data.chunk import Chunk

F64 = NDArray[np.float64]


def simu_parallel(
    problem: Problem,
    start: Arrays,
    members: Sequence[Sequence[Chunk]],
    *,
    batch: float,
    seed: int,
    passes: float = 1.0,
    window: int = 16,
) -> list[Arrays]:
    """Let members work without a word, and return their states; the answer is their mean.

    Parameters
    ----------
    members : sequence of sequences of Chunk
        What each member owns; positions in the chunks' states are gone on from.
    """
    states = []
    for chunks in members:
        sampler = Sampler(chunks, seed=seed, window=window)
        state = problem.begin(start)
        while sampler.passes < passes:
            problem.step(state, sampler.next(batch))
        states.append(state)
    return states


def lloyd(centres: F64, passes: int) -> Generator[Exchange, Outcome, dict[str, F64]]:
    """Move every centre to the mean of its examples, over all of them, ``passes`` times.

    Yields exchanges, as :func:`elasticml.algorithms.async_sgd.starts.start` does; returns
    ``centres``, and the ``counts`` of examples that were nearest to them before their last move. A
    centre without examples stays. One pass is BATCH's iteration, and what a free run may end with.
    """
    counts = np.zeros(len(centres))
    for _ in range(passes):
        outcome = yield statistics_exchange(centres)
        counts = outcome.arrays["counts"]
        centres = moved(centres, outcome.arrays["sums"], counts)
    return {"centres": centres, "counts": counts}


def moved(centres: F64, sums: F64, counts: F64) -> F64:
    """Return the means (K, D) of so many rows with these sums; a centre without rows stays."""
    means = sums / np.where(counts > 0.0, counts, 1.0)[:, None]
    return np.where(counts[:, None] > 0.0, means, centres)
