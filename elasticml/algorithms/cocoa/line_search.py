"""The exact line search along the sum of the members' steps.

The dual objective along the sum of the members' steps is, with ``C`` the change of
``sum -loss*`` at the full step and ``q`` half its curvature,

    D(gamma) = D(0) + gamma ((C + q)/S - l2 v.dv) - gamma^2/2 (2 q/S + l2 |dv|^2)

This is exact for hinge, squared hinge and squared loss. The entropy of the logistic loss is bounded
from below by the same form with ``q = 1/2 sum s_i c_i step_i^2``, where ``c_i`` is its smallest
curvature between both ends of the step: the dual objective never falls.

Source: our study of both CoCoA papers; they take ``gamma = 1`` with ``sigma' = K``, or their
average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from elasticml.arrays import F64
from elasticml.compiled import kernel, regrouping_kernel

# Compiled loops over the steps of dual variables: the sums of the line search.


@regrouping_kernel
def products(v: F64, dv: F64) -> Any:
    """Return ``v.dv`` and ``dv.dv``, without library threads.

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
    loss: Any,
    alpha: F64,
    new: F64,
    targets: F64,
    weights: F64,
    offsets: F64,
    step: F64,
    sums: F64,
) -> None:
    """Write ``new - alpha`` to ``step``, and add its gain and half its curvature to ``sums``.

    Parameters
    ----------
    loss : NamedTuple
        See :mod:`elasticml.objectives.losses`; c below is its ``minus_curvature``.
    weights : ndarray (n,) or (0,)
        Empty means ones.
    offsets : ndarray (n,) or (0,)
        Empty means zeros.
    sums : ndarray (2,)
        ``sum s (change of -loss*)``, with an offset's share ``-o`` times the row's coefficient, and
        ``1/2 sum s c step^2``.
    """
    for i in range(alpha.size):
        a, b = alpha[i], new[i]
        u = b - a
        step[i] = u
        if u == 0.0:
            continue
        s = weights[i] if weights.size > 0 else 1.0
        y = targets[i]
        sums[0] += s * (loss.minus(b, y) - loss.minus(a, y))
        sums[1] += 0.5 * s * loss.minus_curvature(a, b) * u * u
        if offsets.size > 0:
            sums[0] -= s * u * offsets[i] * loss.fold(y)


def warm_kernels(kind: str | None = None, dtype: str | None = None) -> None:
    """Compile the sums, or load their machine code from the cache."""
    products(np.ones(1), np.ones(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LineModel:
    """The dual objective along a step, in the mean form: ``slope t - curvature t^2 / 2``."""

    slope: float
    curvature: float

    @staticmethod
    def of(
        v: F64, dv: F64, *, dual: float, curvature: float, weight: float, l2: float
    ) -> LineModel:
        """Combine the members' sums with the penalty, which only the driver knows.

        Parameters
        ----------
        v, dv : ndarray (D,)
        dual, curvature : float
            C and q above.
        weight : float
            S.
        """
        along, square = products(v, dv)
        return LineModel(
            slope=(dual + curvature) / weight - l2 * along,
            curvature=2.0 * curvature / weight + l2 * square,
        )

    def gain(self, gamma: float) -> float:
        """Return a lower bound of the dual objective's rise."""
        return gamma * (self.slope - 0.5 * gamma * self.curvature)

    @property
    def best(self) -> float:
        """The step length that gains most, not limited to feasible lengths."""
        if self.curvature <= 0.0:
            return 1.0 if self.slope >= 0.0 else 0.0
        return self.slope / self.curvature
