"""Losses of a margin: value, slope, curvature and conjugate; sums over rows release the GIL."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from elasticml.arrays import F64
from elasticml.errors import ConfigError
from elasticml.objectives import loss_kernels

#: Replaces ``None`` for unit weights in kernels.
_NO_WEIGHTS: Final = np.empty(0)


class Loss(Protocol):
    """A convex loss of a margin z and a target y, weighted by s.

    Targets are -1 or +1 if ``is_classification``, else real.
    """

    @property
    def name(self) -> str:
        """Name in a job file."""
        ...

    @property
    def smoothness(self) -> float:
        """Upper bound of the second derivative: the slope's Lipschitz constant, or infinity."""
        ...

    @property
    def is_classification(self) -> bool:
        """Whether targets are -1 and +1."""
        ...

    def value_and_slope(
        self, margins: F64, targets: F64, weights: F64 | None, slope_out: F64
    ) -> float:
        """Sum the losses and write each row's slope, in one pass.

        Parameters
        ----------
        margins, targets : ndarray (n,)
        weights : ndarray (n,), optional
            None for ones.
        slope_out : ndarray (n,)
            Overwritten by ``s_i loss'(z_i, y_i)``.

        Returns
        -------
        float
            ``sum_i s_i loss(z_i, y_i)``.
        """
        ...

    def along(
        self,
        margins: F64,
        directions: F64,
        targets: F64,
        weights: F64 | None,
        steps: F64,
        values_out: F64,
        slopes_out: F64,
    ) -> None:
        """Add value and slope of the summed loss along a direction, for each step length.

        ``sum_i s_i loss(z_i + t_j u_i, y_i)`` and its derivative with respect to ``t_j``.

        Parameters
        ----------
        margins, directions, targets : ndarray (n,)
        steps, values_out, slopes_out : ndarray (J,)
        """
        ...

    def curvature(self, margins: F64, targets: F64, weights: F64 | None, out: F64) -> None:
        """Write ``s_i loss''(z_i, y_i)`` into ``out`` (n,)."""
        ...

    def curvature_along(
        self, margins: F64, directions: F64, targets: F64, weights: F64 | None
    ) -> float:
        """Return the sum of ``s_i loss''(z_i, y_i) u_i^2``."""
        ...

    def conjugate(self, duals: F64, targets: F64, out: F64) -> None:
        """Write ``sup_z (u_i z - loss(z, y_i))`` into ``out`` (n,), unweighted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginLoss:
    """A loss that is implemented by the kernels under its code."""

    name: str
    code: int
    smoothness: float
    is_classification: bool

    def value_and_slope(
        self, margins: F64, targets: F64, weights: F64 | None, slope_out: F64
    ) -> float:
        """See :class:`Loss`."""
        s = _NO_WEIGHTS if weights is None else weights
        return float(loss_kernels.value_and_slope(self.code, margins, targets, s, slope_out))

    def along(
        self,
        margins: F64,
        directions: F64,
        targets: F64,
        weights: F64 | None,
        steps: F64,
        values_out: F64,
        slopes_out: F64,
    ) -> None:
        """See :class:`Loss`."""
        s = _NO_WEIGHTS if weights is None else weights
        loss_kernels.along(
            self.code, margins, directions, targets, s, steps, values_out, slopes_out
        )

    def curvature(self, margins: F64, targets: F64, weights: F64 | None, out: F64) -> None:
        """See :class:`Loss`."""
        s = _NO_WEIGHTS if weights is None else weights
        loss_kernels.curvature(self.code, margins, targets, s, out)

    def curvature_along(
        self, margins: F64, directions: F64, targets: F64, weights: F64 | None
    ) -> float:
        """See :class:`Loss`."""
        s = _NO_WEIGHTS if weights is None else weights
        return float(loss_kernels.curvature_along(self.code, margins, directions, targets, s))

    def conjugate(self, duals: F64, targets: F64, out: F64) -> None:
        """See :class:`Loss`."""
        loss_kernels.conjugate(self.code, duals, targets, out)


#: ``log(1 + exp(-y z))``.
LOGISTIC: Final = MarginLoss(
    name="logistic", code=loss_kernels.LOGISTIC, smoothness=0.25, is_classification=True
)
#: ``(z - y)^2 / 2``.
SQUARED: Final = MarginLoss(
    name="squared", code=loss_kernels.SQUARED, smoothness=1.0, is_classification=False
)
#: 0 for m = y z >= 1, ``(1 - m)^2 / 2`` for 0 <= m < 1, ``1/2 - m`` for m < 0.
SMOOTHED_HINGE: Final = MarginLoss(
    name="smoothed_hinge", code=loss_kernels.SMOOTHED_HINGE, smoothness=1.0, is_classification=True
)
#: ``max(0, 1 - y z)^2``, without the factor 1/2, as in LIBLINEAR.
SQUARED_HINGE: Final = MarginLoss(
    name="squared_hinge", code=loss_kernels.SQUARED_HINGE, smoothness=2.0, is_classification=True
)
#: ``max(0, 1 - y z)``; its slope is a subgradient, 0 at the kink, and its curvature 0 everywhere.
HINGE: Final = MarginLoss(
    name="hinge", code=loss_kernels.HINGE, smoothness=math.inf, is_classification=True
)

LOSSES: Final[dict[str, Loss]] = {
    loss.name: loss for loss in (LOGISTIC, SQUARED, SMOOTHED_HINGE, SQUARED_HINGE, HINGE)
}


def loss_named(name: str) -> Loss:
    """Return the loss with this name in a job file.

    Raises
    ------
    ConfigError
        When there is no such loss.
    """
    if name not in LOSSES:
        raise ConfigError(
            f"algorithm.loss is {name!r}, wanted one of {', '.join(LOSSES)}", key="algorithm.loss"
        )
    return LOSSES[name]


def warm_kernels() -> None:
    """Compile the kernels for float64 arrays, or load them from the cache.

    Members call it before they report ready, so that no exchange waits for the compiler.
    """
    one, out = np.ones(1), np.zeros(1)
    for weights in (None, one):
        LOGISTIC.value_and_slope(one, one, weights, out)
        LOGISTIC.along(one, one, one, weights, one, out, np.zeros(1))
        LOGISTIC.curvature(one, one, weights, out)
        LOGISTIC.curvature_along(one, one, one, weights)
    LOGISTIC.conjugate(-0.5 * one, one, out)
