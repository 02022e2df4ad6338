"""Distance between found and true cluster centres."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

F64 = NDArray[np.float64]


def centre_error(centres: F64, truth: F64) -> float:
    """Return the mean distance between true and found centres in the best one-to-one matching.

    Parameters
    ----------
    centres, truth : ndarray (K, D)

    Returns
    -------
    float
        The matching minimises the sum of distances: the order of centres is irrelevant, and two
        found near one true centre do not make up for one that was missed.

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
