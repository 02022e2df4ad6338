"""References for asynchronous SGD: SimuParallelSGD and the true cluster centres.

Source: the asynchronous SGD paper. BATCH, its other baseline, is ``mode: batch`` of the algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from elasticml.algorithms.async_sgd.base import Arrays, Problem
from elasticml.algorithms.async_sgd.sampler import Sampler
from elasticml.data.chunks.chunk import Chunk

F64 = NDArray[np.float64]


def mean_of(problem: Problem, states: Sequence[Arrays]) -> Arrays:
    """Return the mean of states, as a driver computes it from the sum of their addends."""
    addends = [problem.addends(state) for state in states]
    total = {name: np.sum([each[name] for each in addends], axis=0) for name in addends[0]}
    return problem.pooled(total, len(states))


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


def centre_error(centres: F64, truth: F64) -> float:
    """Return the mean distance between true and found centres in the best one-to-one matching.

    Parameters
    ----------
    centres, truth : ndarray (K, D)

    Returns
    -------
    float
        The matching minimises the sum of distances: the order of centres is irrelevant, and two
        estimates near one true centre do not make up for a missed one.

    Raises
    ------
    ValueError
        When shapes differ.
    """
    if centres.shape != truth.shape:
        raise ValueError(f"centres have shape {centres.shape}, wanted {truth.shape}")
    distances = np.sqrt(((centres[:, None, :] - truth[None, :, :]) ** 2).sum(axis=2))
    rows, columns = linear_sum_assignment(distances)
    return float(distances[rows, columns].mean())
