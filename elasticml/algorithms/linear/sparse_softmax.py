"""Sparse multinomial logistic regression: working sets of coefficients, certified gap, screening.

``sum_i s_i (log sum_k exp z_ik - z_i,y_i) + sum_k (a1 |w_k|_1 + a2/2 |w_k|^2)`` with
``z_ik = x_i.w_k + b_k``, b not penalised or absent. Each iteration multiplies all columns by the
residuals. This gives the duality gap, the coefficients that are zero in every solution, and the
working set: those in the model or closest to entering it. Proximal Newton steps on the working set
follow, in one block or, if it is large, block by block. The dual variables are distributions over
the classes, made feasible by :func:`elasticml.algorithms.linear.softmax_objective.balanced`, and
then moved towards the rows' own classes until every column satisfies its constraint.

A Newton step replaces the loss by its quadratic model at the current margins, with all second
derivatives between the coefficients of a block; the intercepts are eliminated. Coordinate descent
on this model alternates with steps to the optimum of a sign pattern; a line search on the objective
follows.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from elasticml.algorithms.linear.column_matrix import ColumnMatrix, unweighted_columns
from elasticml.algorithms.linear.coordinate_descent_kernels import GramProblem, Penalty
from elasticml.algorithms.linear.elastic_net import FIRST
from elasticml.algorithms.linear.gram_descent import descend
from elasticml.algorithms.linear.newton import ROUNDED
from elasticml.algorithms.linear.prox_newton import line_search
from elasticml.algorithms.linear.screening import Bound, SparseFit, bound_at, nearest, screen
from elasticml.algorithms.linear.softmax_objective import balanced
from elasticml.arrays import F64, I64

# A sparse multinomial model with its margins, and proximal Newton steps on some coefficients.
#
# The loss is replaced by its quadratic model at the current margins, with all second derivatives
# between the coefficients of a block; the intercepts are eliminated. Coordinate descent on this
# model
# alternates with steps to the optimum of a sign pattern; a line search on the objective follows.


#: Maximum sweeps for a block's subproblem.
SWEEPS_MAX: Final = 300
#: Regularisation of the intercepts' equations, as a share of the mean curvature.
LIFT: Final = 1e-12


class SoftmaxModel:
    """A model with its margins and the loss there.

    Parameters
    ----------
    columns : ColumnMatrix
        Neither weighted nor centred.
    codes : ndarray (n,), int
        Each row's class, numbered from 0.
    weights : ndarray (n,)
    classes : int
        Number of classes.
    intercept : bool
        Whether there are unpenalised intercepts.
    """

    def __init__(
        self, columns: ColumnMatrix, codes: I64, weights: F64, classes: int, *, intercept: bool
    ) -> None:
        self._columns, self._codes, self._s = columns, codes, weights
        self.has_intercept = intercept
        #: (classes, d) and (classes,)
        self.W, self.b = np.zeros((classes, columns.d)), np.zeros(classes)
        #: (n, classes) margins, and the one-hot encoding of the classes.
        self.z = np.zeros((columns.n, classes))
        self.own = np.zeros((columns.n, classes))
        self.own[np.arange(columns.n), codes] = 1.0
        #: Sum of losses.
        self.value = self._at(self.z)

    def begin(self, W: F64, b: F64) -> None:
        """Set the model."""
        self.W, self.b = np.array(W, np.float64), np.array(b, np.float64)
        self.z = self._along(self.W) + self.b
        self.value = self._at(self.z)

    def value_of_zero(self) -> float:
        """Return the sum of losses at zero coefficients and intercepts."""
        return float(self._s.sum()) * math.log(len(self.b))

    def probabilities(self) -> F64:
        """Return each row's distribution over the classes, (n, classes)."""
        q: F64 = softmax(self.z, axis=1)
        return q

    def products(self, theta: F64) -> F64:
        """Return ``theta.T @ X``, (classes, d)."""
        return np.stack([self._columns.correlations(np.ascontiguousarray(c)) for c in theta.T])

    def drop(self, gone: NDArray[np.bool_]) -> bool:
        """Remove screened coefficients; return whether any was non-zero."""
        gone = gone & (self.W != 0.0)
        if not gone.any():
            return False
        self.z -= self._along(np.where(gone, self.W, 0.0))
        self.W[gone] = 0.0
        self.value = self._at(self.z)
        return True

    def _at(self, z: F64) -> float:
        return float(self._s @ (logsumexp(z, axis=1) - z[np.arange(len(z)), self._codes]))

    def _along(self, W: F64) -> F64:
        """Return ``X @ W.T``, (n, classes)."""
        features = np.flatnonzero(W.any(axis=0))
        return np.asarray(self._columns.take(features) @ W[:, features].T)

    def newton_step(self, penalty: Penalty, block: I64) -> bool:
        """Take a proximal Newton step on some coefficients and all intercepts.

        Returns False if the predicted decrease was below rounding.

        Parameters
        ----------
        block : ndarray (m,)
            Flat indices of coefficients, class by class, sorted.
        """
        k, j = np.divmod(block, self._columns.d)
        q = self.probabilities()
        slopes = (q - self.own) * self._s[:, None]
        across, corner, G = self._curvature(q, j, k)
        along = np.concatenate(
            [
                self._columns.correlations(np.ascontiguousarray(slopes[:, c]), j[k == c])
                for c in range(len(self.b))
            ]
        )
        level = slopes.sum(axis=0)
        if self.has_intercept:
            # Eliminate the intercepts (Schur complement).
            inverse = _inverse(corner)
            G = G - across @ inverse @ across.T
            along = along - across @ (inverse @ level)
        w = self.W[k, j]
        new, left = w.copy(), -along
        linear = G @ w + left
        products = GramProblem(np.ascontiguousarray(G), linear, 0.0)
        descend(products, penalty, -np.inf, SWEEPS_MAX, new, left)
        step, rise = np.zeros_like(self.W), np.zeros(len(self.b))
        step[k, j] = new - w
        if self.has_intercept:
            rise = -inverse @ (level + across.T @ (new - w))
        return self._go(penalty, step, rise, slopes)

    def _curvature(self, q: F64, j: I64, k: I64) -> tuple[F64, F64, F64]:
        """Return second derivatives: coefficients by intercepts, intercepts, and coefficients."""
        weighted_q = q * self._s[:, None]
        columns = self._columns.take(j)
        scaled, weighted = _times(columns, q, k), _times(columns, weighted_q, k)
        G = -_dense(scaled.T @ weighted)
        across = -np.asarray(weighted.T @ q)
        corner: F64 = -weighted_q.T @ q
        corner[np.diag_indices_from(corner)] += weighted_q.sum(axis=0)
        across[np.arange(k.size), k] += np.asarray(weighted.sum(axis=0)).ravel()
        for c in range(len(self.b)):
            at = np.flatnonzero(k == c)
            G[np.ix_(at, at)] += _dense(columns[:, at].T @ weighted[:, at])
        return across, corner, G

    def _go(self, penalty: Penalty, step: F64, rise: F64, slopes: F64) -> bool:
        """Take a step by backtracking line search."""
        along = self._along(step) + rise
        before = self.value + penalty.of(self.W.ravel())
        promised = (
            -float((slopes * along).sum())
            + penalty.of(self.W.ravel())
            - penalty.of((self.W + step).ravel())
        )

        def at(share: float) -> tuple[float, float]:
            return self._at(self.z + share * along), penalty.of((self.W + share * step).ravel())

        taken = line_search(at, before, promised)
        if taken is None:
            return False
        self.W, self.b = self.W + taken.share * step, self.b + taken.share * rise
        self.z, self.value = self.z + taken.share * along, taken.loss
        return taken.is_measurable


