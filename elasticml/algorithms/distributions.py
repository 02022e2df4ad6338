"""Dual feasibility of multinomial models with intercepts: distributions with given class sums."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

#: Replaces a zero sum in a divisor.
_LEAST = 1e-300


def balanced(q: F64, weights: F64, of_class: F64) -> F64:
    """Mix all rows' distributions with one, just enough for the sums to equal the class weights.

    Parameters
    ----------
    q : ndarray (n, classes)
    weights : ndarray (n,)
        Row weights.
    of_class : ndarray (classes,)
        Total weight of each class's rows. An empty class gets probability 0 in every row.
    """
    total, has_weight = of_class.sum(), of_class > 0.0
    if not has_weight.all():
        q = np.where(has_weight, q, 0.0)
        rest = q.sum(axis=1, keepdims=True)
        q = np.where(rest > _LEAST, q / np.maximum(rest, _LEAST), of_class / total)
    sums = weights @ q
    shares = of_class[has_weight] / np.maximum(sums[has_weight], _LEAST)
    kept = min(1.0, float(shares.min()))
    mixed: F64 = kept * q + (of_class - kept * sums) / total
    return mixed
