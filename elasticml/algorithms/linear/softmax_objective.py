"""Multinomial logistic regression over rows in memory, as a smooth function with a duality gap.

``F(W) = 1/S sum_i s_i (log sum_k exp z_ik - z_i,y_i) + l2/2 |W|^2`` with ``z = X W^T + b``, b not
penalised. The dual variables are distributions over the classes, ``q_i``: those of the model. With
an intercept they are mixed with one distribution for all rows, just enough for the sums by class to
equal the weights of the classes. The dual objective is their mean entropy minus
``1/(2 l2) |1/S sum_i s_i (e_y_i - q_i) x_i|^2``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.linear.newton import Point
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.arrays import F64


class SoftmaxObjective:
    """The objective of the module docstring; a model is (classes, n_coordinates), flattened.

    Parameters
    ----------
    rows : RowBlocks
    codes : ndarray (n,), int
        Each row's class, numbered from 0.
    weights : ndarray (n,), optional
        None for ones.
    classes : int
        Number of classes.
    l2 : float, not negative
        With 0, points have no gap.
    intercept : bool
        The last coordinate of each class is its intercept.
    """

    def __init__(
        self,
        rows: RowBlocks,
        codes: NDArray[np.int64],
        weights: F64 | None,
        *,
        classes: int,
        l2: float,
        intercept: bool,
    ) -> None:
        self._rows, self._codes = rows, codes
        s = np.ones(codes.size) if weights is None else weights
        self._share = (s / s.sum())[:, None]
        self._classes, self._l2, self._intercept = classes, l2, intercept
        self._penalty = np.full((classes, rows.d + intercept), l2)
        self._penalty[:, rows.d :] = 0.0
        #: Each class's share of the total weight.
        self._of_class = np.asarray(
            np.bincount(codes, weights=self._share[:, 0], minlength=classes), np.float64
        )

    @property
    def loss(self) -> str:
        """The loss's name in a job."""
        return "logistic"

    @property
    def l2(self) -> float:
        """The penalty."""
        return self._l2

    @property
    def has_intercept(self) -> bool:
        """Whether each class has an intercept."""
        return self._intercept

    @property
    def n_model(self) -> int:
        """Number of coordinates of the model."""
        return self._penalty.size

    def zero(self) -> F64:
        """Return the model without features, (n_model,)."""
        return np.zeros(self.n_model)

    def at(self, w: F64) -> Point:
        """See :class:`elasticml.algorithms.linear.newton.Smooth`."""
        W = w.reshape(self._penalty.shape)
        z = self._forward(W)
        z -= z.max(axis=1, keepdims=True)
        own = z[np.arange(len(z)), self._codes]
        q = np.exp(z)
        sums = q.sum(axis=1, keepdims=True)
        q /= sums
        losses = np.log(sums[:, 0]) - own
        penalised = self._penalty * W
        value = float(self._share[:, 0] @ losses) + 0.5 * float((penalised * W).sum())
        return Point(
            w=w,
            value=value,
            gradient=(self._adjoint(self._residuals(q)) + penalised).ravel(),
            product=self._product(q),
            gap=value - self._dual(q),
        )

    def diagonal(self) -> F64:
        """See :class:`elasticml.algorithms.linear.newton.Smooth`."""
        each = 0.25 * self._share[:, 0]
        diagonal = self._penalty.copy()
        diagonal[:, : self._rows.d] += self._rows.squares(each)
        diagonal[:, self._rows.d :] += 0.25
        diagonal[diagonal <= 0.0] = 1.0
        return diagonal.ravel()

    def _forward(self, W: F64) -> F64:
        z = self._rows.forward(np.ascontiguousarray(W[:, : self._rows.d].T))
        if self._intercept:
            z += W[:, -1]
        return z

    def _adjoint(self, c: F64) -> F64:
        image = np.empty(self._penalty.shape)
        image[:, : self._rows.d] = self._rows.adjoint(c).T
        image[:, self._rows.d :] = c.sum(axis=0)[:, None]
        return image

    def _residuals(self, q: F64) -> F64:
        """Return ``s_i / S (q_i - e_y_i)``, (n, classes)."""
        c: F64 = q * self._share
        c[np.arange(len(c)), self._codes] -= self._share[:, 0]
        return c

    def _product(self, q: F64) -> Callable[[F64], F64]:
        def product(v: F64) -> F64:
            V = v.reshape(self._penalty.shape)
            along = self._forward(V)
            along -= (q * along).sum(axis=1, keepdims=True)
            along *= q
            along *= self._share
            hv = self._adjoint(along) + self._penalty * V
            flat: F64 = hv.ravel()
            return flat

        return product

    def _dual(self, q: F64) -> float:
        if self._l2 <= 0.0:
            return math.nan
        if self._intercept:
            q = balanced(q, self._share[:, 0], self._of_class)
        image = self._adjoint(self._residuals(q))[:, : self._rows.d]
        entropies = -(q * np.log(np.maximum(q, 1e-300))).sum(axis=1)
        return float(self._share[:, 0] @ entropies) - 0.5 / self._l2 * float((image**2).sum())


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
