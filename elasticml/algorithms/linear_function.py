"""The objective of a linear model over rows in memory, as a smooth function with a certificate.

``F(w) = 1/S sum_i s_i loss(z_i, y_i) + l2/2 |w|^2`` with ``z = X w + c b``. The intercept b is
free, or penalised as the weight of a column of value c. Dual variables ``a_i = -loss'`` belong to
the model, and where b is free they are made feasible, ``sum_i s_i a_i y_i = 0``: those of the
heavier class are scaled down, or, for the squared loss, their mean is taken off. At the optimum
that changes nothing, so that the gap goes to zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.newton import Point
from elasticml.algorithms.row_blocks import RowBlocks
from elasticml.objectives.conjugates import dual_loss_named

F64 = NDArray[np.float64]

#: What a free intercept's column has as curvature where there is no penalty.
_TINY: Final = 1e-300


class LinearFunction:
    """See the module.

    Parameters
    ----------
    rows : RowBlocks
    targets : ndarray (n,)
        -1 and +1; for the squared loss any.
    weights : ndarray (n,), optional
        None where all are one.
    loss : str
        A smooth one with a dual.
    l2 : float, not negative
        With 0 points have no gap.
    intercept_scaling : float, optional
        c; None for a model without intercept. Else the model's last coordinate is b.
    is_free : bool
        The intercept is not penalised.
    """

    def __init__(
        self,
        rows: RowBlocks,
        targets: F64,
        weights: F64 | None,
        *,
        loss: str,
        l2: float,
        intercept_scaling: float | None,
        is_free: bool,
    ) -> None:
        self._rows = rows
        self._targets = np.ascontiguousarray(targets, np.float64)
        self._weights = weights
        self._total = float(targets.size if weights is None else weights.sum())
        self._loss = dual_loss_named(loss)
        self._d = rows.d
        self._constant = intercept_scaling or 0.0
        self._n_model = self._d + (intercept_scaling is not None)
        self._penalty = np.full(self._n_model, l2)
        self._l2 = l2
        self._frees = is_free and intercept_scaling is not None
        if self._frees:
            self._penalty[self._d :] = 0.0

    @property
    def n_model(self) -> int:
        """Coordinates of the model."""
        return self._n_model

    def at(self, w: F64) -> Point:
        """See :class:`elasticml.algorithms.newton.Smooth`."""
        margins = self._forward(w)
        slopes = np.empty(margins.size)
        loss = self._loss.loss.value_and_slope(margins, self._targets, self._weights, slopes)
        slopes /= self._total
        penalised = self._penalty * w
        value = loss / self._total + 0.5 * float(penalised @ w)
        image = self._adjoint(slopes)
        return Point(
            w=w,
            value=value,
            gradient=image + penalised,
            product=self._product(margins),
            gap=value - self._dual(margins, image),
            is_quadratic=self._loss.name == "squared",
        )

    def diagonal(self) -> F64:
        """See :class:`elasticml.algorithms.newton.Smooth`."""
        each = np.full(self._rows.n, self._loss.loss.smoothness / self._total)
        if self._weights is not None:
            each *= self._weights
        found = np.empty(self._n_model)
        found[: self._d] = self._rows.squares(each)
        found[self._d :] = self._constant**2 * each.sum()
        found += self._penalty
        # A column of zeros without penalty stays where it is.
        found[found <= _TINY] = 1.0
        return found

    def _forward(self, w: F64) -> F64:
        if not w.any():
            return np.zeros(self._rows.n)
        margins = self._rows.forward(w[: self._d])
        return margins + self._constant * w[-1] if self._n_model > self._d else margins

    def _adjoint(self, c: F64) -> F64:
        found = np.empty(self._n_model)
        found[: self._d] = self._rows.adjoint(c)
        found[self._d :] = self._constant * c.sum()
        return found

    def _product(self, margins: F64) -> Callable[[F64], F64]:
        curved: list[F64] = []

        def product(v: F64) -> F64:
            if not curved:
                curvature = np.empty(margins.size)
                self._loss.loss.curvature(margins, self._targets, self._weights, curvature)
                curved.append(curvature / self._total)
            offset = self._constant * float(v[-1]) if self._n_model > self._d else 0.0
            found = self._penalty * v
            image, products = self._rows.product(v[: self._d], offset, curved[0])
            found[: self._d] += image
            found[self._d :] += self._constant * products.sum()
            return found

        return product

    def _dual(self, margins: F64, image: F64) -> float:
        """Bound the least value from below, by the dual variables that belong to the margins.

        ``image`` (n_model,) is what these are at: the gradient of the mean loss.
        """
        if self._l2 <= 0.0:
            return math.nan
        alpha = np.empty(margins.size)
        self._loss.alpha_from_margin(margins, self._targets, alpha)
        if self._frees:
            alpha = self._feasible(alpha)
            s = alpha if self._weights is None else alpha * self._weights
            folded = s * self._targets if self._loss.folds_labels() else s
            image = self._rows.adjoint(folded / self._total)
        minus = self._loss.minus_conjugate(alpha, self._targets, self._weights) / self._total
        return minus - 0.5 / self._l2 * float(image @ image)

    def _feasible(self, alpha: F64) -> F64:
        s = alpha if self._weights is None else alpha * self._weights
        if not self._loss.folds_labels():
            return alpha - float(s.sum()) / self._total
        is_positive = self._targets > 0.0
        positive, negative = float(s[is_positive].sum()), float(s[~is_positive].sum())
        least = min(positive, negative)
        of_class = (least / positive if positive else 0.0, least / negative if negative else 0.0)
        return alpha * np.where(is_positive, *of_class)
