"""Parts of states: which rows of one travel, and sums over several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Arrays, Mail, Problem

F64 = NDArray[np.float64]


def rows_to_send(
    n_rows: int, share: float, chance: np.random.Generator
) -> NDArray[np.int64] | None:
    """Draw a share of the rows, at least one, ascending; None where it is all of them."""
    wanted = max(1, round(share * n_rows))
    if wanted >= n_rows:
        return None
    return np.sort(chance.choice(n_rows, wanted, replace=False)).astype(np.int64)


def picked(arrays: Mapping[str, F64], rows: NDArray[np.int64] | None) -> Mail:
    """Copy these rows of each array into a message."""
    if rows is None:
        return Mail(arrays={name: array.copy() for name, array in arrays.items()})
    return Mail(arrays={name: array[rows] for name, array in arrays.items()}, rows=rows)


def summed(problem: Problem, states: Sequence[Mapping[str, F64]]) -> Arrays:
    """Add up what the states' mean is made of."""
    addends = [problem.addends(state) for state in states]
    return {name: np.sum([part[name] for part in addends], axis=0) for name in addends[0]}
