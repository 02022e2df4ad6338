"""A sparse linear model with a loss of margins, and proximal Newton steps on some of its columns.

``sum_i s_i loss(z_i, y_i) + a1 |w|_1 + a2/2 |w|^2`` with ``z = X w + b``, b not penalised or
absent. With the loss replaced by its quadratic model at the current margins this is an elastic net
over rows of weight ``s_i loss''`` with targets ``z - loss'/loss''``; a line search on the objective
follows the step.

Source: Friedman, Hastie and Tibshirani (2010), section 3; Yuan, Ho and Lin (2012), algorithm 2, for
the steps' lengths.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.columns.elastic_net import PRODUCTS_MAX, ElasticNetSolver
from elasticml.algorithms.columns.matrix import ColumnMatrix
from elasticml.algorithms.columns.parabola import FINE_SHARE, SHARE, best_on_parabola
from elasticml.algorithms.columns.products import Penalty
from elasticml.objectives.conjugates import DualLoss

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

#: Least curvature of a row as a share of its slope: badly misclassified rows have almost none,
#: which would give unbounded steps.
CURVED: Final = 1e-6
#: Sufficient decrease of the line search, as a share of the predicted decrease.
TAKEN: Final = 0.01
#: Maximum halvings of a step.
HALVINGS_MAX: Final = 40
#: Maximum sweeps for one subproblem.
SWEEPS_MAX: Final = 1000
#: Up to this number of columns the whole Gram matrix is computed at once.
PRODUCTS: Final = 100
#: A predicted decrease below this share of the value is rounding.
HIDDEN: Final = 8.0 * float(np.finfo(np.float64).eps)
#: Maximum Newton steps of the intercept alone, and the relative slope at which they stop.
INTERCEPT_STEPS: Final = 50
LEVEL: Final = 1e-14


class MarginModel:
    """A model with its margins, losses and slopes.

    Parameters
    ----------
    columns : ColumnMatrix
        Neither weighted nor centred.
    targets : ndarray (n,)
        -1 and +1.
    weights : ndarray (n,), optional
        None for ones.
    loss : DualLoss
        A differentiable loss of margins.
    intercept : bool
        Whether there is an unpenalised intercept.
    """

    def __init__(
        self,
        columns: ColumnMatrix,
        targets: F64,
        weights: F64 | None,
        loss: DualLoss,
        *,
        intercept: bool,
    ) -> None:
        self._columns, self.targets, self.weights = columns, targets, weights
        self._loss, self.has_intercept = loss, intercept
        self.w, self.b = np.zeros(columns.d), 0.0
        #: (n,) margins.
        self.z = np.zeros(columns.n)
        #: (n,) ``s_i loss'`` at the margins, and the sum of losses.
        self.slopes, self.value = np.empty(columns.n), 0.0
        #: Whether the last step's predicted decrease was above rounding.
        self.is_measurable = True

    def begin(self, w: F64, b: float) -> None:
        """Set the model."""
        self.w, self.b = np.array(w, np.float64), float(b)
        support = np.flatnonzero(self.w)
        self.z = self._columns.combination(support, self.w[support]) + self.b

    def value_of_zero(self) -> float:
        """Return the sum of losses at zero coefficients and intercept."""
        return self._at(np.zeros(self.z.size), np.empty(self.z.size))

    def look(self) -> None:
        """Compute losses and slopes at the current margins."""
        self.value = self._at(self.z, self.slopes)

    def _at(self, z: F64, slopes: F64) -> float:
        return self._loss.loss.value_and_slope(z, self.targets, self.weights, slopes)

    def curvature(self) -> F64:
        """Return ``s_i loss''`` (n,), bounded from below by a small share of the slope."""
        curvature = np.empty(self.z.size)
        self._loss.loss.curvature(self.z, self.targets, self.weights, curvature)
        return np.maximum(curvature, CURVED * np.abs(self.slopes))

    def settle_intercept(self) -> None:
        """Optimise the intercept by Newton steps, and update losses and slopes."""
        self.look()
        if not self.has_intercept:
            return
        other = np.empty(self.z.size)
        for _ in range(INTERCEPT_STEPS):
            slope, curvature = float(self.slopes.sum()), float(self.curvature().sum())
            if abs(slope) <= LEVEL * float(np.abs(self.slopes).sum()) or curvature <= 0.0:
                return
            step = -slope / curvature
            for _ in range(HALVINGS_MAX):
                value = self._at(self.z + step, other)
                if abs(float(other.sum())) < abs(slope):
                    break
                step *= 0.5
            else:
                return  # Rounding.
            self.b, self.value = self.b + step, value
            self.z += step
            self.slopes, other = other, self.slopes

    def is_wide(self, working: I64) -> bool:
        """Whether a step on this working set sweeps over the sparse columns without a copy."""
        return self._columns.is_sparse and working.size > PRODUCTS

    def newton_step(self, penalty: Penalty, working: I64, gap: float, share: float = SHARE) -> bool:
        """Take a proximal Newton step on these columns and the intercept.

        Returns False if the predicted decrease was below rounding.

        Parameters
        ----------
        working : ndarray (m,)
            Contains all columns of the model.
        gap : float
            Gap to which the subproblem is solved.
        share : float
            Share of the constraint violations that may remain, for sweeps over sparse columns.
        """
        curvature = self.curvature()
        shift = np.divide(self.slopes, curvature, out=np.zeros(self.z.size), where=curvature > 0.0)
        total = float(curvature.sum())
        if total <= 0.0:
            curvature, shift = np.full(self.z.size, CURVED), np.zeros(self.z.size)
        old = self.w[working]
        if self.is_wide(working):
            solution = best_on_parabola(
                self._columns.stored, working, old, self.slopes, curvature, penalty,
                intercept=self.has_intercept, share=share if self.is_measurable else FINE_SHARE,
            )  # fmt: skip
            if solution is not None:
                self.is_measurable = self._go(penalty, working, solution[0] - old, solution[1])
                return self.is_measurable
        matrix = ColumnMatrix(
            self._columns.take(working), self.z - shift, curvature, centred=self.has_intercept
        )
        solver = ElasticNetSolver(
            matrix,
            old,
            by_products=working.size <= PRODUCTS and not matrix.is_sparse,
            # The Gram matrix of sparse columns costs more than the sweeps of one subproblem.
            products_max=PRODUCTS if matrix.is_sparse else PRODUCTS_MAX,
        )
        new = solver.solve(penalty, gap, SWEEPS_MAX).w
        b = matrix.intercept(new) if self.has_intercept else 0.0
        return self._go(penalty, working, new - old, b - self.b)

    def _go(self, penalty: Penalty, working: I64, step: F64, rise: float) -> bool:
        """Take a step by backtracking line search."""
        moved = np.flatnonzero(step)
        along = self._columns.combination(working[moved], step[moved]) + rise
        old = self.w[working]
        before = self.value + penalty.of(old)
        promised = -float(self.slopes @ along) + penalty.of(old) - penalty.of(old + step)
        # This close to the optimum differences of values are rounding: take the full step.
        is_measurable = promised > HIDDEN * abs(before)
        if not promised >= -HIDDEN * abs(before):
            return False  # Uphill or not finite: a step spoilt by rounding.
        slopes, share = np.empty(self.z.size), 1.0
        for _ in range(HALVINGS_MAX):
            new = old + share * step
            value = self._at(self.z + share * along, slopes)
            is_downhill = value + penalty.of(new) <= before - TAKEN * share * promised
            if is_downhill or (not is_measurable and np.isfinite(value)):
                self.w[working], self.b = new, self.b + share * rise
                self.z += share * along
                self.value, self.slopes = value, slopes
                return is_measurable
            share *= 0.5
        return False
