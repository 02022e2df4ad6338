"""Sparse linear classifiers by proximal Newton steps on working sets of columns.

``sum_i s_i loss(x_i.w + b, y_i) + a1 |w|_1 + a2/2 |w|^2`` with a smooth loss of margins, b not
penalised or absent. With the loss replaced by its quadratic model at the current margins this is an
elastic net over rows of weight ``s_i loss''`` with targets ``z - loss'/loss''``; a line search
follows.

The dual variables of a model are ``a_i = -loss'``. With an intercept, those of the heavier class
are scaled down until ``sum_i s_i a_i y_i = 0``, which changes nothing if b is optimal; then all are
scaled until every column satisfies its constraint.

Source: Friedman, Hastie and Tibshirani (2010), section 3; Yuan, Ho and Lin (2012) for sweeps over
sparse columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from elasticml.algorithms.linear.column_matrix import ColumnMatrix, unweighted_columns
from elasticml.algorithms.linear.coordinate_descent_kernels import GramProblem
from elasticml.algorithms.linear.design import Design
from elasticml.algorithms.linear.duality import Dual, dual_point, lower_bound
from elasticml.algorithms.linear.elastic_net import ElasticNetSolver
from elasticml.algorithms.linear.fit import Fit
from elasticml.algorithms.linear.gram import CLOSE
from elasticml.algorithms.linear.gram_descent import EQUATIONS_MAX, descend
from elasticml.algorithms.linear.prox_newton import (
    HALVINGS_MAX,
    NEAR,
    SparseColumns,
    line_search,
    measure,
    solve_quadratic_model,
)
from elasticml.algorithms.linear.working_sets import solve as solve_working_sets
from elasticml.arrays import F64, I64
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.objectives.penalty_kernels import Penalty

#: Wanted gap, as a share of the objective, below which the model's own dual variables must certify
#: it: a subproblem's certify a model before its last digits are right.
PREDICTED_MIN: Final = 1e-7
#: The accuracy of sweeps over sparse columns is refined by this factor when a model has it, and is
#: at most this share of the violations when a step's decrease was below rounding.
FINER: Final = 0.25
FINEST: Final = 1e-4
#: Maximum sweeps of a step, and of one on columns whose Gram matrix is smaller.
SWEEPS_MAX: Final = 1000
FULL_SWEEPS_MAX: Final = 100
#: Least curvature of a row as a share of its slope: badly misclassified rows have almost none,
#: which would give unbounded steps.
CURVED: Final = 1e-6
#: Most columns of a Gram matrix.
BLOCK_MAX: Final = 1500
#: Maximum Newton steps of the intercept alone, and the relative slope at which they stop.
INTERCEPT_STEPS: Final = 50
LEVEL: Final = 1e-14
#: Decrease by a step, as a share of the loss, from which on inexact steps are what is slow.
CLOSE_SHARE: Final = 1e-4
#: Accuracy of a Newton step's subproblem, as a share of the working set's gap.
GAP_SHARE: Final = 0.01
#: The same on a Gram matrix of all columns, as a share of the wanted gap.
WHOLE_SHARE: Final = 0.1
TINY: Final = float(np.finfo(np.float64).tiny)


class Subproblem(NamedTuple):
    """The quadratic model of a proximal Newton step, from which the intercepts are eliminated."""

    gram: GramProblem
    #: Maps a step of the coefficients to that of the intercept.
    rise: Callable[[F64], Any]
    #: (n,), of the rows; None if the slopes after a step are not needed.
    curvature: F64 | None


class SparseClassifier:
    """Solves for a sequence of penalties, each warm-started from the previous model.

    Parameters
    ----------
    X : ndarray or sparse in CSC format (n, d)
        Not modified.
    targets : ndarray (n,)
        -1 and +1.
    weights : ndarray (n,), optional
        None for ones.
    loss : MarginLoss
        Smooth.
    intercept : bool
        Whether there is an unpenalised intercept.
    rows : Design, optional
        X by rows, to compute Gram matrices of it where that is cheap.
    """

    def __init__(
        self,
        X: Any,
        targets: Any,
        weights: F64 | None,
        *,
        loss: Any,
        intercept: bool,
        rows: Design | None = None,
    ) -> None:
        self._loss = loss
        self._columns, self._shifts, norms = unweighted_columns(X, weights, intercept=intercept)
        is_by_rows = rows is not None and rows.has_cheap_gram() and not self._shifts.any()
        self._rows = rows if is_by_rows else None
        self._targets, self._weights, self._has_intercept = targets, weights, intercept
        n, d = self._columns.n, self._columns.d
        #: Of the coefficients, which are kept flat.
        self._shape: tuple[int, ...] = (d,)
        #: (d,)
        self.squares = self._loss.smoothness * norms
        #: (d,) coefficients, the intercept for the shifted columns, and the margins (n,).
        self.w, self.z = np.zeros(d), np.zeros(n)
        self.b: Any = 0.0
        #: (n,) ``s_i loss'`` at the margins, and the sum of losses.
        self._slopes, self.value = np.empty(n), 0.0
        #: By how much the last step reduced the objective.
        self._decrease = math.inf
        #: (n,) slopes that the last step's subproblem predicted, if they satisfy the constraints.
        self._predicted: F64 | None = None
        #: Most columns of a Gram matrix, and sweeps of a step on it.
        self._block, self._sweeps_max = BLOCK_MAX, SWEEPS_MAX
        #: Whether sweeps over sparse columns have not solved a subproblem.
        self._is_stiff = False
        #: (n,) the curvature that was measured last, the columns at the last look (m,), and their
        #: moments (m, 4); None where columns are not swept.
        self._curved, self._looked = np.empty(0), np.empty(0, np.int64)
        self._moments: F64 | None = None
        self._restart(0.0)

    def _restart(self, goal: float) -> None:
        self._goal, self.is_measurable = goal, True
        #: Violations that sweeps over sparse columns may leave, and the largest one at the last
        #: look.
        self._accuracy, self._reach = np.inf, np.inf

    def begin(self, w: F64, b: Any) -> None:
        """Set the model: coefficients, (d,), and intercept."""
        self.w, self.b = np.array(w, np.float64).ravel(), b + w @ self._shifts
        support = np.flatnonzero(self.w)
        self.z = self._along(support, self.w[support]) + self.b

    def solve(self, penalty: Penalty, gap: float, steps: int) -> Fit:
        """Take at most ``steps`` Newton steps, until the gap is at most ``gap``."""
        self._restart(gap)
        # For badly misclassified rows the loss has almost no curvature: Newton steps from there
        # diverge.
        zero = np.zeros(self.z.shape)
        self.settle_intercept()
        if not self.value + penalty.of(self.w) <= self._at(zero, np.empty(zero.shape)):
            self.begin(np.zeros(self._shape), np.zeros(self._shape[:-1]))
        return solve_working_sets(self, penalty, gap, steps)

    def fit(self, gap: float, steps: int, *, converged: bool) -> Fit:
        """Return the model with its certificate."""
        b = self.b - self.w.reshape(self._shape) @ self._shifts if self._has_intercept else None
        return Fit(w=self.w.copy(), b=b, gap=gap, steps=steps, converged=converged)

    @property
    def patience(self) -> int:
        """Sweeps get a second step, which is as accurate as rounding allows."""
        return 1 if self._moments is None else 2

    @property
    def takes_all(self) -> bool:
        """Whether columns are swept, or steps use the rows' Gram matrix."""
        return self._moments is not None or self._rows is not None

    def settle_intercept(self) -> None:
        """Optimise the intercept by Newton steps, and update losses and slopes."""
        self.b, self.value, self._slopes = best_intercept(
            self._loss,
            self.z,
            self._targets,
            self._weights,
            self.b,
            is_free=self._has_intercept,
        )

    def _at(self, z: F64, slopes: F64) -> float:
        return float(self._loss.value_and_slope(z, self._targets, self._weights, slopes))

    def _curvature(self) -> F64:
        return safe_curvature(self._loss, self.z, self._targets, self._weights, self._slopes)

    def bound(self, penalty: Penalty, features: I64) -> tuple[float, Dual]:
        """Fit the intercept, measure swept columns, and return the objective and a bound."""
        self.settle_intercept()
        # Sweeps measure the violations of L1.
        is_swept = self._columns.is_sparse and penalty.is_l1 and not self._is_on_rows
        alpha, folded = self._dual()
        if is_swept:
            self._looked, self._moments = features, self._measure(features, folded)
            return self._bound_at(penalty, features, alpha, self._moments[:, 3])
        self._moments = None
        return self._bound(penalty, features)

    def drop(self, features: I64) -> bool:
        """Remove screened columns from the model; return whether any had a coefficient."""
        gone = features[self.w[features] != 0.0]
        if gone.size:
            self.z = self.z - self._along(gone, self.w[gone])
            self.w[gone] = 0.0
            self.settle_intercept()
        return bool(gone.size)

    def descend(self, penalty: Penalty, working: I64, gap: float, goal: float, steps: int) -> int:
        """Take Newton steps on the working set; return their number."""
        if self._moments is not None:
            moments = self._moments
            if working.size < self._looked.size:
                moments = moments[np.searchsorted(self._looked, working)]
            return self._sweep(penalty, working, moments, gap, steps)
        # On rows all columns are in it, and the bound is that of the whole.
        self.newton_step(
            penalty, working, GAP_SHARE * gap if self._rows is None else WHOLE_SHARE * goal
        )
        return 1

    def _sweep(self, penalty: Penalty, features: I64, moments: F64, gap: float, steps: int) -> int:
        """Take steps on the columns at or near their threshold, by sweeps; return their number.

        Several, as long as they cost less than a look at all columns. A step ends when the
        violations are below a bound, which is a quarter of the last one if a model met that.

        Source: Yuan, Ho and Lin (2012), section 4, for the working set and the accuracy.
        """
        left = self._columns.entries(features)
        is_stuck = not self.is_measurable
        over = self._violations(penalty, features, moments)
        is_near = (over > -NEAR * self._reach) | (self.w[features] != 0.0) | is_stuck
        self._reach, working = float(over.max(initial=0.0)), features[is_near]
        moments, done = moments[is_near], 0
        while True:
            done += 1
            if self._is_stiff and self._is_full(working):
                self.newton_step(penalty, working, GAP_SHARE * gap)
                break
            sweeps = self._sweep_step(penalty, working, moments, self._accuracy)
            left -= (1 + sweeps) * self._columns.entries(working)
            if left <= 0 or done >= steps or not self.is_measurable:
                break
            self.settle_intercept()
            moments = self._measure(working, self._slopes)
            self._violations(penalty, working, moments)
        return done

    def _violations(self, penalty: Penalty, features: I64, moments: F64) -> F64:
        """Return those of columns, negative within the threshold, and refine the accuracy."""
        w = self.w[features]
        slopes = moments[:, 2] + penalty.a2 * w
        inside = np.abs(slopes) - penalty.a1
        over = np.where(w == 0.0, inside, np.abs(slopes + np.copysign(penalty.a1, w)))
        correlations = float(np.maximum(over, 0.0).sum())
        if correlations <= self._accuracy:
            self._accuracy *= FINER
        if not self.is_measurable:
            self._accuracy = min(self._accuracy, FINEST * correlations)
        self._accuracy = min(self._accuracy, correlations)
        return over

    def _dual(self) -> tuple[F64, F64]:
        """Return balanced dual variables, and the rows' factors with them.

        Those of the subproblem, if there are any: columns satisfy their constraints there. The
        model's own violate them by many times a low threshold, however close its objective is to
        the minimum.
        """
        slopes = self._slopes
        if self._predicted is not None and self._goal > PREDICTED_MIN * self.value:
            slopes = self._predicted
        rows = self._targets, self._weights
        return dual_point(self._loss, slopes, *rows, balanced=self._has_intercept)

    def _bound(self, penalty: Penalty, features: I64) -> tuple[float, Dual]:
        """Return the bound from the model's dual variables, or the subproblem's, made feasible."""
        alpha, folded = self._dual()
        if self._rows is None:
            products = self._columns.correlations(folded, features)
        else:
            products = self._rows.adjoint(folded)[features]
        return self._bound_at(penalty, features, alpha, products)

    def _bound_at(
        self, penalty: Penalty, features: I64, alpha: F64, products: F64
    ) -> tuple[float, Dual]:
        def minus(share: float) -> float:
            return float(self._loss.minus_conjugate(share * alpha, self._targets, self._weights))

        w = self.w[features]
        return self.value + penalty.of(w), lower_bound(penalty, w, products, minus)

    @property
    def _is_on_rows(self) -> bool:
        """Whether steps use the Gram matrix of all columns, by rows."""
        if self._rows is None:
            return False
        return self._is_stiff or self._decrease <= CLOSE_SHARE * self.value

    def _is_full(self, working: I64) -> bool:
        """Whether these are sparse columns with more entries than their Gram matrix.

        A sweep then takes longer than one over the matrix, which can also jump to the optimum of a
        sign pattern: sweeps alone take thousands for linearly dependent columns.
        """
        if working.size > EQUATIONS_MAX:
            return False
        return self._columns.entries(working) >= working.size**2

    def _measure(self, features: I64, dual: F64) -> F64:
        """Return the moments of sparse columns, for the next step and a bound; see the kernel."""
        self._curved = self._curvature()
        return measure(
            SparseColumns(features, *self._columns.stored), self._curved, self._slopes, dual
        )

    def _sweep_step(self, penalty: Penalty, working: I64, moments: F64, goal: float) -> int:
        """Take a proximal Newton step by sweeps over sparse columns, without a copy of them.

        Returns the number of sweeps; ``is_measurable`` says what the step gained.

        Parameters
        ----------
        working : ndarray (m,)
            Contains all columns of the model.
        moments : ndarray (m, 4)
            At this model.
        goal : float
            Violations of the subproblem's constraints that may remain.
        """
        most = FULL_SWEEPS_MAX if self._is_full(working) else SWEEPS_MAX
        if self._rows is not None:
            most = 1 + math.ceil(self._rows.gram_products())
        solution = solve_quadratic_model(
            SparseColumns(working, *self._columns.stored),
            moments,
            self.w[working],
            self._slopes,
            self._curved,
            penalty,
            intercept=self._has_intercept,
            goal=goal,
            sweeps_max=most,
        )
        if solution is None:
            self.newton_step(penalty, working, 0.0)
            return 0
        self._is_stiff = self._is_stiff or solution.sweeps >= most
        step = solution.w - self.w[working]
        self._go(penalty, working, step, solution.rise, self._curved)
        return solution.sweeps

    def newton_step(self, penalty: Penalty, working: I64, gap: float) -> None:
        """Take a proximal Newton step on these columns and the intercept.

        More columns than a Gram matrix may have are solved by sweeps over the residual.

        Parameters
        ----------
        working : ndarray (m,)
            Contains all columns of the model.
        gap : float
            Gap to which the subproblem is solved.
        """
        if working.size <= self._block:
            self._step_on_gram(penalty, working, gap)
            return
        matrix, old = self._quadratic_model(working, self._curvature()), self.w[working]
        step = ElasticNetSolver(matrix, old).solve(penalty, gap, SWEEPS_MAX).w - old
        rise = matrix.intercept(old + step) - self.b if self._has_intercept else 0.0
        self._go(penalty, working, step, rise, None)

    def _step_on_gram(self, penalty: Penalty, working: I64, gap: float) -> None:
        subproblem = self._subproblem(working)
        gram, old = subproblem.gram, self.w[working]
        new = old.copy()
        descend(gram, penalty, gap, self._sweeps_max, new, gram.linear - gram.G @ old)
        self._go(penalty, working, new - old, subproblem.rise(new - old), subproblem.curvature)

    def _quadratic_model(self, working: I64, curvature: F64) -> ColumnMatrix:
        """Return these columns with the weights and targets of the losses' quadratic model."""
        shift = np.divide(self._slopes, curvature, out=np.zeros(self.z.size), where=curvature > 0.0)
        return ColumnMatrix(
            self._columns.take(working), self.z - shift, curvature, centred=self._has_intercept
        )

    def _subproblem(self, working: I64) -> Subproblem:
        """Return the quadratic model of the objective on these columns and the intercept."""
        curvature, old = self._curvature(), self.w[working]
        solved = None if self._rows is None else self._on_rows(self._rows, curvature, working)
        if solved is not None:
            return solved
        matrix = self._quadratic_model(working, curvature)
        every, b = np.arange(working.size), self.b

        def rise(step: F64) -> float:
            return matrix.intercept(old + step) - b if self._has_intercept else 0.0

        gram = GramProblem(matrix.products(every, every), matrix.linear, matrix.yy)
        return Subproblem(gram, rise, curvature)

    def _on_rows(self, rows: Design, curvature: F64, working: I64) -> Subproblem | None:
        """Return it from the rows' Gram matrix.

        None if eliminating the intercept leaves only rounding of a column.
        """
        old, total = self.w[working], float(curvature.sum())
        G = rows.gram(curvature)[np.ix_(working, working)]
        slope, across = rows.adjoint(self._slopes)[working], np.zeros(working.size)
        square, level = float(np.sum(self._slopes**2 / np.maximum(curvature, TINY))), 0.0
        if self._has_intercept:
            level, across = -float(self._slopes.sum()) / total, rows.adjoint(curvature)[working]
            left = G.diagonal() - across**2 / total
            if np.any(left <= CLOSE * G.diagonal()):
                return None
            G -= np.outer(across, across / total)
            slope += level * across
            square -= level**2 * total
        linear = G @ old - slope
        gram = GramProblem(G, linear, square + float(old @ (linear - slope)))
        return Subproblem(gram, lambda step: level - float(across @ step) / total, curvature)

    def _along(self, working: I64, step: F64) -> F64:
        if self._rows is None:
            moved = np.flatnonzero(step)
            return self._columns.combination(working[moved], step[moved])
        whole = np.zeros(self._rows.n_model)
        whole[working] = step
        return self._rows.forward(whole)

    def _go(
        self, penalty: Penalty, working: I64, step: F64, rise: Any, curvature: F64 | None
    ) -> None:
        """Take a step by backtracking line search, and keep the slopes that it should lead to."""
        along, old = self._along(working, step) + rise, self.w[working]
        self._predicted = None if curvature is None else self._slopes + curvature * along
        before = self.value + penalty.of(old)
        promised = -float(np.vdot(self._slopes, along)) + penalty.of(old) - penalty.of(old + step)
        slopes, there = np.empty(self.z.shape), self.z

        def at(share: float) -> tuple[float, float]:
            nonlocal there
            there = self.z + share * along
            return self._at(there, slopes), penalty.of(old + share * step)

        taken = line_search(at, before, promised)
        self.is_measurable = taken is not None and taken.is_measurable
        if taken is None:
            return
        self.w[working], self.b = old + taken.share * step, self.b + taken.share * rise
        self.z, self._slopes = there, slopes
        self.value, self._decrease = taken.loss, taken.decrease


