"""Baselines of asynchronous SGD: SimuParallelSGD, and BATCH (Lloyd's algorithm by MapReduce).

Source: the two baselines of the asynchronous SGD paper.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Arrays, Problem
from elasticml.algorithms.async_sgd.sampler import Sampler
from elasticml.algorithms.async_sgd.seeding_ops import statistics_exchange
from elasticml.algorithms.base import Exchange, Outcome
from elasticml.data.chunks.chunk import Chunk

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
    """Run members without communication and return their states; the result is their mean.

    Parameters
    ----------
    members : sequence of sequences of Chunk
        Each member's chunks; sampling resumes at the positions in the chunks' states.
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
    """Run ``passes`` iterations of Lloyd's algorithm over all examples.

    Yields exchanges, as :func:`elasticml.algorithms.async_sgd.seeding.start` does. Returns
    ``centres``, and the ``counts`` of examples nearest to each before its last move. A centre
    without examples stays. A pass is an iteration of BATCH; a free run may end with some passes.
    """
    counts = np.zeros(len(centres))
    for _ in range(passes):
        outcome = yield statistics_exchange(centres)
        counts = outcome.arrays["counts"]
        centres = moved(centres, outcome.arrays["sums"], counts)
    return {"centres": centres, "counts": counts}


def moved(centres: F64, sums: F64, counts: F64) -> F64:
    """Return the means (K, D) of the rows nearest to each centre; a centre without rows stays."""
    means = sums / np.where(counts > 0.0, counts, 1.0)[:, None]
    return np.where(counts[:, None] > 0.0, means, centres)
