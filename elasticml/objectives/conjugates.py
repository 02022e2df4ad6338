"""Losses in the dual problem: conjugates, feasible intervals, and dual variables of margins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from elasticml.arrays import F64, I64
from elasticml.errors import ConfigError
from elasticml.objectives import dual_kernels as kernels
from elasticml.objectives import loss_kernels
from elasticml.objectives.losses import (
    GAMMA,
    HINGE,
    LOGISTIC,
    POISSON,
    SMOOTHED_HINGE,
    SQUARED,
    SQUARED_HINGE,
    MarginLoss,
    huber,
    loss_named,
    quantile,
    tweedie,
)

#: Replaces ``None`` for unit weights in kernels.
_NO_WEIGHTS: Final = np.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DualLoss:
    """A loss's conjugate ``minus(a) = -conj(-a)``, concave in the dual variable of one example.

    In classification ``a`` refers to the label-folded margin ``y z`` and is feasible on
    ``[0, 1]`` or ``[0, inf)``; the squared loss has ``a = y - z`` on the whole line, Huber's and
    the quantile loss limit it. Half deviances have another interval for each target; their
    conjugates serve certificates only, since ``a`` has no closed step.
    """

    loss: MarginLoss
    low: float
    high: float
    #: ``-minus''`` if ``minus`` is quadratic or linear, else 0. If so, ``minus`` along a step ``u``
    #: is ``minus(a) + t minus' u - t^2 curvature u^2 / 2``; otherwise it lies above its chord.
    curvature: float

    @property
    def name(self) -> str:
        """Name in a job file."""
        return self.loss.name

    @property
    def code(self) -> int:
        """Code of the loss in the kernels."""
        return self.loss.code

    @property
    def box(self) -> loss_kernels.Shape:
        """The interval and the curvature for the kernels; the shape of a half deviance."""
        if self.code == loss_kernels.TWEEDIE:
            return self.loss.shape
        return self.low, self.high, self.curvature

    def minus_conjugate(self, alpha: F64, targets: F64, weights: F64 | None) -> float:
        """Return the sum of ``s_i minus(a_i)``; minus infinity if one is infeasible.

        Parameters
        ----------
        alpha, targets : ndarray (n,)
        weights : ndarray (n,), optional
            None for ones.
        """
        s = _NO_WEIGHTS if weights is None else weights
        if self.code == loss_kernels.TWEEDIE:
            power = self.loss.shape[0]
            return float(kernels.tweedie_minus_conjugate(power, alpha, targets, s))
        return float(kernels.minus_conjugate(self.code, self.box, alpha, targets, s))

    def minus_conjugates(
        self, rows: I64, alphas: I64, targets: I64, weights: I64, total: F64
    ) -> None:
        """Add :meth:`minus_conjugate` of each of m chunks to ``total`` (1,).

        All arrays (m,): numbers of rows, and addresses of arrays (n_rows,); 0 for no weights.
        """
        places = rows, alphas, targets, weights
        if self.code == loss_kernels.TWEEDIE:
            kernels.tweedie_minus_conjugates(self.loss.shape[0], *places, total)
        else:
            kernels.minus_conjugates(self.code, self.box, *places, total)

    def alpha_from_margin(self, margins: F64, targets: F64, out: F64) -> None:
        """Write the dual variables of margins: ``-loss'``, label-folded.

        They are always feasible; 0 at the kink of the hinge.

        Parameters
        ----------
        margins : ndarray (n,)
            ``X w``, not folded.
        targets : ndarray (n,)
        out : ndarray (n,)
            Overwritten.
        """
        kernels.alpha_from_margin(self.code, self.box, margins, targets, out)

    def balanced(self, alpha: F64, targets: F64, weights: F64 | None) -> F64:
        """Return dual variables (n,) that are feasible with an intercept that is not penalised.

        Their weighted sum of slopes is zero: the squared loss's are shifted; else those of the
        heavier class, in regression of the heavier sign, are scaled down. This changes nothing if
        the intercept is optimal.
        """
        s = alpha if weights is None else alpha * weights
        if self.name == "squared":
            return alpha - float(s.sum()) / float(s.size if weights is None else weights.sum())
        is_positive = (targets if self.folds_labels() else alpha) > 0.0
        factors = balancing_factors(float(s[is_positive].sum()), float(s[~is_positive].sum()))
        return alpha * np.where(is_positive, *factors)

    def folds_labels(self) -> bool:
        """Whether an example's row is multiplied by its label, so that every target is 1."""
        return self.loss.is_classification


def balancing_factors(one: float, other: float) -> tuple[float, float]:
    """Return the factors up to 1 by which two sums become equal in size."""
    one, other = abs(one), abs(other)
    least = min(one, other)
    return least / one if one else 0.0, least / other if other else 0.0


def _box(loss: MarginLoss) -> DualLoss:
    low, high, curvature = loss.shape
    return DualLoss(loss=loss, low=low, high=high, curvature=curvature)


def _deviance(loss: MarginLoss) -> DualLoss:
    return DualLoss(loss=loss, low=-math.inf, high=math.inf, curvature=0.0)


#: Losses whose dual variables have a coordinate step; those with parameters at their defaults.
DUAL_LOSSES: Final[dict[str, DualLoss]] = {
    dual.name: dual
    for dual in (
        DualLoss(loss=HINGE, low=0.0, high=1.0, curvature=0.0),
        DualLoss(loss=SQUARED_HINGE, low=0.0, high=math.inf, curvature=0.5),
        DualLoss(loss=SMOOTHED_HINGE, low=0.0, high=1.0, curvature=1.0),
        DualLoss(loss=LOGISTIC, low=0.0, high=1.0, curvature=0.0),
        DualLoss(loss=SQUARED, low=-math.inf, high=math.inf, curvature=1.0),
        _box(huber()),
        _box(quantile()),
    )
}
#: Losses with a conjugate only.
_DEVIANCES: Final = {loss.name: _deviance(loss) for loss in (POISSON, GAMMA, tweedie())}


def dual_loss_named(name: str, parameters: Mapping[str, float] = {}) -> DualLoss:
    """Return the dual loss with this name in a job file.

    Parameters
    ----------
    name : str
    parameters : mapping
        See :func:`elasticml.objectives.losses.loss_named`.

    Raises
    ------
    ConfigError
        When there is no such loss.
    """
    known = DUAL_LOSSES | _DEVIANCES
    if name not in known:
        raise ConfigError(
            f"algorithm.loss is {name!r}, wanted one of {', '.join(DUAL_LOSSES)}",
            key="algorithm.loss",
        )
    if not parameters:
        return known[name]
    loss = loss_named(name, parameters)
    return _box(loss) if loss.code == loss_kernels.BOX else _deviance(loss)


def warm_kernels(kind: str | None = None, dtype: str | None = None) -> None:
    """Compile the kernels for float64 arrays, or load them from the cache."""
    one, none = np.ones(1), np.zeros(0, np.int64)
    for loss in DUAL_LOSSES.values():
        loss.minus_conjugate(one, one, None)
        loss.minus_conjugates(none, none, none, none, one)
        loss.loss.values_and_slopes(none, none, none, none, none, one)
        loss.alpha_from_margin(one, one, np.empty(1))
