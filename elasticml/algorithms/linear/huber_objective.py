"""Huber's regression with a scale, as a smooth function of the model with a duality gap.

``F(w, b, sigma) = 1/S sum_i s_i (sigma + sigma H(r_i / sigma)) + alpha/S |w|^2`` with
``r = y - X w - b`` and ``H(t) = t^2`` for ``|t| <= epsilon``, else ``2 epsilon |t| - epsilon^2``,
is jointly convex. The scale sigma that minimises it for given residuals is computed exactly; what
remains is a function of w and b.

In the dual, ``sigma H(r/sigma) = max_a (a r - sigma a^2/4)`` over ``|a| <= 2 epsilon``: any such a
with ``sum s_i a_i = 0`` (free intercept) and ``sum s_i a_i^2 / 4 <= S`` bounds the minimum by
``1/S sum s_i a_i y_i - 1/(4 alpha S) |sum s_i a_i x_i|^2``.

As sigma goes to 0 the function has kinks, where most rows are fitted exactly, and Newton steps end
early. A least sigma tau smooths them, and adds at most tau to the minimum: the derivative of F by
sigma is at most 1. The bound of the minimum is not affected.

Source: Huber and Ronchetti, Robust Statistics, concomitant scale estimates; scikit-learn's
HuberRegressor minimises S F.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from elasticml.algorithms.linear.newton import Point
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.arrays import F64

#: Least scale: all but a few residuals are 0. As in scikit-learn.
SCALE_MIN: Final = 10.0 * float(np.finfo(np.float64).eps)


class HuberObjective:
    """The objective of the module docstring.

    Parameters
    ----------
    rows : RowBlocks
    targets, weights : ndarray (n,)
    epsilon : float, at least 1
    alpha : float, not negative
        With 0, points have no gap.
    intercept : bool
        The model's last coordinate is b.
    scale_min : float
        tau: the least scale of the values, derivatives and gaps.
    """

    def __init__(
        self,
        rows: RowBlocks,
        targets: F64,
        weights: F64,
        *,
        epsilon: float,
        alpha: float,
        intercept: bool,
        scale_min: float = SCALE_MIN,
    ) -> None:
        self._rows, self._targets, self._weights = rows, targets, weights
        self._total = float(weights.sum())
        self._epsilon, self._alpha = epsilon, alpha
        self._intercept = intercept
        self._scale_min = max(scale_min, SCALE_MIN)
        self.n_model = rows.d + intercept
        self._penalty = np.full(self.n_model, 2.0 * alpha / self._total)
        self._penalty[rows.d :] = 0.0

    def residuals(self, w: F64) -> F64:
        """Return ``y - X w - b``."""
        margins = self._rows.forward(w[: self._rows.d])
        return self._targets - (margins + float(w[-1]) if self._intercept else margins)

    def scale(self, residuals: F64) -> float:
        """Return the sigma that minimises F: ``sum s_i min(r_i^2 / sigma^2, epsilon^2) = S``."""
        order = np.argsort(np.abs(residuals), kind="stable")
        sizes, s = np.abs(residuals[order]), self._weights[order]
        squares = np.concatenate([[0.0], np.cumsum(s * sizes * sizes)])
        # Weight of the residuals from the k-th on: outliers if the threshold is just below it.
        above = self._total - np.concatenate([[0.0], np.cumsum(s)])
        scales = sizes / self._epsilon
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.where(scales > 0.0, squares[:-1] / (scales * scales), 0.0)
        excess = self._total - inside - self._epsilon**2 * above[:-1]
        k = int(np.argmax(excess >= 0.0)) if np.any(excess >= 0.0) else sizes.size
        room = self._total - self._epsilon**2 * max(above[k], 0.0)
        if room <= 0.0:
            return max(float(scales[min(k, sizes.size - 1)]), SCALE_MIN)
        return max(math.sqrt(squares[k] / room), SCALE_MIN)

    def at(self, w: F64) -> Point:
        """See :class:`elasticml.algorithms.linear.newton.Smooth`."""
        r = self.residuals(w)
        sigma, limit = max(self.scale(r), self._scale_min), 2.0 * self._epsilon
        a = np.clip(2.0 * r / sigma, -limit, limit)
        penalised = self._penalty * w
        s = self._weights
        loss = float(s @ (sigma + a * r - 0.25 * sigma * a * a)) / self._total
        value = loss + 0.5 * float(penalised @ w)
        gradient = penalised - self._adjoint(s * a) / self._total
        return Point(
            w=w,
            value=value,
            gradient=gradient,
            product=self._product(r, sigma),
            gap=value - self._dual(a),
        )

    def diagonal(self) -> F64:
        """See :class:`elasticml.algorithms.linear.newton.Smooth`."""
        sigma = self.scale(self.residuals(np.zeros(self.n_model)))
        each = 2.0 * self._weights / (sigma * self._total)
        diagonal = np.empty(self.n_model)
        diagonal[: self._rows.d] = self._rows.squares(each)
        diagonal[self._rows.d :] = each.sum()
        diagonal += self._penalty
        diagonal[diagonal <= 0.0] = 1.0
        return diagonal

    def _adjoint(self, c: F64) -> F64:
        image = np.empty(self.n_model)
        image[: self._rows.d] = self._rows.adjoint(c)
        image[self._rows.d :] = c.sum()
        return image

    def _product(self, r: F64, sigma: float) -> Callable[[F64], F64]:
        """Return products with the Hessian: that of w less what sigma gives way."""
        inner = np.abs(r) <= self._epsilon * sigma
        curvatures = np.where(inner, 2.0 * self._weights / (sigma * self._total), 0.0)
        # Second derivatives by z and sigma, and by sigma.
        mixed = curvatures * r / sigma
        bend = float(mixed @ r) / sigma if sigma > self._scale_min else 0.0
        cross = self._adjoint(mixed)

        def product(v: F64) -> F64:
            offset = float(v[-1]) if self._intercept else 0.0
            image, products = self._rows.product(v[: self._rows.d], offset, curvatures)
            hv = self._penalty * v
            hv[: self._rows.d] += image
            hv[self._rows.d :] += products.sum()
            return hv - cross * (float(cross @ v) / bend) if bend > 0.0 else hv

        return product

    def _dual(self, a: F64) -> float:
        if self._alpha <= 0.0:
            return math.nan
        s = self._weights
        if self._intercept:
            up, down = float(s @ np.maximum(a, 0.0)), float(s @ np.maximum(-a, 0.0))
            least = min(up, down)
            a = a * np.where(a > 0.0, least / up if up else 0.0, least / down if down else 0.0)
        size = 0.25 * float(s @ (a * a))
        if size > self._total:
            a = a * math.sqrt(self._total / size)
        image = self._rows.adjoint(s * a)
        return (float((s * a) @ self._targets) - 0.25 / self._alpha * float(image @ image)) / (
            self._total
        )
