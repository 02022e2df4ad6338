"""How far found centres are from the true ones, where these are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

F64 = NDArray[np.float64]


def centre_error(centres: F64, truth: F64) -> float:
    """Return the mean distance between true and found centres, each true one with one of its own.

    Parameters
    ----------
    centres, truth : ndarray (K, D)

    Returns
    -------
    float
        Of the one-to-one matching with the least sum of distances: an order of centres means
        nothing, and two found near one true centre do not make up for one that was missed.

    Raises
    ------
    ValueError
        When shapes differ.
    """
    if centres.shape != truth.shape:
        raise ValueError(f"centres have shape {centres.shape}, wanted {truth.shape}")
    apart = np.sqrt(((centres[:, None, :] - truth[None, :, :]) ** 2).sum(axis=2))
    mine, theirs = linear_sum_assignment(apart)
    return float(apart[mine, theirs].mean())
