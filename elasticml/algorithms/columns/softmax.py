"""Sparse multinomial logistic regression by working sets of coefficients, with a certified gap.

``sum_i s_i (log sum_k exp z_ik - z_i,y_i) + sum_k (a1 |w_k|_1 + a2/2 |w_k|^2)`` with
``z_ik = x_i.w_k + b_k``, b not penalised or absent. Each iteration multiplies all columns by the
residuals. This gives the gap, the coefficients that are zero in every solution, and the working
set: those in the model or closest to entering it. Proximal Newton steps on the working set follow,
in one block or, if it is large, block by block. The dual variables are distributions over the
classes, made feasible as in :mod:`elasticml.algorithms.distributions`, then moved towards the rows'
own classes until every column satisfies its constraint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.columns.elastic_net import FIRST
from elasticml.algorithms.columns.matrix import movable
from elasticml.algorithms.columns.products import Penalty
from elasticml.algorithms.columns.screening import Bound, bound_at, nearest, screen
from elasticml.algorithms.columns.softmax_step import SoftmaxModel
from elasticml.algorithms.distributions import balanced
from elasticml.algorithms.newton import ROUNDED

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

#: Smoothness of a row's loss in the Euclidean norm of its margins.
SMOOTHNESS: Final = 0.5
#: Maximum multiplications for the second derivatives of a block of coefficients.
BLOCK_WORK: Final = 2e9
#: Iterations over several blocks without measurable progress after which the gap is rounding.
PATIENCE: Final = 30
#: Minimum and maximum number of coefficients in a block.
BLOCK_MIN: Final = 20
BLOCK_MAX: Final = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax:
    """A model with its certificate."""

    #: (classes, d)
    W: F64
    #: (classes,)
    b: F64
    gap: float
    #: Iterations, each a Newton step on every block of the working set.
    turns: int
    #: Coefficients eliminated by gap-safe screening.
    screened: int
    #: The gap is at most the requested one, or rounding of the objective.
    converged: bool


class SparseSoftmax:
    """Solves for a sequence of penalties, each warm-started from the previous model.

    Parameters
    ----------
    X : ndarray or sparse in CSC format (n, d)
        Not modified.
    codes : ndarray (n,), int
        Each row's class, numbered from 0.
    weights : ndarray (n,), optional
        None for ones.
    classes : int
        Number of classes.
    intercept : bool
        Whether there are unpenalised intercepts.
    """

    def __init__(
        self, X: Any, codes: I64, weights: F64 | None, *, classes: int, intercept: bool
    ) -> None:
        n = int(X.shape[0])
        self._columns, self._shifts, norms = movable(X, weights, intercept=intercept)
        self._s = np.ones(n) if weights is None else weights
        self.model = SoftmaxModel(self._columns, codes, self._s, classes, intercept=intercept)
        self._of_class = np.asarray(
            np.bincount(codes, weights=self._s, minlength=classes), np.float64
        )
        #: (classes, d) squared norms scaled for a 1-concave dual objective, without the l2 term.
        self._squares = np.broadcast_to(SMOOTHNESS * norms, self.model.W.shape)
        self._block = int(min(BLOCK_MAX, max(BLOCK_MIN, math.sqrt(BLOCK_WORK / n))))

    def begin(self, W: F64, b: F64) -> None:
        """Set the model, (classes, d) and intercepts."""
        self.model.begin(W, b + W @ self._shifts)

    def solve(self, penalty: Penalty, gap: float, turns: int) -> Softmax:
        """Run at most ``turns`` iterations, until the gap is at most ``gap``."""
        model, done, size = self.model, 0, FIRST
        if not model.value + penalty.of(model.W.ravel()) <= model.value_of_zero():
            # If wrong classes are nearly certain, Newton steps diverge, as with two classes.
            model.begin(np.zeros_like(model.W), np.zeros_like(model.b))
        alive = np.ones(model.W.size, bool)
        best, stale, patience, is_measurable, is_whole = np.inf, 0, 1, True, False
        while True:
            bound = self._bound(penalty)
            is_better = bound.gap < 0.5 * best
            best = bound.gap if is_better else best
            stale = 0 if is_measurable or is_better else stale + 1
            is_stuck = stale >= patience
            if bound.gap <= gap or done >= turns or (is_stuck and is_whole):
                break
            lengths = np.sqrt(self._squares + penalty.a2)
            kept, distance = screen(bound.leaning, penalty.a1, lengths, bound.scaled_gap)
            alive &= kept.ravel()
            dropped = model.drop(~alive.reshape(kept.shape))
            features = np.flatnonzero(alive)
            w = model.W.ravel()[features]
            size = max(2 * int(np.count_nonzero(w)), 2 * size * is_stuck, size)
            working = nearest(features, distance.ravel()[features], w, size)
            is_whole = working.size == features.size and not dropped
            blocks = np.array_split(working, max(1, math.ceil(working.size / self._block)))
            patience = 1 if len(blocks) == 1 else PATIENCE
            is_measurable = any([model.newton_step(penalty, block) for block in blocks])
            done += 1
        rounded = ROUNDED * bound.value if is_stuck else 0.0
        b = model.b - model.W @ self._shifts
        return Softmax(
            W=model.W.copy(),
            # A shift common to all classes changes no probability.
            b=b - b.mean(),
            gap=max(bound.gap, 0.0),
            turns=done,
            screened=int(alive.size - np.count_nonzero(alive)),
            converged=bound.gap <= max(gap, rounded),
        )

    def _bound(self, penalty: Penalty) -> Bound:
        """Return the bound from the model's probabilities, made feasible."""
        model, s = self.model, self._s[:, None]
        q, own = model.probabilities(), model.own
        if model.has_intercept:
            q = balanced(q, self._s, self._of_class)
        products = model.products((own - q) * s)

        def entropy(share: float) -> float:
            p = share * q + (1.0 - share) * own
            return -float(self._s @ (p * np.log(np.maximum(p, 1e-300))).sum(axis=1))

        return bound_at(model.value, penalty, model.W, products, entropy)