def safe_curvature(loss: MarginLoss, z: F64, targets: F64, weights: F64 | None, slopes: F64) -> F64:
    """Return ``s_i loss''`` (n,), bounded from below by a small share of the slope."""
    curvature = np.empty(z.size)
    loss.curvature(z, targets, weights, curvature)
    curvature = np.maximum(curvature, CURVED * np.abs(slopes))
    return curvature if curvature.any() else np.full(z.size, CURVED)


def best_intercept(
    loss: MarginLoss, z: F64, targets: F64, weights: F64 | None, b: float, *, is_free: bool
) -> tuple[float, float, F64]:
    """Optimise an intercept b by Newton steps, if it is free; updates the margins z in place.

    Returns
    -------
    b, value : float
        The intercept and the sum of losses.
    slopes : ndarray (n,)
        ``s_i loss'``.
    """
    slopes, other = np.empty(z.size), np.empty(z.size)
    value = loss.value_and_slope(z, targets, weights, slopes)
    for _ in range(INTERCEPT_STEPS * is_free):
        slope = float(slopes.sum())
        curvature = float(safe_curvature(loss, z, targets, weights, slopes).sum())
        if abs(slope) <= LEVEL * float(np.abs(slopes).sum()) or curvature <= 0.0:
            break
        step = -slope / curvature
        for _ in range(HALVINGS_MAX):
            reached = loss.value_and_slope(z + step, targets, weights, other)
            if abs(float(other.sum())) < abs(slope):
                break
            step *= 0.5
        else:
            break  # Rounding.
        b, value = b + step, reached
        z += step
        slopes, other = other, slopes
    return b, value, slopes
