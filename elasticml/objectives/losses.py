"""Losses of a margin: value, slope, curvature and conjugate; sums over rows release the GIL."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from elasticml.arrays import F64, I64
from elasticml.errors import ConfigError
from elasticml.objectives import logistic_kernels, loss_kernels
from elasticml.objectives.links import LINKS, TWEEDIE_POWER, Link

#: Replaces ``None`` for unit weights in kernels.
_NO_WEIGHTS: Final = np.empty(0)


class SmoothLoss(Protocol):
    """A convex loss of the margins z of a row and its target y, weighted by s.

    Shapes are those of one margin a row. With several classes, arrays of margins, directions and
    slopes are (classes, n), see :class:`elasticml.objectives.multiclass.MultiLoss`.
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
        """Whether targets are classes: -1 and +1, or numbers from 0."""
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


class Loss(SmoothLoss, Protocol):
    """A loss of one margin a row; targets are -1 or +1 if ``is_classification``, else real."""

    @property
    def link(self) -> Link:
        """How a margin becomes a prediction."""
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
    #: Parameters, see :mod:`elasticml.objectives.loss_kernels`.
    shape: loss_kernels.Shape = (0.0, 0.0, 0.0)

    @property
    def link(self) -> Link:
        """See :class:`Loss`."""
        return LINKS[self.name]

    def value_and_slope(
        self, margins: F64, targets: F64, weights: F64 | None, slope_out: F64
    ) -> float:
        """See :class:`Loss`."""
        s = _NO_WEIGHTS if weights is None else weights
        if self.code == loss_kernels.LOGISTIC:
            return float(logistic_kernels.value_and_slope(margins, targets, s, slope_out))
        return float(
            loss_kernels.value_and_slope(self.code, self.shape, margins, targets, s, slope_out)
        )

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
        if self.code == loss_kernels.LOGISTIC:
            logistic_kernels.along(margins, directions, targets, s, steps, values_out, slopes_out)
            return
        loss_kernels.along(
            self.code, self.shape, margins, directions, targets, s, steps, values_out, slopes_out
        )

    def values_and_slopes(
        self, rows: I64, margins: I64, targets: I64, weights: I64, slopes_out: I64, total: F64
    ) -> None:
        """Add :meth:`value_and_slope` of each of m chunks to ``total`` (1,).

        All arrays (m,): numbers of rows, and addresses of arrays (n_rows,); 0 for no weights.
        """
        places = rows, margins, targets, weights, slopes_out
        if self.code == loss_kernels.LOGISTIC:
            logistic_kernels.values_and_slopes(*places, total)
        else:
            loss_kernels.values_and_slopes(self.code, self.shape, *places, total)

    def along_chunks(self, rows: I64, *places: I64, steps: F64, sums_out: F64) -> None:
        """Call :meth:`along` for each of m chunks, which adds to ``sums_out`` (2, J).

        ``places``: margins, directions, targets and weights, as in :meth:`values_and_slopes`.
        """
        arrays = rows, *places, steps, sums_out[0], sums_out[1]
        if self.code == loss_kernels.LOGISTIC:
            logistic_kernels.along_chunks(*arrays)
        else:
            loss_kernels.along_chunks(self.code, self.shape, *arrays)

    def curvature(self, margins: F64, targets: F64, weights: F64 | None, out: F64) -> None:
        """See :class:`Loss`."""
        s = _NO_WEIGHTS if weights is None else weights
        if self.code == loss_kernels.LOGISTIC:
            logistic_kernels.curvature(margins, targets, s, out)
            return
        loss_kernels.curvature(self.code, self.shape, margins, targets, s, out)

    def curvature_along(
        self, margins: F64, directions: F64, targets: F64, weights: F64 | None
    ) -> float:
        """See :class:`Loss`."""
        s = _NO_WEIGHTS if weights is None else weights
        if self.code == loss_kernels.LOGISTIC:
            return float(logistic_kernels.curvature_along(margins, directions, targets, s))
        return float(
            loss_kernels.curvature_along(self.code, self.shape, margins, directions, targets, s)
        )

    def conjugate(self, duals: F64, targets: F64, out: F64) -> None:
        """See :class:`Loss`."""
        loss_kernels.conjugate(self.code, self.shape, duals, targets, out)


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


