"""A sparse multinomial model with its margins, and proximal Newton steps on some coefficients.

The loss is replaced by its quadratic model at the current margins, with all second derivatives
between the coefficients of a block; the intercepts are eliminated. Coordinate descent on this model
alternates with steps to the optimum of a sign pattern; a line search on the objective follows.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from elasticml.algorithms.columns.margin_model import HALVINGS_MAX, HIDDEN, TAKEN
from elasticml.algorithms.columns.matrix import ColumnMatrix
from elasticml.algorithms.columns.products import Penalty, descend

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

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
        products = np.concatenate(
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
            products = products - across @ (inverse @ level)
        w = self.W[k, j]
        new, left = w.copy(), -products
        linear = G @ w + left
        descend(np.ascontiguousarray(G), linear, 0.0, penalty, -np.inf, SWEEPS_MAX, new, left)
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
        # This close to the optimum differences of values are rounding: take the full step.
        is_measurable = promised > HIDDEN * abs(before)
        if not promised >= -HIDDEN * abs(before):
            return False  # Uphill or not finite: a step spoilt by rounding.
        share = 1.0
        for _ in range(HALVINGS_MAX):
            W, z = self.W + share * step, self.z + share * along
            value = self._at(z)
            is_downhill = value + penalty.of(W.ravel()) <= before - TAKEN * share * promised
            if is_downhill or (not is_measurable and np.isfinite(value)):
                self.W, self.b, self.z = W, self.b + share * rise, z
                self.value = value
                return is_measurable
            share *= 0.5
        return False


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
