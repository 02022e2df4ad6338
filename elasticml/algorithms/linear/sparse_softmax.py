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
from typing import Any, Final

import numpy as np
import scipy.sparse
from scipy.special import logsumexp, softmax

from elasticml.algorithms.linear.column_matrix import unweighted_columns
from elasticml.algorithms.linear.coordinate_descent_kernels import GramProblem
from elasticml.algorithms.linear.duality import Dual, lower_bound
from elasticml.algorithms.linear.fit import Fit
from elasticml.algorithms.linear.gram_descent import descend
from elasticml.algorithms.linear.problem import Problem
from elasticml.algorithms.linear.prox_newton import line_search
from elasticml.algorithms.linear.softmax_objective import balanced
from elasticml.algorithms.linear.working_sets import solve as solve_working_sets
from elasticml.arrays import F64, I64
from elasticml.objectives.penalty_kernels import Penalty

#: Maximum sweeps for a block's subproblem.
SWEEPS_MAX: Final = 300
#: Regularisation of the intercepts' equations, as a share of the mean curvature.
LIFT: Final = 1e-12
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
    problem : Problem
        Its intercepts, if it has any, are not penalised.
    """

    takes_all = False

    def __init__(self, X: Any, codes: I64, weights: F64 | None, problem: Problem) -> None:
        n, classes, intercept = int(X.shape[0]), problem.classes, problem.intercept is not None
        self._columns, self._shifts, norms = unweighted_columns(X, weights, intercept=intercept)
        self._codes, self._has_intercept = codes, intercept
        self._s = np.ones(n) if weights is None else weights
        self._of_class = np.asarray(
            np.bincount(codes, weights=self._s, minlength=classes), np.float64
        )
        #: (classes * d,)
        self.squares = np.tile(SMOOTHNESS * norms, classes)
        self._block = int(min(BLOCK_MAX, max(BLOCK_MIN, math.sqrt(BLOCK_WORK / n))))
        #: (classes, d) and (classes,), for the shifted columns.
        self.W, self.b = np.zeros((classes, self._columns.d)), np.zeros(classes)
        #: (n, classes) margins, and the one-hot encoding of the classes.
        self._z, self._own = np.zeros((n, classes)), np.zeros((n, classes))
        self._own[np.arange(n), codes] = 1.0
        #: Sum of losses.
        self.value = self._at(self._z)
        self.is_measurable, self.patience = True, 1

    @property
    def w(self) -> F64:
        """The coefficients, class by class."""
        return self.W.ravel()

    def begin(self, W: F64, b: F64) -> None:
        """Set the model, (classes, d) and intercepts."""
        self.W = np.array(W, np.float64, order="C")
        self.b = np.asarray(b + W @ self._shifts, np.float64)
        self._z = self._along(self.W) + self.b
        self.value = self._at(self._z)

    def solve(self, penalty: Penalty, gap: float, turns: int) -> Fit:
        """Run at most ``turns`` iterations, until the gap is at most ``gap``."""
        of_zero = float(self._s.sum()) * math.log(len(self.b))
        if not self.value + penalty.of(self.w) <= of_zero:
            # If wrong classes are nearly certain, Newton steps diverge, as with two classes.
            self.begin(np.zeros_like(self.W), np.zeros_like(self.b))
        self.is_measurable, self.patience = True, 1
        return solve_working_sets(self, penalty, gap, turns)

    def fit(self, gap: float, steps: int, *, converged: bool) -> Fit:
        """Return the model with its certificate."""
        b = self.b - self.W @ self._shifts
        # A shift common to all classes changes no probability.
        b -= b.mean()
        return Fit(w=self.W.copy(), b=b, gap=gap, steps=steps, converged=converged)

    def bound(self, penalty: Penalty, features: I64) -> tuple[float, Dual]:
        """Return the objective, and the bound from the model's probabilities, made feasible."""
        q, own = self._probabilities(), self._own
        if self._has_intercept:
            q = balanced(q, self._s, self._of_class)
        products = self._products((own - q) * self._s[:, None], features)

        def entropy(share: float) -> float:
            p = share * q + (1.0 - share) * own
            return -float(self._s @ (p * np.log(np.maximum(p, 1e-300))).sum(axis=1))

        w = self.w[features]
        return self.value + penalty.of(w), lower_bound(penalty, w, products, entropy)

    def drop(self, features: I64) -> bool:
        """Remove screened coefficients; return whether any was non-zero."""
        gone = np.zeros_like(self.W)
        gone.ravel()[features] = self.w[features]
        if not gone.any():
            return False
        self._z -= self._along(gone)
        self.w[features] = 0.0
        self.value = self._at(self._z)
        return True

    def descend(self, penalty: Penalty, working: I64, gap: float, goal: float, steps: int) -> int:
        """Take a Newton step on each block of the working set."""
        blocks = np.array_split(working, max(1, math.ceil(working.size / self._block)))
        self.patience = 1 if len(blocks) == 1 else PATIENCE
        self.is_measurable = any([self.newton_step(penalty, block) for block in blocks])
        return 1

    def _probabilities(self) -> F64:
        """Return each row's distribution over the classes, (n, classes)."""
        q: F64 = softmax(self._z, axis=1)
        return q

    def _products(self, theta: F64, features: I64) -> F64:
        """Return each coefficient's column times the values of its class; theta (n, classes)."""
        k, j = np.divmod(features, self._columns.d)
        return np.concatenate(
            [
                self._columns.correlations(np.ascontiguousarray(values), j[k == c])
                for c, values in enumerate(theta.T)
            ]
        )

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
        q = self._probabilities()
        slopes = (q - self._own) * self._s[:, None]
        across, corner, G = self._curvature(q, j, k)
        along = self._products(slopes, block)
        level = slopes.sum(axis=0)
        if self._has_intercept:
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
        if self._has_intercept:
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
            return self._at(self._z + share * along), penalty.of((self.W + share * step).ravel())

        taken = line_search(at, before, promised)
        if taken is None:
            return False
        self.W, self.b = self.W + taken.share * step, self.b + taken.share * rise
        self._z, self.value = self._z + taken.share * along, taken.loss
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