def huber(delta: float = 1.0) -> MarginLoss:
    """Return Huber's loss: ``r^2 / 2`` for ``|r| <= delta``, else ``delta |r| - delta^2 / 2``.

    ``r = y - z``; ``delta`` is in units of the target, above 0.
    """
    return MarginLoss(
        name="huber",
        code=loss_kernels.BOX,
        smoothness=1.0,
        is_classification=False,
        shape=(-delta, delta, 1.0),
    )


def quantile(quantile: float = 0.5, smoothing: float = 0.0) -> MarginLoss:
    """Return the quantile loss: ``q r`` for ``r = y - z >= 0``, else ``(q - 1) r``.

    With ``smoothing`` c above 0 it is ``max_a (a r - c/2 a^2)`` over ``q - 1 <= a <= q``: a
    parabola for ``c (q - 1) <= r <= c q``, and at most ``c max(q, 1 - q)^2 / 2`` lower.
    """
    return MarginLoss(
        name="quantile",
        code=loss_kernels.BOX,
        smoothness=1.0 / smoothing if smoothing > 0.0 else math.inf,
        is_classification=False,
        shape=(quantile - 1.0, quantile, smoothing),
    )


def tweedie(power: float = TWEEDIE_POWER, name: str = "tweedie") -> MarginLoss:
    """Return half the deviance of a Tweedie distribution, whose mean is ``exp(z)``.

    Its variance is proportional to the mean to the ``power``, from 1 (Poisson) to 2 (gamma).
    Targets are nonnegative, for power 2 positive. As in scikit-learn's generalised linear models.
    """
    return MarginLoss(
        name=name,
        code=loss_kernels.TWEEDIE,
        smoothness=math.inf,
        is_classification=False,
        shape=(power, 0.0, 0.0),
    )


#: ``exp(z) - y z``, plus what makes it 0 at ``exp(z) = y``.
POISSON: Final = tweedie(1.0, "poisson")
#: ``y exp(-z) + z``, plus what makes it 0 at ``exp(z) = y``.
GAMMA: Final = tweedie(2.0, "gamma")

#: By their names in job files; those with parameters at their defaults.
LOSSES: Final[dict[str, MarginLoss]] = {
    loss.name: loss
    for loss in (
        *(LOGISTIC, SQUARED, SMOOTHED_HINGE, SQUARED_HINGE, HINGE),
        *(huber(), quantile(), POISSON, GAMMA, tweedie()),
    )
}
_WITH_PARAMETERS: Final[dict[str, Callable[..., MarginLoss]]] = {
    "huber": huber,
    "quantile": quantile,
    "tweedie": tweedie,
}


def loss_named(name: str, parameters: Mapping[str, float] = {}) -> MarginLoss:
    """Return the loss with this name in a job file.

    Parameters
    ----------
    name : str
    parameters : mapping
        Keyword arguments of :func:`huber`, :func:`quantile` or :func:`tweedie`.

    Raises
    ------
    ConfigError
        When there is no such loss.
    """
    if name not in LOSSES:
        raise ConfigError(
            f"algorithm.loss is {name!r}, wanted one of {', '.join(LOSSES)}", key="algorithm.loss"
        )
    return _WITH_PARAMETERS[name](**parameters) if parameters else LOSSES[name]


def warm_kernels(kind: str | None = None, dtype: str | None = None) -> None:
    """Compile the kernel that every linear algorithm calls, or load it from the cache.

    Members call it before they report ready, so that no exchange waits for the compiler.
    """
    LOGISTIC.value_and_slope(np.ones(1), np.ones(1), None, np.zeros(1))
