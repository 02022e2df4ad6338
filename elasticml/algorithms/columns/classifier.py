"""Sparse linear classifiers by working sets of columns, with a certified gap and screening.

``sum_i s_i loss(x_i.w + b, y_i) + a1 |w|_1 + a2/2 |w|^2`` with a smooth loss of margins. Dual
variables ``a_i = -loss'`` belong to the margins. Where b is free those of the heavier class are
scaled down until ``sum_i s_i a_i y_i = 0``, which changes nothing where b is at its best; then all
are scaled until no column leans over the bar. Turns and working sets are those of the elastic net;
what is done on a working set are proximal Newton steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.columns.elastic_net import FIRST, INNER
from elasticml.algorithms.columns.margin_model import MarginModel
from elasticml.algorithms.columns.matrix import movable
from elasticml.algorithms.columns.parabola import FINE_SHARE, SHARE
from elasticml.algorithms.columns.products import Penalty
from elasticml.algorithms.columns.screening import Bound, bound_at, nearest, screen
from elasticml.algorithms.newton import ROUNDED
from elasticml.objectives.conjugates import dual_loss_named

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

#: Newton steps on a working set before all columns are looked at again.
STEPS: Final = 3
#: Share of the bar from which on a sparse column's slope counts as next to it.
NEAR: Final = 0.9
#: Share of a working set's gap to which the elastic net of a Newton step is solved.
PARABOLA: Final = 0.01
#: Rounds in a row that do not halve the gap, from which on steps are made better.
SLOW: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """A model, and how good it is."""

    #: (d,)
    w: F64
    b: float
    gap: float
    #: Newton steps.
    steps: int
    #: Columns that gap-safe spheres have ruled out.
    screened: int
    #: The gap is as small as wanted, or rounding of the objective.
    converged: bool


class SparseClassifier:
    """Solves for one penalty after another, each from the last one's model.

    Parameters
    ----------
    X : ndarray or sparse in CSC format (n, d)
        Not changed.
    targets : ndarray (n,)
        -1 and +1.
    weights : ndarray (n,), optional
        None where all are one.
    loss : str
        Smooth, and of margins.
    intercept : bool
        There is a free one.
    """

    def __init__(
        self, X: Any, targets: F64, weights: F64 | None, *, loss: str, intercept: bool
    ) -> None:
        self._loss = dual_loss_named(loss)
        self._columns, self._shifts, norms = movable(X, weights, intercept=intercept)
        self.model = MarginModel(self._columns, targets, weights, self._loss, intercept=intercept)
        #: (d,) squared lengths in which the dual objective is 1-concave, but for the ridge's part.
        self._squares = self._loss.loss.smoothness * norms

    def begin(self, w: F64, b: float) -> None:
        """Take over a model, (d,) and its intercept."""
        self.model.begin(w, b + float(self._shifts @ w))

    def solve(self, penalty: Penalty, gap: float, steps: int) -> Classifier:
        """Take Newton steps until the gap is at most so large, or so many of them."""
        self._check_start(penalty)
        features, done, size = np.arange(self._columns.d), 0, 0
        last, is_told, is_whole, slow, share = np.inf, True, False, 0, SHARE
        while True:
            self.model.settle_intercept()
            bound = self._bound(penalty, features)
            is_stuck = not is_told and not bound.gap < 0.5 * last
            if bound.gap <= gap or done >= steps or (is_stuck and is_whole):
                break
            slow = 0 if bound.gap < 0.5 * last else slow + 1
            if slow >= SLOW:
                # Not the working set, but rough steps gain little: better ones from here on.
                share = max(0.1 * share, FINE_SHARE)
            lengths = np.sqrt(self._squares[features] + penalty.a2)
            alive, distance = screen(bound.leaning, penalty.a1, lengths, bound.scaled_gap)
            dropped = self._drop(features[~alive])
            features, distance = features[alive], distance[alive]
            # A working set that is solved while the gap is elsewhere grows.
            size = max(self._size(penalty, bound, features, alive, size), 2 * size * is_stuck)
            working = nearest(features, distance, self.model.w[features], size)
            wanted = max(INNER * bound.gap, 0.5 * gap)
            last, is_whole = bound.gap, working.size == features.size and not dropped
            used, is_told = self._descend(penalty, working, last, wanted, share, steps - done)
            done += used
        # Where whole steps on all columns no longer help, what is left of the gap is rounding.
        rounded = ROUNDED * bound.value if is_stuck else 0.0
        return Classifier(
            w=self.model.w.copy(),
            b=self.model.b - float(self._shifts @ self.model.w),
            gap=max(bound.gap, 0.0),
            steps=done,
            screened=self._columns.d - features.size,
            converged=bound.gap <= max(gap, rounded),
        )

    def _check_start(self, penalty: Penalty) -> None:
        """Begin from nothing where that is better than the model at hand.

        Far on the wrong side of the margins the loss is all but flat: Newton steps from there go
        astray.
        """
        at_hand = self.model
        at_hand.settle_intercept()
        if not at_hand.value + penalty.of(at_hand.w) <= at_hand.value_of_zero():
            at_hand.begin(np.zeros(self._columns.d), 0.0)

    def _size(
        self, penalty: Penalty, bound: Bound, features: I64, alive: NDArray[np.bool_], last: int
    ) -> int:
        """Return how many columns are worked on next."""
        own = self.model.w[features] != 0.0
        if not self._columns.is_sparse:
            return max(FIRST, 2 * int(np.count_nonzero(own)), last)
        # Sweeps over sparse columns as they are stored cost so little that all take part whose
        # slope is over the bar, or next to it.
        leads = bound.leaning[alive] >= NEAR * bound.share * penalty.a1
        return max(FIRST, int(np.count_nonzero(own | leads)))

    def _descend(
        self, penalty: Penalty, working: I64, gap: float, wanted: float, share: float, steps: int
    ) -> tuple[int, bool]:
        """Take Newton steps for the working set alone; return how many, and whether values told."""
        for done in range(min(STEPS, steps)):
            if done:
                self.model.settle_intercept()
                gap = self._bound(penalty, working).gap
                if gap <= wanted:
                    return done, True
            if not self.model.newton_step(penalty, working, PARABOLA * max(gap, wanted), share):
                return done + 1, False
        return min(STEPS, steps), True

    def _drop(self, features: I64) -> bool:
        """Take columns that are in no solution out of the model; say whether there were any."""
        gone = features[self.model.w[features] != 0.0]
        if gone.size:
            self.model.z -= self._columns.combination(gone, self.model.w[gone])
            self.model.w[gone] = 0.0
            self.model.look()
        return bool(gone.size)

    def _bound(self, penalty: Penalty, features: I64) -> Bound:
        """Bound the least objective from below, by the margins' dual variables made feasible."""
        model, w = self.model, self.model.w[features]
        alpha = np.empty(self._columns.n)
        self._loss.alpha_from_margin(model.z, model.targets, alpha)
        if model.has_intercept:
            balance(alpha, model.targets, model.weights)
        folded = alpha * model.targets
        if model.weights is not None:
            folded *= model.weights
        products = self._columns.correlations(folded, features)

        def minus(share: float) -> float:
            return self._loss.minus_conjugate(share * alpha, model.targets, model.weights)

        return bound_at(model.value, penalty, w, products, minus)


def balance(alpha: F64, targets: F64, weights: F64 | None) -> None:
    """Scale the heavier class's dual variables down, until ``sum_i s_i a_i y_i = 0``."""
    s = alpha if weights is None else alpha * weights
    is_positive = targets > 0.0
    positive, negative = float(s[is_positive].sum()), float(s[~is_positive].sum())
    least = min(positive, negative)
    alpha[is_positive] *= least / positive if positive else 0.0
    alpha[~is_positive] *= least / negative if negative else 0.0
