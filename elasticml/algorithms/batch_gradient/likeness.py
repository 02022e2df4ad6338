"""Whether absent examples bend the objective as the present ones do: rho.

Between two models the gradients of like sets of examples change alike, in proportion to their
weights. The change of the whole is known, that of the present too; that of the absent is the rest.

Source: the study behind ``absent: auto``: with a9a, w8a and splice data dealt at random rho was
0.015 to 0.22, sorted by label or by their first singular direction 0.34 to 3.7.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
#: Above it the absent are too unlike the present to borrow their curvature.
ALIKE_MAX: Final = 0.3


def likeness(absent: F64, present: F64, ratio: float) -> float | None:
    """Return ``rho = |y_Q - ratio y_A| / |y_Q|``; None where ``y_Q`` is nothing but zeros.

    Parameters
    ----------
    absent, present : ndarray, of one shape
        Changes of the summed gradients (or products of the summed Hessians) of the absent and the
        present examples.
    ratio : float
        Weight of the absent by that of the present.
    """
    size = float(np.linalg.norm(absent))
    if not (np.isfinite(size) and size > 0.0):
        return None
    return float(np.linalg.norm(absent - ratio * present)) / size


def scatter(change: F64, weight: float, members: float, paired_weight: float) -> float | None:
    """Return the members' own rho, root mean square over their weights, before anybody is absent.

    ``sum_p |y_p|^2 / n_p - |y_A|^2 / n_A`` is the weighted variance of ``y_p / n_p``: so a single
    number from every member tells how much they differ.

    Parameters
    ----------
    change : ndarray
        y_A, change of the sum over all members.
    weight : float
        n_A.
    members : float
        ``sum_p |y_p|^2 / n_p`` over members that knew their own earlier gradient.
    paired_weight : float
        Their weight. None is returned where it is not that of all.
    """
    if not (members > 0.0 and paired_weight == weight):
        return None
    return float(np.sqrt(max(members - float(change @ change) / weight, 0.0) / members))
