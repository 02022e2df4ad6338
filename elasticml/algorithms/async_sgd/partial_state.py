"""Partial states for messages, and sums over states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Arrays, Mail, Problem

F64 = NDArray[np.float64]


def rows_to_send(
    n_rows: int, share: float, chance: np.random.Generator
) -> NDArray[np.int64] | None:
    """Draw a share of the rows, at least one, in ascending order; None for all rows."""
    n_drawn = max(1, round(share * n_rows))
    if n_drawn >= n_rows:
        return None
    return np.sort(chance.choice(n_rows, n_drawn, replace=False)).astype(np.int64)


def picked(arrays: Mapping[str, F64], rows: NDArray[np.int64] | None) -> Mail:
    """Return a message with these rows of each array, copied."""
    if rows is None:
        return Mail(arrays={name: array.copy() for name, array in arrays.items()})
    return Mail(arrays={name: array[rows] for name, array in arrays.items()}, rows=rows)


def summed(problem: Problem, states: Sequence[Mapping[str, F64]]) -> Arrays:
    """Return the sum of the states' addends."""
    addends = [problem.addends(state) for state in states]
    return {name: np.sum([part[name] for part in addends], axis=0) for name in addends[0]}
