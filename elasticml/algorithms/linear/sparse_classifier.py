"""Sparse linear classifiers by working sets of columns, with a certified gap and screening.

``sum_i s_i loss(x_i.w + b, y_i) + a1 |w|_1 + a2/2 |w|^2`` with a smooth loss of margins. The dual
variables of a model are ``a_i = -loss'``. With an intercept, those of the heavier class are scaled
down until ``sum_i s_i a_i y_i = 0``, which changes nothing if b is optimal; then all are scaled
until every column satisfies its constraint. Iterations and working sets are those of the elastic
net; on a working set, proximal Newton steps are taken.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from elasticml.algorithms.linear.column_matrix import unweighted_columns
from elasticml.algorithms.linear.coordinate_descent_kernels import Penalty
from elasticml.algorithms.linear.elastic_net import FIRST, INNER
from elasticml.algorithms.linear.newton import ROUNDED
from elasticml.algorithms.linear.prox_newton import GAP_SHARE, NEAR, TINY, WHOLE_SHARE, MarginModel
from elasticml.algorithms.linear.row_blocks import BorderedRows
from elasticml.algorithms.linear.screening import Bound, SparseFit, bound_at, nearest, screen
from elasticml.arrays import F64, I64
from elasticml.objectives.conjugates import dual_loss_named

#: Newton steps on a working set before all columns are checked again.
STEPS: Final = 3
#: The same where the working set has all columns.
WHOLE_STEPS: Final = 10
#: Wanted gap, as a share of the objective, below which the model's own dual variables must certify
#: it: a subproblem's certify a model before its last digits are right.
PREDICTED_MIN: Final = 1e-7
#: Consecutive iterations that do not halve the gap, after which a cheap Gram matrix is used.
SLOW: Final = 3
#: The accuracy of sweeps over sparse columns is refined by this factor when a model has it, and is
#: at most this share of the violations when a step's decrease was below rounding.
FINER: Final = 0.25
FINEST: Final = 1e-4


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
        #: Violations that sweeps over sparse columns may leave, and the largest one at the last
        #: look.
        self._accuracy, self._reach = np.inf, np.inf
        #: The last bound over the decrease before it.
        self._ratio = 1.0
        #: (d,) squared column norms scaled for a 1-concave dual objective, without the l2 term.
        self._squares = self._loss.loss.smoothness * norms

    def begin(self, w: F64, b: float) -> None:
        """Set the model, (d,) and intercept."""
        self.model.begin(w, b + float(self._shifts @ w))

    def solve(self, penalty: Penalty, gap: float, steps: int) -> SparseFit:
        """Take at most ``steps`` Newton steps, until the gap is at most ``gap``."""
        self._check_start(penalty)
        self._goal = gap
        model, self._accuracy, self._reach = self.model, np.inf, np.inf
        features, done, size = np.arange(self._columns.d), 0, 0
        last, is_whole, slow, stale = np.inf, True, 0, 0
        while True:
            model.settle_intercept()
            bound, moments = self._look(penalty, features)
            self._ratio = float(bound.gap) / max(model.decrease, TINY)
            is_better = bound.gap < 0.5 * last
            stale = 0 if model.is_measurable or is_better else stale + 1
            # Sweeps get a second step, which is as accurate as rounding allows.
            is_stuck = stale > (moments is not None)
            if bound.gap <= gap or done >= steps or (is_stuck and is_whole):
                break
            slow = 0 if is_better else slow + 1
            model.is_stiff = model.is_stiff or (slow >= SLOW and model.rows is not None)
            lengths = np.sqrt(self._squares[features] + penalty.a2)
            alive, distance = screen(bound.leaning, penalty.a1, lengths, bound.scaled_gap)
            dropped = self._drop(features[~alive])
            features, distance = features[alive], distance[alive]
            if dropped:
                continue
            last = bound.gap
            if moments is not None:
                used, is_whole = self._sweep(
                    penalty, features, moments[alive], last, steps - done, is_stuck
                )
                done += used
                continue
            # If the working set is solved and the gap is due to other columns, enlarge it.
            own = int(np.count_nonzero(model.w[features]))
            size = max(FIRST, 2 * own, size, 2 * size * is_stuck)
            working = (
                features
                if model.rows is not None
                else nearest(features, distance, model.w[features], size)
            )
            # With all columns in it, the bound on a working set is that of the whole.
            target = gap if model.rows is not None else max(INNER * bound.gap, 0.5 * gap)
            is_whole = working.size == features.size
            done += self._descend(penalty, working, last, target, steps - done)
        # If full steps on all columns no longer help, the remaining gap is rounding.
        rounded = ROUNDED * bound.value if is_stuck else 0.0
        return SparseFit(
            w=self.model.w.copy(),
            b=self.model.b - float(self._shifts @ self.model.w),
            gap=max(bound.gap, 0.0),
            steps=done,
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

    def _look(self, penalty: Penalty, features: I64) -> tuple[Bound, F64 | None]:
        """Return the bound, and the moments of columns that are swept."""
        model = self.model
        if not self._columns.is_sparse or model.is_on_rows:
            return self._bound(penalty, features), None
        alpha, folded = self._dual()
        moments = model.measure(features, folded)
        return self._bound_at(penalty, features, alpha, moments[:, 3]), moments

    def _sweep(
        self, penalty: Penalty, features: I64, moments: F64, gap: float, steps: int, is_stuck: bool
    ) -> tuple[int, bool]:
        """Take steps on the columns at or near their threshold, by sweeps.

        Several, as long as they cost less than a look at all columns. A step ends when the
        violations are below a bound, which is a quarter of the last one if a model met that.

        Returns
        -------
        int
            Steps taken.
        bool
            Whether these were all columns.

        Source: Yuan, Ho and Lin (2012), section 4, for the working set and the accuracy.
        """
        model, left = self.model, self.model.stored(features)
        over = self._violations(penalty, features, moments)
        is_near = (over > -NEAR * self._reach) | (model.w[features] != 0.0) | is_stuck
        self._reach, working = float(over.max(initial=0.0)), features[is_near]
        moments, done = moments[is_near], 0
        while True:
            done += 1
            if model.is_stiff and model.is_full(working):
                model.newton_step(penalty, working, GAP_SHARE * gap)
                break
            sweeps = model.sweep_step(penalty, working, moments, self._accuracy)
            left -= (1 + sweeps) * model.stored(working)
            if left <= 0 or done >= steps or not model.is_measurable:
                break
            model.settle_intercept()
            moments = model.measure(working, model.slopes)
            self._violations(penalty, working, moments)
        return done, working.size == features.size

    def _violations(self, penalty: Penalty, features: I64, moments: F64) -> F64:
        """Return those of columns, negative within the threshold, and refine the accuracy."""
        w = self.model.w[features]
        slopes = moments[:, 2] + penalty.a2 * w
        inside = np.abs(slopes) - penalty.a1
        over = np.where(w == 0.0, inside, np.abs(slopes + np.copysign(penalty.a1, w)))
        leaning = float(np.maximum(over, 0.0).sum())
        if leaning <= self._accuracy:
            self._accuracy *= FINER
        if not self.model.is_measurable:
            self._accuracy = min(self._accuracy, FINEST * leaning)
        self._accuracy = min(self._accuracy, leaning)
        return over

    def _descend(
        self, penalty: Penalty, working: I64, gap: float, target: float, steps: int
    ) -> int:
        """Take Newton steps on the working set; return their number."""
        model, is_whole = self.model, self.model.rows is not None
        most = min(WHOLE_STEPS if is_whole else STEPS, steps)
        for done in range(most):
            if done:
                model.settle_intercept()
                if is_whole and not self._is_far(target):
                    return done
                gap = gap if is_whole else self._bound(penalty, working).gap
                if gap <= target:
                    return done
            wanted = WHOLE_SHARE * target if is_whole else GAP_SHARE * max(gap, target)
            model.newton_step(penalty, working, wanted)
            if not model.is_measurable:
                return done + 1
        return most

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

    def _dual(self) -> tuple[F64, F64]:
        """Return balanced dual variables, and the rows' factors with them.

        Those of the subproblem, if there are any: columns satisfy their constraints there. The
        model's own violate them by many times a low threshold, however close its objective is to
        the minimum.
        """
        model = self.model
        if model.predicted is not None and self._goal > PREDICTED_MIN * model.value:
            s = 1.0 if model.weights is None else np.maximum(model.weights, TINY)
            alpha = -model.targets * model.predicted / s
            alpha = np.clip(alpha, self._loss.low, self._loss.high)
        else:
            alpha = np.empty(self._columns.n)
            self._loss.alpha_from_margin(model.z, model.targets, alpha)
        if model.has_intercept:
            balance(alpha, model.targets, model.weights)
        folded = alpha * model.targets
        return alpha, folded if model.weights is None else folded * model.weights

    def _bound(self, penalty: Penalty, features: I64) -> Bound:
        """Return the bound from the model's dual variables, or the subproblem's, made feasible."""
        alpha, folded = self._dual()
        if self.model.rows is None:
            products = self._columns.correlations(folded, features)
        else:
            products = self.model.rows.adjoint(folded)[features]
        return self._bound_at(penalty, features, alpha, products)

    def _bound_at(self, penalty: Penalty, features: I64, alpha: F64, products: F64) -> Bound:
        model = self.model

        def minus(share: float) -> float:
            return self._loss.minus_conjugate(share * alpha, model.targets, model.weights)

        return bound_at(model.value, penalty, model.w[features], products, minus)


def balance(alpha: F64, targets: F64, weights: F64 | None) -> None:
    """Scale down the dual variables of the heavier class until ``sum_i s_i a_i y_i = 0``."""
    s = alpha if weights is None else alpha * weights
    is_positive = targets > 0.0
    positive, negative = float(s[is_positive].sum()), float(s[~is_positive].sum())
    least = min(positive, negative)
    alpha[is_positive] *= least / positive if positive else 0.0
    alpha[~is_positive] *= least / negative if negative else 0.0
