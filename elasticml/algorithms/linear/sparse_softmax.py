"""Sparse multinomial logistic regression by proximal Newton steps on working sets of coefficients.

``sum_i s_i (log sum_k exp z_ik - z_i,y_i) + sum_k (a1 |w_k|_1 + a2/2 |w_k|^2)`` with
``z_ik = x_i.w_k + b_k``, b not penalised or absent. The dual variables are distributions over the
classes, made feasible by :func:`elasticml.algorithms.linear.softmax_objective.balanced`, and then
moved towards the rows' own classes until every column satisfies its constraint.

A Newton step replaces the loss by its quadratic model at the current margins, with all second
derivatives between the coefficients of a block; the intercepts are eliminated. Coordinate descent
on this model alternates with steps to the optimum of a sign pattern; a line search on the objective
follows. A large working set has several blocks.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np
import scipy.sparse

from elasticml.algorithms.linear.coordinate_descent_kernels import GramProblem
from elasticml.algorithms.linear.duality import Dual, lower_bound
from elasticml.algorithms.linear.fit import Fit
from elasticml.algorithms.linear.problem import Problem
from elasticml.algorithms.linear.softmax_objective import SoftmaxLoss, balanced
from elasticml.algorithms.linear.sparse_classifier import SparseClassifier, Subproblem
from elasticml.arrays import F64, I64
from elasticml.objectives.penalty_kernels import Penalty

#: Maximum multiplications for a block's Gram matrix, and its least columns.
BLOCK_WORK: Final = 2e9
BLOCK_MIN: Final = 20
#: With several blocks, iterations without measurable progress after which the gap is rounding.
PATIENCE: Final = 30
#: Maximum sweeps of a step.
SWEEPS_MAX: Final = 300
#: Regularisation of the intercepts' equations, as a share of the mean curvature.
LIFT: Final = 1e-12


class SparseSoftmax(SparseClassifier):
    """Solves for a sequence of penalties, each warm-started from the previous model.

    Parameters
    ----------
    X : ndarray or sparse in CSC format (n, d)
        Not modified.
    codes : ndarray (n,), int
        Each row's class, numbered from 0.
    weights : ndarray (n,), optional
        None for ones.
    problem : Problem
        Its intercepts, if it has any, are not penalised.
    """

    def __init__(self, X: Any, codes: I64, weights: F64 | None, problem: Problem) -> None:
        n, classes, intercept = int(X.shape[0]), problem.classes, problem.intercept is not None
        super().__init__(X, codes, weights, loss=SoftmaxLoss(codes), intercept=intercept)
        self._s = np.ones(n) if weights is None else weights
        self._of_class = np.asarray(
            np.bincount(codes, weights=self._s, minlength=classes), np.float64
        )
        #: Of coefficients (classes, d), flat; margins and slopes are (n, classes).
        self._shape = classes, self._columns.d
        self.squares, self.w = np.tile(self.squares, classes), np.zeros(classes * self._columns.d)
        self.b, self.z = np.zeros(classes), np.zeros((n, classes))
        self._slopes, self._sweeps_max = np.empty((n, classes)), SWEEPS_MAX
        #: Most coefficients of a block, and whether the last step was on several.
        self._block = min(self._block, max(BLOCK_MIN, int(math.sqrt(BLOCK_WORK / n))))
        self._is_split = False

    def fit(self, gap: float, steps: int, *, converged: bool) -> Fit:
        """Return the model; a shift common to all intercepts changes no probability."""
        fit = super().fit(gap, steps, converged=converged)
        return fit if fit.b is None else replace(fit, b=fit.b - fit.b.mean())

    def settle_intercept(self) -> None:
        """Update losses and slopes: Newton steps include the intercepts."""
        self.value = self._at(self.z, self._slopes)

    def bound(self, penalty: Penalty, features: I64) -> tuple[float, Dual]:
        """Return the objective, and the bound from the model's probabilities, made feasible."""
        self.settle_intercept()
        q, own = self._loss.distributions(self.z), np.zeros(self.z.shape)
        own[self._loss.own] = 1.0
        if self._has_intercept:
            q = balanced(q, self._s, self._of_class)
        products = self._products((own - q) * self._s[:, None], features)

        def entropy(share: float) -> float:
            p = share * q + (1.0 - share) * own
            return -float(self._s @ (p * np.log(np.maximum(p, 1e-300))).sum(axis=1))

        w = self.w[features]
        return self.value + penalty.of(w), lower_bound(penalty, w, products, entropy)

    def _products(self, theta: F64, features: I64) -> F64:
        """Return each coefficient's column times the values of its class; theta (n, classes)."""
        k, j = np.divmod(features, self._columns.d)
        return np.concatenate(
            [
                self._columns.correlations(np.ascontiguousarray(values), j[k == c])
                for c, values in enumerate(theta.T)
            ]
        )

    def _along(self, working: I64, step: F64) -> F64:
        W = np.zeros(self._shape)
        W.ravel()[working] = step
        features = np.flatnonzero(W.any(axis=0))
        return np.asarray(self._columns.take(features) @ W[:, features].T)

    def newton_step(self, penalty: Penalty, working: I64, gap: float) -> None:
        """Take a proximal Newton step on some coefficients and all intercepts, block by block."""
        parts = max(1, math.ceil(working.size / self._block))
        self._is_split, gained = parts > 1, False
        for block in np.array_split(working, parts):
            self._step_on_gram(penalty, block, -math.inf)  # The subproblem has no gap.
            gained = gained or self.is_measurable
        self.is_measurable = gained

    @property
    def patience(self) -> int:
        """Steps on some of several blocks may help little."""
        return PATIENCE if self._is_split else super().patience

    def _subproblem(self, working: I64) -> Subproblem:
        k, j = np.divmod(working, self._columns.d)
        across, corner, G = self._second(self._loss.distributions(self.z), j, k)
        slope, level = self._products(self._slopes, working), self._slopes.sum(axis=0)
        inverse = np.zeros(corner.shape)
        if self._has_intercept:
            # Eliminate the intercepts (Schur complement).
            inverse = _inverse(corner)
            G = np.ascontiguousarray(G - across @ inverse @ across.T)
            slope = slope - across @ (inverse @ level)
        gram = GramProblem(G, G @ self.w[working] - slope, 0.0)
        return Subproblem(gram, lambda step: -inverse @ (level + across.T @ step), None)

    def _second(self, q: F64, j: I64, k: I64) -> tuple[F64, F64, F64]:
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
