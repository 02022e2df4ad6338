"""Compiled loops over the steps of dual variables: the sums of the line search."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.data.kernels import kernel
from elasticml.objectives.dual_kernels import minus_conjugate_of

F64 = NDArray[np.float64]


@kernel
def products(v: F64, dv: F64) -> Any:
    """Return ``v.dv`` and ``dv.dv``, in a fixed order of summation and without library threads.

    OpenBLAS's threads spin for a hundredth of a second or more after each product, and take a core
    from a pass's own threads for that time.
    """
    along, square = 0.0, 0.0
    for j in range(v.size):
        along += v[j] * dv[j]
        square += dv[j] * dv[j]
    return along, square


@kernel
def sum_steps(
    code: int,
    curvature: float,
    alpha: F64,
    new: F64,
    targets: F64,
    weights: F64,
    step: F64,
    sums: F64,
) -> None:
    """Write ``new - alpha`` to ``step``, and add its gain and half its curvature to ``sums``.

    Parameters
    ----------
    curvature : float
        Minus the second derivative of ``-loss*`` where it is constant. The logistic loss uses its
        minimum between both ends: ``1/(a (1 - a))`` at the point nearest to 1/2.
    weights : ndarray (n,) or (0,)
        Empty means ones.
    sums : ndarray (2,)
        ``sum s (change of -loss*)`` and ``1/2 sum s c step^2``.
    """
    for i in range(alpha.size):
        a, b = alpha[i], new[i]
        u = b - a
        step[i] = u
        if u == 0.0:
            continue
        s = weights[i] if weights.size > 0 else 1.0
        c = curvature
        if code == 0:
            low, high = min(a, b), max(a, b)
            middle = min(max(0.5, low), high)
            c = 1.0 / (middle * (1.0 - middle)) if 0.0 < middle < 1.0 else 4.0
        y = targets[i]
        sums[0] += s * (minus_conjugate_of(code, b, y) - minus_conjugate_of(code, a, y))
        sums[1] += 0.5 * s * c * u * u