def _inverse(corner: F64) -> F64:
    """Invert the intercepts' second derivatives on the space of vectors that sum to zero."""
    size = float(np.trace(corner)) / len(corner)
    lifted = corner + size
    lifted[np.diag_indices_from(lifted)] += LIFT * size + np.finfo(np.float64).tiny
    return np.asarray(np.linalg.inv(lifted), np.float64)


def _times(columns: Any, q: F64, place: I64) -> Any:
    """Multiply each column by its class's values: ``columns[i, p] * q[i, place[p]]``."""
    if not scipy.sparse.issparse(columns):
        return columns * q[:, place]
    of_value = np.repeat(place, np.diff(columns.indptr))
    values = columns.data * q[columns.indices, of_value]
    return type(columns)((values, columns.indices, columns.indptr), shape=columns.shape)


def _dense(matrix: Any) -> F64:
    return np.asarray(matrix.toarray() if scipy.sparse.issparse(matrix) else matrix, np.float64)


# Sparse multinomial logistic regression by working sets of coefficients, with a certified gap.
#
# ``sum_i s_i (log sum_k exp z_ik - z_i,y_i) + sum_k (a1 |w_k|_1 + a2/2 |w_k|^2)`` with ``z_ik =
# x_i.w_k + b_k``, b not penalised or absent. Each iteration multiplies all columns by the
# residuals. This gives the gap, the coefficients that are zero in every solution, and the working
# set: those in the model or closest to entering it. Proximal Newton steps on the working set
# follow, in one block or, if it is large, block by block. The dual variables are distributions over
# the classes, made feasible as in :mod:`elasticml.algorithms.linear.softmax_objective`, then moved
# towards the rows' own classes until every column satisfies its constraint.

#: Smoothness of a row's loss in the Euclidean norm of its margins.
SMOOTHNESS: Final = 0.5
#: Maximum multiplications for the second derivatives of a block of coefficients.
BLOCK_WORK: Final = 2e9
#: Iterations over several blocks without measurable progress after which the gap is rounding.
PATIENCE: Final = 30
#: Minimum and maximum number of coefficients in a block.
BLOCK_MIN: Final = 20
BLOCK_MAX: Final = 1500


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
        self._columns, self._shifts, norms = unweighted_columns(X, weights, intercept=intercept)
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

    def solve(self, penalty: Penalty, gap: float, turns: int) -> SparseFit:
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
        return SparseFit(
            w=model.W.copy(),
            # A shift common to all classes changes no probability.
            b=b - b.mean(),
            gap=max(bound.gap, 0.0),
            steps=done,
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
