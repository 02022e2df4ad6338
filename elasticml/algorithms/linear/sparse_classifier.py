"""Sparse linear classifiers by working sets of columns, with a certified gap and screening.

``sum_i s_i loss(x_i.w + b, y_i) + a1 |w|_1 + a2/2 |w|^2`` with a smooth loss of margins. The dual
variables of a model are ``a_i = -loss'``. With an intercept, those of the heavier class are scaled
down until ``sum_i s_i a_i y_i = 0``, which changes nothing if b is optimal; then all are scaled
until every column satisfies its constraint. Iterations and working sets are those of the elastic
net; on a working set, proximal Newton steps are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.linear.column_matrix import unweighted_columns
from elasticml.algorithms.linear.coordinate_descent_kernels import Penalty
from elasticml.algorithms.linear.elastic_net import FIRST, INNER
from elasticml.algorithms.linear.newton import ROUNDED
from elasticml.algorithms.linear.prox_newton import (
    FINE_SHARE,
    GAP_SHARE,
    SHARE,
    TINY,
    WHOLE_SHARE,
    MarginModel,
)
from elasticml.algorithms.linear.row_blocks import BorderedRows
from elasticml.algorithms.linear.screening import Bound, bound_at, nearest, screen
from elasticml.arrays import F64, I64
from elasticml.objectives.conjugates import dual_loss_named

#: Newton steps on a working set before all columns are checked again.
STEPS: Final = 3
#: A sparse column is close to its constraint if its slope exceeds this share of the threshold.
NEAR: Final = 0.9
#: The same where the working set has all columns.
WHOLE_STEPS: Final = 10
#: Wanted gap, as a share of the objective, below which the model's own dual variables must certify
#: it: a subproblem's certify a model before its last digits are right.
PREDICTED_MIN: Final = 1e-7
#: Consecutive iterations that do not halve the gap, after which subproblems are solved better.
SLOW: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseClassifierFit:
    """A model with its certificate."""

    #: (d,)
    w: F64
    b: float
    gap: float
    #: Newton steps.
    steps: int
    #: Columns eliminated by gap-safe screening.
    screened: int
    #: The gap is at most the requested one, or rounding of the objective.
    converged: bool


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
    loss : str
        A smooth loss of margins.
    intercept : bool
        Whether there is an unpenalised intercept.
    rows : BorderedRows, optional
        X by rows, to compute Gram matrices of it where that is cheap.
    """

    def __init__(
        self,
        X: Any,
        targets: F64,
        weights: F64 | None,
        *,
        loss: str,
        intercept: bool,
        rows: BorderedRows | None = None,
    ) -> None:
        self._loss = dual_loss_named(loss)
        self._columns, self._shifts, norms = unweighted_columns(X, weights, intercept=intercept)
        is_by_rows = rows is not None and rows.has_cheap_gram() and not self._shifts.any()
        self.model = MarginModel(
            self._columns,
            targets,
            weights,
            self._loss,
            intercept=intercept,
            rows=rows if is_by_rows else None,
        )
        #: The wanted gap.
        self._goal = 0.0
        #: The last bound over the decrease before it.
        self._ratio = 1.0
        #: (d,) squared column norms scaled for a 1-concave dual objective, without the l2 term.
        self._squares = self._loss.loss.smoothness * norms

    def begin(self, w: F64, b: float) -> None:
        """Set the model, (d,) and intercept."""
        self.model.begin(w, b + float(self._shifts @ w))

    def solve(self, penalty: Penalty, gap: float, steps: int) -> SparseClassifierFit:
        """Take at most ``steps`` Newton steps, until the gap is at most ``gap``."""
        self._check_start(penalty)
        self._goal = gap
        features, done, size = np.arange(self._columns.d), 0, 0
        last, is_measurable, is_whole, slow, share = np.inf, True, False, 0, SHARE
        while True:
            self.model.settle_intercept()
            bound = self._bound(penalty, features)
            self._ratio = float(bound.gap) / max(self.model.decrease, TINY)
            is_stuck = not is_measurable and not bound.gap < 0.5 * last
            if bound.gap <= gap or done >= steps or (is_stuck and is_whole):
                break
            slow = 0 if bound.gap < 0.5 * last else slow + 1
            if slow >= SLOW and self.model.rows is not None:
                self.model.is_stiff = True
            elif slow >= SLOW:
                # Inexact steps, not the working set, limit progress: solve better from here on.
                share = max(0.1 * share, FINE_SHARE)
            lengths = np.sqrt(self._squares[features] + penalty.a2)
            alive, distance = screen(bound.leaning, penalty.a1, lengths, bound.scaled_gap)
            dropped = self._drop(features[~alive])
            features, distance = features[alive], distance[alive]
            # If the working set is solved and the gap is due to other columns, enlarge it.
            size = max(self._size(penalty, bound, features, alive, size), 2 * size * is_stuck)
            working = nearest(features, distance, self.model.w[features], size)
            # With all columns in it, the bound on a working set is that of the whole.
            is_one = self.model.rows is not None
            target = gap if is_one else max(INNER * bound.gap, 0.5 * gap)
            last, is_whole = bound.gap, working.size == features.size and not dropped
            used, is_measurable = self._descend(penalty, working, last, target, share, steps - done)
            done += used
        # If full steps on all columns no longer help, the remaining gap is rounding.
        rounded = ROUNDED * bound.value if is_stuck else 0.0
        return SparseClassifierFit(
            w=self.model.w.copy(),
            b=self.model.b - float(self._shifts @ self.model.w),
            gap=max(bound.gap, 0.0),
            steps=done,
            screened=self._columns.d - features.size,
            converged=bound.gap <= max(gap, rounded),
        )

    def _check_start(self, penalty: Penalty) -> None:
        """Start from zero if that is better than the current model.

        For badly misclassified rows the loss has almost no curvature: Newton steps from there
        diverge.
        """
        model = self.model
        model.settle_intercept()
        if not model.value + penalty.of(model.w) <= model.value_of_zero():
            model.begin(np.zeros(self._columns.d), 0.0)

    def _size(
        self, penalty: Penalty, bound: Bound, features: I64, alive: NDArray[np.bool_], last: int
    ) -> int:
        """Return the size of the next working set."""
        own = self.model.w[features] != 0.0
        if self.model.rows is not None:
            return self._columns.d
        if not self._columns.is_sparse:
            return max(FIRST, 2 * int(np.count_nonzero(own)), last)
        # Sweeps over sparse columns are so cheap that the working set has all columns whose slope
        # is above the threshold or close to it.
        is_close = bound.leaning[alive] >= NEAR * bound.share * penalty.a1
        return max(FIRST, int(np.count_nonzero(own | is_close)))

    def _descend(
        self, penalty: Penalty, working: I64, gap: float, target: float, share: float, steps: int
    ) -> tuple[int, bool]:
        """Take Newton steps on the working set.

        Returns
        -------
        int
            Steps taken.
        bool
            False if the last step's decrease was below rounding.
        """
        model, is_whole = self.model, self.model.rows is not None
        most = min(WHOLE_STEPS if is_whole else STEPS, steps)
        for done in range(most):
            if done:
                model.settle_intercept()
                if is_whole and not self._is_far(target):
                    return done, True
                gap = gap if is_whole else self._bound(penalty, working).gap
                if gap <= target:
                    return done, True
            wanted = WHOLE_SHARE * target if is_whole else GAP_SHARE * max(gap, target)
            if not model.newton_step(penalty, working, wanted, share):
                return done + 1, False
        return most, True

    def _is_far(self, gap: float) -> bool:
        """Whether a bound of all columns is expected to be above ``gap``."""
        model = self.model
        return model.predicted is None and (model.is_stiff or self._ratio * model.decrease > gap)

    def _drop(self, features: I64) -> bool:
        """Remove screened columns from the model; return whether any had a coefficient."""
        gone = features[self.model.w[features] != 0.0]
        if gone.size:
            self.model.z -= self._columns.combination(gone, self.model.w[gone])
            self.model.w[gone] = 0.0
            self.model.look()
        return bool(gone.size)

    def _bound(self, penalty: Penalty, features: I64) -> Bound:
        """Return the bound from the model's dual variables, or the subproblem's, made feasible."""
        model = self.model
        if model.predicted is None or self._goal <= PREDICTED_MIN * model.value:
            alpha = np.empty(self._columns.n)
            self._loss.alpha_from_margin(model.z, model.targets, alpha)
        else:
            # Columns satisfy their constraints there. The model's own dual variables violate them
            # by many times a low threshold, however close its objective is to the minimum.
            s = 1.0 if model.weights is None else np.maximum(model.weights, TINY)
            alpha = -model.targets * model.predicted / s
            alpha = np.clip(alpha, self._loss.low, self._loss.high)
        products = self._products(alpha, features)

        def minus(share: float) -> float:
            return self._loss.minus_conjugate(share * alpha, model.targets, model.weights)

        return bound_at(model.value, penalty, model.w[features], products, minus)

    def _products(self, alpha: F64, features: I64) -> F64:
        """Return the columns' products with dual variables, which are balanced first."""
        model = self.model
        if model.has_intercept:
            balance(alpha, model.targets, model.weights)
        folded = alpha * model.targets
        if model.weights is not None:
            folded *= model.weights
        if model.rows is None:
            return self._columns.correlations(folded, features)
        return model.rows.adjoint(folded)[features]


def balance(alpha: F64, targets: F64, weights: F64 | None) -> None:
    """Scale down the dual variables of the heavier class until ``sum_i s_i a_i y_i = 0``."""
    s = alpha if weights is None else alpha * weights
    is_positive = targets > 0.0
    positive, negative = float(s[is_positive].sum()), float(s[~is_positive].sum())
    least = min(positive, negative)
    alpha[is_positive] *= least / positive if positive else 0.0
    alpha[~is_positive] *= least / negative if negative else 0.0
