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
from typing import Final

import numpy as np

from elasticml.algorithms.linear.duality import dual_point
from elasticml.algorithms.linear.newton import Minimum, Point, minimise
from elasticml.algorithms.linear.row_blocks import GRAM_COLUMNS_MAX, BorderedRows, RowBlocks
from elasticml.arrays import F64
from elasticml.objectives.loss_kernels import loss_named

#: Diagonal entries up to this are zero: a column of zeros without penalty.
_TINY: Final = 1e-300
_NEVER: Final = (math.inf, math.inf)
#: Least rows for each coordinate with which Newton steps may factor the Hessian.
GRAM_ROWS: Final = 4
#: Slope at which a search along a step ends, as a share of the first.
SEARCH: Final = 0.05
#: Most trials of a search. Where the loss is almost linear a step may be 1e30 times too long.
SEARCH_MAX: Final = 200


class LinearObjective:
    """The objective of the module docstring.

    Parameters
    ----------
    rows : RowBlocks
    targets : ndarray (n,)
        -1 and +1; any real numbers for the squared loss.
    weights : ndarray (n,), optional
        None for ones.
    loss : str
        A smooth loss with a conjugate.
    l2 : float, not negative
        With 0, points have no gap.
    intercept_scaling : float, optional
        c; None for a model without intercept. Otherwise the model's last coordinate is b.
    is_free : bool
        The intercept is not penalised.
    fixed : int, optional
        Number of the column whose coefficient is 1 and not trained: an offset.
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
        fixed: int | None = None,
    ) -> None:
        self._rows = rows
        self._targets = np.ascontiguousarray(targets, np.float64)
        self._weights = weights
        self._total = float(targets.size if weights is None else weights.sum())
        self._loss = loss_named(loss)
        self._bordered = BorderedRows(rows, intercept_scaling)
        #: Number of coordinates of the model.
        self.n_model = self._bordered.n_model
        self._penalty = np.full(self.n_model, l2)
        self.l2 = l2
        self._frees = is_free and intercept_scaling is not None
        if self._frees:
            self._penalty[rows.d :] = 0.0
        #: The Hessian jumps where margins are 1.
        self._jumps = loss == "squared_hinge"
        self._is_searched = self._jumps or (loss == "logistic" and l2 > 0.0)
        #: Number of the offset's column; None without one.
        self.fixed = fixed
        if fixed is not None:
            self._penalty[fixed] = 0.0

    def zero(self) -> F64:
        """Return the model without features, (n_model,): zero except for an offset."""
        w = np.zeros(self.n_model)
        if self.fixed is not None:
            w[self.fixed] = 1.0
        return w

    def at(self, w: F64) -> Point:
        """See :class:`elasticml.algorithms.linear.newton.Smooth`."""
        margins = self._forward(w)
        slopes = np.empty(margins.size)
        loss = self._loss.value_and_slope(margins, self._targets, self._weights, slopes)
        return self._at(w, margins, loss, slopes, -math.inf)

    def _at(self, w: F64, margins: F64, loss: float, slopes: F64, bound: float) -> Point:
        """Evaluate at ``w`` with these margins, their sum of losses and their slopes.

        ``bound`` is a lower bound of the minimum.
        """
        penalised = self._penalty * w
        if not math.isfinite(loss):  # a trial step too far for a loss with the link log
            none = np.full(self.n_model, math.nan)
            product = self._product(self._curvature(margins))
            return Point(w=w, value=math.inf, gradient=none, product=product, gap=math.inf)
        slopes /= self._total
        value = loss / self._total + 0.5 * float(penalised @ w)
        image = self._bordered.adjoint(slopes)
        gradient, curvature = self._free(image + penalised), self._curvature(margins)
        gap = self._gap(value, slopes, gradient)
        bound = max(bound, value - gap)
        return Point(
            w=w,
            value=value,
            gradient=gradient,
            product=self._product(curvature),
            gap=value - bound if math.isfinite(bound) else gap,
            is_quadratic=self._loss.name == "squared",
            minimum_along=(
                self._search(w, margins, slopes, curvature, bound) if self._is_searched else None
            ),
            hessian_products=self._products_here(slopes) if self._jumps else None,
        )

    def _products_here(self, slopes: F64) -> tuple[float, float]:
        """Return the cost of a Hessian of the rows with a slope, see :class:`Point`."""
        if not math.isfinite(self.hessian_products()):
            return _NEVER
        share = max(float(np.count_nonzero(slopes)), 1.0) / slopes.size
        of_all = self._rows.gram_products(share)
        return of_all, of_all / share

    def _search(
        self, w: F64, margins: F64, slopes: F64, curvature: Callable[[], F64], bound: float
    ) -> Callable[[F64, bool], Point]:
        """Return the search along a step: Newton's method between the bounds found so far."""
        loss_at = self._loss.value_and_slope

        def search(step: F64, certifies: bool) -> Point:
            directions, penalised = self._forward(step), self._penalty * step
            constant, linear = float(penalised @ w), float(penalised @ step)
            first = abs(float(slopes @ directions) + constant)
            low, high, t, trial = 0.0, math.inf, 1.0, np.empty(margins.size)
            there, trials = margins + directions, 0
            loss = loss_at(there, self._targets, self._weights, trial)
            while trials < SEARCH_MAX:
                slope = float(trial @ directions) / self._total + constant + t * linear
                if abs(slope) <= SEARCH * first:
                    break
                low, high = (low, t) if slope > 0.0 else (t, high)
                along = self._loss.curvature_along(there, directions, self._targets, self._weights)
                t -= slope / (along / self._total + linear)
                if not low < t < high:
                    t = 0.5 * (low + high) if math.isfinite(high) else 2.0 * low
                there = margins + t * directions
                loss = loss_at(there, self._targets, self._weights, trial)
                trials += 1
            least = bound
            if certifies:
                least = max(least, self._bound_of(slopes + curvature() * directions))
            return self._at(w + t * step, there, loss, trial, least)

        return search

    def minimum(self, start: F64, *, gap: float, steps: int) -> Minimum:
        """See :func:`elasticml.algorithms.linear.newton.minimise`."""
        return minimise(
            self,
            start,
            gap=gap,
            steps=steps,
            hessian=self.hessian,
            hessian_products=self.hessian_products(),
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
        diagonal = self._free(self._bordered.squares(each) + self._penalty)
        # The coordinate of a column of zeros without penalty never moves.
        diagonal[diagonal <= _TINY] = 1.0
        return diagonal

    def hessian_products(self) -> float:
        """Return the cost of a Hessian's factors in its products; infinite for many columns.

        Also with an offset, and without a penalty: the Hessian may be singular.
        """
        is_few = self.n_model <= GRAM_COLUMNS_MAX and self._rows.n >= GRAM_ROWS * self.n_model
        if self.fixed is not None or self.l2 <= 0.0 or not is_few:
            return math.inf
        return self._rows.gram_products()

    def hessian(self, w: F64) -> F64:
        """Return the Hessian at ``w``, (n_model, n_model)."""
        c = np.empty(self._rows.n)
        self._loss.curvature(self._forward(w), self._targets, self._weights, c)
        c /= self._total
        hessian = self._bordered.gram(c)
        hessian[np.diag_indices(self.n_model)] += self._penalty
        return hessian

    def _forward(self, w: F64) -> F64:
        if not w.any():
            return np.zeros(self._rows.n)
        return self._bordered.forward(w)

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
                each = np.empty(margins.size)
                self._loss.curvature(margins, self._targets, self._weights, each)
                cached.append(each / self._total)
            return cached[0]

        return curvature

    def _product(self, curvature: Callable[[], F64]) -> Callable[[F64], F64]:
        def product(v: F64) -> F64:
            return self._free(self._penalty * v + self._bordered.product(v, curvature()))

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
        rows = self._rows if self._frees else self._bordered
        image = rows.adjoint(factors / total)
        minus = self._loss.minus_conjugate(alpha, targets, weights) / total
        if self.fixed is not None:
            # sum s_i coefficient_i offset_i: an offset is linear in the dual problem.
            minus -= float(image[self.fixed])
            image = self._free(image)
        return minus - 0.5 / self.l2 * float(image @ image)
