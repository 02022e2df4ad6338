"""Partial states: which rows of a state travel, and what of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Mail

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
