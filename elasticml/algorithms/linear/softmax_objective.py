"""Multinomial logistic regression over rows in memory, as a smooth function with a duality gap.

``F(W) = 1/S sum_i s_i (log sum_k exp z_ik - z_i,y_i) + l2/2 |W|^2`` with ``z = X W^T + b``, b not
penalised. The dual variables are distributions over the classes, ``q_i``: those of the model. With
an intercept they are mixed with one distribution for all rows, just enough for the sums by class to
equal the weights of the classes. The dual objective is their mean entropy minus
``1/(2 l2) |1/S sum_i s_i (e_y_i - q_i) x_i|^2``.
"""

from __future__ import annotations

import math

import numpy as np

from elasticml.algorithms.linear.linear_objective import LinearObjective
from elasticml.algorithms.linear.problem import Problem
from elasticml.arrays import F64, I64


class SoftmaxLoss:
    """The loss of rows of margins (n, classes): what the objective calls of ``MarginLoss``.

    Parameters
    ----------
    codes : ndarray (n,), int
        Each row's class, numbered from 0.
    """

    name = "softmax"
    #: Of a row's loss, in the Euclidean norm of its margins.
    smoothness = 0.5

    def __init__(self, codes: I64) -> None:
        self.own = np.arange(codes.size), codes
        #: The last margins, their distributions, and the logarithms of the sums of powers.
        self._last: tuple[F64, F64, F64] = (np.empty(0), np.empty(0), np.empty(0))

    def distributions(self, z: F64) -> F64:
        """Return the distributions, (n, classes); not new."""
        return self._evaluated(z)[0]

    def _evaluated(self, z: F64) -> tuple[F64, F64]:
        if self._last[0] is not z:
            top = z.max(axis=1, keepdims=True)
            q = np.exp(z - top)
            sums = q.sum(axis=1, keepdims=True)
            q /= sums
            self._last = z, q, (np.log(sums) + top)[:, 0]
        return self._last[1:]

    def value_and_slope(self, z: F64, codes: I64, weights: F64 | None, slope_out: F64) -> float:
        """Return the sum of losses, and write the slopes."""
        q, logs = self._evaluated(z)
        losses = logs - z[self.own]
        slope_out[:] = q
        slope_out[self.own] -= 1.0
        if weights is None:
            return float(losses.sum())
        slope_out *= weights[:, np.newaxis]
        return float(weights @ losses)

    def curvature(self, z: F64, codes: I64, weights: F64 | None, out: F64) -> None:
        """Write the distributions, of which the second derivatives consist."""
        out[:] = self.distributions(z)

    def curvature_along(self, z: F64, u: F64, codes: I64, weights: F64 | None) -> float:
        """Return the second derivative of the sum of losses along a direction."""
        p = self.distributions(z) * u
        each = (p * u).sum(axis=1) - p.sum(axis=1) ** 2
        return float(each.sum() if weights is None else weights @ each)


class SoftmaxObjective(LinearObjective):
    """The objective of the module docstring; a model is (classes, n_coordinates), flattened.

    Its targets are the rows' classes, numbered from 0.
    """

    def _loss_of(self, problem: Problem) -> SoftmaxLoss:
        codes = np.asarray(self._targets, np.int64)
        s = np.ones(codes.size) if self._weights is None else self._weights
        self._share = (s / self._total)[:, np.newaxis]
        #: Each class's share of the total weight.
        self._of_class = np.asarray(
            np.bincount(codes, weights=self._share[:, 0], minlength=problem.classes), np.float64
        )
        return SoftmaxLoss(codes)

    def _forward(self, w: F64) -> F64:
        return self._rows.forward(np.ascontiguousarray(w.reshape(self.n_models, -1).T))

    def _adjoint(self, c: F64) -> F64:
        return np.asarray(self._rows.adjoint(c).T.ravel())

    def _times(self, curvature: F64, u: F64) -> F64:
        along: F64 = u - self._total * (curvature * u).sum(axis=1, keepdims=True)
        along *= curvature
        if self._weights is not None:
            along *= self._weights[:, np.newaxis]
        return along

    def _curved(self, v: F64, curvature: F64) -> F64:
        return self._adjoint(self._times(curvature, self._forward(v)))

    def hessian(self, w: F64) -> F64:
        """Return the Hessian at ``w``.

        Where all classes have the same direction the loss has no curvature. It gets that of a
        single class: gradients have no part in this direction.
        """
        k, m = self.n_models, self._rows.n_model
        q, share = self._total * self._curvature(self._forward(w))(), self._share[:, 0]
        hessian = np.zeros((k, m, k, m))
        for a in range(k):
            hessian[a, :, a] = self._rows.gram(share * q[:, a] * (1.0 - q[:, a]))
            for b in range(a):
                hessian[a, :, b] = hessian[b, :, a] = -self._rows.gram(share * q[:, a] * q[:, b])
        hessian += np.mean([hessian[a, :, a] for a in range(k)], axis=0)[None, :, None, :] / k
        flat: F64 = hessian.reshape(k * m, k * m)
        flat[np.diag_indices(k * m)] += self._penalty
        return flat

    def _bound_of(self, slopes: F64) -> float:
        """Return the dual objective at the distributions of slopes, made feasible."""
        if self.l2 <= 0.0:
            return -math.inf
        q = np.divide(slopes, self._share, out=np.zeros(slopes.shape), where=self._share > 0.0)
        q[self._loss.own] += 1.0
        # Slopes at the end of a linearised step may be those of no distribution.
        np.maximum(q, 0.0, out=q)
        q /= q.sum(axis=1, keepdims=True)
        if self._frees:
            q = balanced(q, self._share[:, 0], self._of_class)
        entropies = -(q * np.log(np.maximum(q, _LEAST))).sum(axis=1)
        q[self._loss.own] -= 1.0
        image = self._rows.adjoint(q * self._share)[: self._rows.d]
        return float(self._share[:, 0] @ entropies) - 0.5 / self.l2 * float((image**2).sum())


#: Replaces a zero sum in a divisor.
_LEAST = 1e-300


def balanced(q: F64, weights: F64, of_class: F64) -> F64:
    """Mix all rows' distributions with one, just enough for the sums to equal the class weights.

    Parameters
    ----------
    q : ndarray (n, classes)
    weights : ndarray (n,)
        Row weights.
    of_class : ndarray (classes,)
        Total weight of each class's rows. An empty class gets probability 0 in every row.
    """
    total, has_weight = of_class.sum(), of_class > 0.0
    if not has_weight.all():
        q = np.where(has_weight, q, 0.0)
        rest = q.sum(axis=1, keepdims=True)
        q = np.where(rest > _LEAST, q / np.maximum(rest, _LEAST), of_class / total)
    sums = weights @ q
    shares = of_class[has_weight] / np.maximum(sums[has_weight], _LEAST)
    kept = min(1.0, float(shares.min()))
    mixed: F64 = kept * q + (of_class - kept * sums) / total
    return mixed
