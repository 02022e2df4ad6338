"""The objective of a linear model over rows in memory, as a smooth function with a duality gap.

``F(w) = 1/S sum_i s_i loss(z_i, y_i) + l2/2 |w|^2`` with ``z = X w + c b``. The intercept b is not
penalised, or penalised as the weight of a column of value c. The dual variables of a model are
``a_i = -loss'``. If b is not penalised they are made feasible, ``sum_i s_i a_i y_i = 0``: those of
the heavier class, in regression of the heavier sign, are scaled down or, for the squared loss,
their mean is subtracted. This changes nothing at the optimum, so the gap converges to zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

import numpy as np

from elasticml.algorithms.linear.design import GRAM_COLUMNS_MAX, Design
from elasticml.algorithms.linear.duality import dual_point
from elasticml.algorithms.linear.newton import Point, least_along
from elasticml.algorithms.linear.problem import Problem
from elasticml.arrays import F64
from elasticml.objectives.loss_kernels import loss_named

#: Diagonal entries up to this are zero: a column of zeros without penalty.
_TINY: Final = 1e-300
#: Least rows for each coordinate with which Newton steps may factor the Hessian.
GRAM_ROWS: Final = 4


class LinearObjective:
    """The objective of the module docstring, a :class:`elasticml.algorithms.linear.newton.Smooth`.

    Several classes have a model each, see
    :mod:`elasticml.algorithms.linear.softmax_objective`.

    Parameters
    ----------
    rows : Design
        Without a last column of ones.
    targets : ndarray (n,)
        -1 and +1; any real numbers for the squared loss.
    weights : ndarray (n,), optional
        None for ones.
    problem : Problem
        Of a smooth loss with a conjugate. Without a penalty, points have no gap. With an intercept
        the model's last coordinate is b.
    """

    def __init__(
        self,
        rows: Design,
        targets: F64,
        weights: F64 | None,
        problem: Problem,
    ) -> None:
        self._rows = rows.bordered(problem.intercept)
        self._targets, self._weights = targets, weights
        self._total = float(targets.size if weights is None else weights.sum())
        self._loss: Any = self._loss_of(problem)
        #: Number of models, and of coordinates of all of them.
        self.n_models = problem.n_models
        self.n_model = self.n_models * self._rows.n_model
        self.l2, self.fixed = problem.l2, problem.fixed
        self._penalty = np.full(self.n_model, self.l2)
        self._frees = problem.is_free and problem.intercept is not None
        if self._frees:
            self._penalty[rows.d :: self._rows.n_model] = 0.0
        #: Steps may be lengthened; without a penalty there may be no minimum.
        self._longest = math.inf if self.l2 > 0.0 else 1.0
        if self.fixed is not None:
            self._penalty[self.fixed] = 0.0

    def _loss_of(self, problem: Problem) -> Any:
        """Return the loss of the rows' margins."""
        self._targets = np.ascontiguousarray(self._targets, np.float64)
        return loss_named(problem.loss)

    def zero(self) -> F64:
        """Return the model without features, (n_model,): zero except for an offset."""
        w = np.zeros(self.n_model)
        if self.fixed is not None:
            w[self.fixed] = 1.0
        return w

    def at(self, w: F64) -> Point:
        """See :class:`elasticml.algorithms.linear.newton.Smooth`."""
        margins = self._forward(w)
        slopes = np.empty(margins.shape)
        loss = float(self._loss.value_and_slope(margins, self._targets, self._weights, slopes))
        return self._at(w, margins, loss, slopes, -math.inf)

    def _at(self, w: F64, margins: F64, loss: float, slopes: F64, bound: float) -> Point:
        """Evaluate at ``w`` with these margins, their sum of losses and their slopes.

        ``bound`` is a lower bound of the minimum.
        """
        if not math.isfinite(loss):  # a start too far for a loss with the link log
            slopes, loss = np.full(slopes.shape, math.nan), math.inf
        slopes /= self._total
        penalised = self._penalty * w
        value = loss / self._total + 0.5 * float(penalised @ w)
        gradient = self._free(self._adjoint(slopes) + penalised)
        curvature, gap = self._curvature(margins), self._gap(value, slopes, gradient)
        bound = max(bound, value - gap)

        def minimum_along(step: F64, certifies: bool) -> Point:
            directions, stretch = self._forward(step), self._penalty * step
            constant, linear = float(stretch @ w), float(stretch @ step)
            trial, loss, there = np.empty(margins.shape), math.nan, margins
            rows = self._targets, self._weights

            def at(t: float) -> tuple[float, Callable[[], float]]:
                nonlocal loss, there
                there = margins + t * directions
                loss = self._loss.value_and_slope(there, *rows, trial)
                # A loss with the link log overflows.
                with np.errstate(over="ignore", invalid="ignore"):
                    slope = float(np.vdot(trial, directions)) / self._total + constant + t * linear

                def bend() -> float:
                    along = float(self._loss.curvature_along(there, directions, *rows))
                    return along / self._total + linear

                return slope if math.isfinite(loss) else math.inf, bend

            first = abs(float(np.vdot(slopes, directions)) + constant)
            t, least = least_along(at, first, self._longest), bound
            if certifies:
                least = max(least, self._bound_of(slopes + self._times(curvature(), directions)))
            return self._at(w + t * step, there, loss, trial, least)

        return Point(
            w=w,
            value=value,
            gradient=gradient,
            product=self._product(curvature),
            gap=value - bound if math.isfinite(bound) else gap,
            minimum_along=minimum_along,
            is_quadratic=self._loss.name == "squared",
            jumps=self._loss.name == "squared_hinge",
            hessian_products=self._hessian_products(slopes),
        )

    def diagonal(self) -> F64:
        """See :class:`elasticml.algorithms.linear.newton.Smooth`."""
        return self._diagonal

    @cached_property
    def _diagonal(self) -> F64:
        smoothness = self._loss.smoothness
        if math.isfinite(smoothness):
            each = np.full(self._rows.n, smoothness / self._total)
            if self._weights is not None:
                each *= self._weights
        else:
            each = np.empty(self._rows.n)
            self._loss.curvature(np.zeros(each.size), self._targets, self._weights, each)
            each /= self._total
        squares = np.tile(self._rows.squares(each), self.n_models)
        diagonal = self._free(squares + self._penalty)
        # The coordinate of a column of zeros without penalty never moves.
        diagonal[diagonal <= _TINY] = 1.0
        return diagonal

    def _hessian_products(self, slopes: F64) -> float:
        """Return the cost of a Hessian of the rows with a slope; infinite for many columns.

        Also with an offset, and without a penalty, where the Hessian may be singular. That of
        several classes without one is computed: gradients alone take hundreds of products.
        """
        is_few = self.n_model <= GRAM_COLUMNS_MAX and self._rows.n >= GRAM_ROWS * self.n_model
        if self.l2 <= 0.0:
            is_few = self.n_models > 1 and self.n_model <= 2 * GRAM_COLUMNS_MAX
        if self.fixed is not None or not is_few:
            return math.inf
        share = max(int(np.count_nonzero(slopes)), 1) / slopes.size
        return self._rows.gram_products(share, self.n_models)

    def hessian(self, w: F64) -> F64:
        """Return the Hessian at ``w``, (n_model, n_model)."""
        c = np.empty(self._rows.n)
        self._loss.curvature(self._forward(w), self._targets, self._weights, c)
        c /= self._total
        hessian = self._rows.gram(c)
        hessian[np.diag_indices(self.n_model)] += self._penalty
        return hessian

    def _forward(self, w: F64) -> F64:
        if not w.any():
            return np.zeros(self._rows.n)
        return self._rows.forward(w)

    def _adjoint(self, c: F64) -> F64:
        return self._rows.adjoint(c)

    def _times(self, curvature: F64, u: F64) -> F64:
        """Return the second derivatives of the mean loss times directions of the margins."""
        return curvature * u

    def _free(self, v: F64) -> F64:
        """Return ``v``, with a zero for the fixed coefficient."""
        if self.fixed is not None:
            v[self.fixed] = 0.0
        return v

    def _curvature(self, margins: F64) -> Callable[[], F64]:
        """Return a function that returns the rows' second derivatives, computed once."""
        cached: list[F64] = []

        def curvature() -> F64:
            if not cached:
                each = np.empty(margins.shape)
                self._loss.curvature(margins, self._targets, self._weights, each)
                cached.append(each / self._total)
            return cached[0]

        return curvature

    def _curved(self, v: F64, curvature: F64) -> F64:
        """Return the Hessian of the mean loss times ``v``."""
        return self._rows.product(v, curvature)

    def _product(self, curvature: Callable[[], F64]) -> Callable[[F64], F64]:
        def product(v: F64) -> F64:
            return self._free(self._penalty * v + self._curved(v, curvature()))

        return product

    def _gap(self, value: float, slopes: F64, gradient: F64) -> float:
        """Return the gap of a model and its dual variables, from the slopes of the mean loss.

        By the equality of Fenchel and Young the gap is the square norm of the gradient over
        ``2 l2``, unless the dual variables have to be made feasible.
        """
        if self.l2 <= 0.0:
            return math.nan
        if not self._frees:
            return 0.5 / self.l2 * float(gradient @ gradient)
        return value - self._bound_of(slopes)

    def _bound_of(self, slopes: F64) -> float:
        """Return the dual objective near slopes of the mean loss: a lower bound of the minimum.

        They need not be those of any margins. Newton's method linearises the slopes. The dual
        variables of slopes at the end of a step have the image of the model there, up to the
        residual of the step: their gap falls like that of the objective, and does not have the
        step's own error over ``l2``.
        """
        if self.l2 <= 0.0:
            return -math.inf
        total, targets, weights = self._total, self._targets, self._weights
        alpha, factors = dual_point(
            self._loss, total * slopes, targets, weights, balanced=self._frees
        )
        image = self._rows.adjoint(factors / total)[: self._rows.d if self._frees else None]
        minus = float(self._loss.minus_conjugate(alpha, targets, weights)) / total
        if self.fixed is not None:
            # sum s_i coefficient_i offset_i: an offset is linear in the dual problem.
            minus -= float(image[self.fixed])
            image = self._free(image)
        return minus - 0.5 / self.l2 * float(image @ image)
