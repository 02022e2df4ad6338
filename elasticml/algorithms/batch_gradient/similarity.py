"""Similarity of the curvature of absent and present examples: rho.

Between two models, the gradients of similar sets of examples change alike, in proportion to their
weights. The changes over all and over the present examples are known; the difference is the
absent examples' change.

Source: the study behind ``absent: auto``: with a9a, w8a and splice data dealt at random rho was
0.015 to 0.22, sorted by label or by their first singular direction 0.34 to 3.7.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
#: Above this rho the absent examples are too different to borrow the present ones' curvature.
ALIKE_MAX: Final = 0.3


def likeness(absent: F64, present: F64, ratio: float) -> float | None:
    """Return ``rho = |y_Q - ratio y_A| / |y_Q|``; None if ``y_Q`` is zero.

    Parameters
    ----------
    absent, present : ndarray, of one shape
        Changes of the summed gradients (or products of the summed Hessians) of the absent and the
        present examples.
    ratio : float
        Weight of the absent divided by that of the present.
    """
    size = float(np.linalg.norm(absent))
    if not (np.isfinite(size) and size > 0.0):
        return None
    return float(np.linalg.norm(absent - ratio * present)) / size


def scatter(change: F64, weight: float, members: float, paired_weight: float) -> float | None:
    """Return rho between the members, weighted root mean square, while none is absent.

    ``sum_p |y_p|^2 / n_p - |y_A|^2 / n_A`` is the weighted variance of ``y_p / n_p``: one number
    from each member suffices to measure how much they differ.

    Parameters
    ----------
    change : ndarray
        y_A, change of the sum over all members.
    weight : float
        n_A.
    members : float
        ``sum_p |y_p|^2 / n_p`` over members that knew their own earlier gradient.
    paired_weight : float
        Their weight. If it is not the weight of all, None is returned.
    """
    if not (members > 0.0 and paired_weight == weight):
        return None
    return float(np.sqrt(max(members - float(change @ change) / weight, 0.0) / members))
