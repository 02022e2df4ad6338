"""Multinomial logistic regression over rows in memory, as a smooth function with a duality gap.

``F(W) = 1/S sum_i s_i (log sum_k exp z_ik - z_i,y_i) + l2/2 |W|^2`` with ``z = X W^T + b``, b not
penalised. The dual variables are distributions over the classes, ``q_i``: those of the model. With
an intercept they are mixed with one distribution for all rows, just enough for the sums by class to
equal the weights of the classes. The dual objective is their mean entropy minus
``1/(2 l2) |1/S sum_i s_i (e_y_i - q_i) x_i|^2``.

In columns of large values the last term is large before the model is exact to rounding. For a
*block* of such columns, or for all if they are few, the Hessian is computed: its factors serve the
steps, and a linearised Newton step in the block corrects the dual variables, as in
:mod:`elasticml.algorithms.linear.linear_objective`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.linear.design import Design
from elasticml.algorithms.linear.newton import Factored, Point, least_along
from elasticml.algorithms.linear.problem import Problem
from elasticml.arrays import F64

#: Most coordinates of the block, and most values of its rows: 256 MB.
BLOCK_MAX: Final = 512
BLOCK_VALUES_MAX: Final = 2**25
#: Mean square from which a column is in the block. Those of standardised and binary columns are at
#: most 1.
LARGE: Final = 4.0
#: Values of rows that are weighted at a time for the block's Hessian: 1 MB.
_TILE: Final = 2**17
#: Linear corrections of the dual variables; each after the first removes rounding errors.
_CORRECTIONS: Final = 2


class SoftmaxObjective:
    """The objective of the module docstring; a model is (classes, n_coordinates), flattened.

    Parameters
    ----------
    rows : Design
        Without a last column of ones.
    codes : ndarray (n,), int
        Each row's class, numbered from 0.
    weights : ndarray (n,), optional
        None for ones.
    problem : Problem
        Without a penalty, points have no gap. With an intercept it is the last coordinate of each
        class.
    """

    def __init__(
        self,
        rows: Design,
        codes: NDArray[np.int64],
        weights: F64 | None,
        problem: Problem,
    ) -> None:
        self._rows, self._codes = rows.bordered(problem.intercept), codes
        s = np.ones(codes.size) if weights is None else weights
        self._share = (s / s.sum())[:, None]
        self._classes, self._l2 = problem.classes, problem.l2
        self._intercept = problem.intercept is not None
        self._penalty = np.full((self._classes, self._rows.n_model), self._l2)
        self._penalty[:, rows.d :] = 0.0
        #: The last model that was evaluated, and the block's Hessian there.
        self._latest: tuple[F64, F64] | None = None
        #: Each class's share of the total weight.
        self._of_class = np.asarray(
            np.bincount(codes, weights=self._share[:, 0], minlength=self._classes), np.float64
        )

    @property
    def n_model(self) -> int:
        """Number of coordinates of the model."""
        return self._penalty.size

    def zero(self) -> F64:
        """Return the model without features, (n_model,)."""
        return np.zeros(self.n_model)

    def at(self, w: F64) -> Point:
        """See :class:`elasticml.algorithms.linear.newton.Smooth`."""
        z = self._forward(w.reshape(self._penalty.shape))
        return self._at(w, z, *_probabilities(z))

    def _at(self, w: F64, z: F64, q: F64, logs: F64) -> Point:
        """Evaluate at ``w`` with these margins, and their :func:`_probabilities`."""
        W, every = w.reshape(self._penalty.shape), np.arange(len(z))
        penalised = self._penalty * W
        losses = logs - z[every, self._codes]
        gradient = (self._adjoint(self._residuals(q)) + penalised).ravel()

        def minimum_along(step: F64, certifies: bool) -> Point:
            S, share = step.reshape(W.shape), self._share[:, 0]
            u, stretch = self._forward(S), self._penalty * S
            constant, linear = float((stretch * W).sum()), float((stretch * S).sum())
            own, there = float(share @ u[every, self._codes]), (z, q, logs)

            def along(t: float) -> tuple[float, Callable[[], float]]:
                nonlocal there
                there = z + t * u, *_probabilities(z + t * u)
                p = there[1] * u
                mean = p.sum(axis=1)
                slope = float(share @ mean) - own + constant + t * linear
                return slope, lambda: float(share @ ((p * u).sum(axis=1) - mean**2)) + linear

            longest = math.inf if self._l2 > 0.0 else 1.0
            t = least_along(along, abs(float(gradient @ step)), longest)
            return self._at(w + t * step, *there)

        value = float(self._share[:, 0] @ losses) + 0.5 * float((penalised * W).sum())
        return Point(
            w=w,
            value=value,
            gradient=gradient,
            product=self._product(q),
            gap=value - self._dual(w, q, penalised),
            minimum_along=minimum_along,
            hessian_products=math.inf if self.block is None else 0.0,
        )

    def diagonal(self) -> F64:
        """See :class:`elasticml.algorithms.linear.newton.Smooth`."""
        diagonal = self._penalty + self._rows.squares(0.25 * self._share[:, 0])
        diagonal[diagonal <= 0.0] = 1.0
        return diagonal.ravel()

    def _forward(self, W: F64) -> F64:
        return self._rows.forward(np.ascontiguousarray(W.T))

    def _adjoint(self, c: F64) -> F64:
        return self._rows.adjoint(c).T

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

    def _dual(self, w: F64, q: F64, penalised: F64) -> float:
        """Return the dual objective at distributions near those of the model."""
        if self._l2 <= 0.0:
            return math.nan
        corrected = self._corrected(w, q, penalised)
        if corrected is not None:
            q = corrected
        elif self._intercept:
            q = balanced(q, self._share[:, 0], self._of_class)
        image = self._adjoint(self._residuals(q))[:, : self._rows.d]
        entropies = -(q * np.log(np.maximum(q, 1e-300))).sum(axis=1)
        return float(self._share[:, 0] @ entropies) - 0.5 / self._l2 * float((image**2).sum())

    # --- the block ------------------------------------------------------------------------------

    @cached_property
    def block(self) -> NDArray[np.intp] | None:
        """Coordinates of a model whose Hessian is computed; None for none."""
        d, most = self._rows.d, BLOCK_MAX // self._classes - self._intercept
        most = min(most, BLOCK_VALUES_MAX // self._rows.n)
        columns = np.arange(d)
        if d > most:
            squares = self._rows.squares(self._share[:, 0])[:d]
            columns = np.argsort(-squares, kind="stable")[: max(most, 0)]
            columns = np.sort(columns[squares[columns] > LARGE])
        if not columns.size:
            return None
        columns = np.append(columns, [d] * self._intercept).astype(np.intp)
        starts = np.arange(self._classes)[:, None] * self._rows.n_model
        flat: NDArray[np.intp] = (starts + columns).ravel()
        return flat

    @cached_property
    def _block_rows(self) -> F64:
        """The block's columns, with that of the intercept."""
        assert self.block is not None
        columns = self.block[: self.block.size // self._classes]
        rows = np.ones((self._rows.n, columns.size))
        own = columns[: columns.size - self._intercept]
        rows[:, : own.size] = self._rows.columns(own)
        return rows

    def hessian(self, w: F64) -> F64:
        """Return the block's Hessian at ``w``."""
        if self._latest is not None and self._latest[0] is w:
            return self._latest[1]
        z = self._forward(w.reshape(self._penalty.shape))
        return self._block_hessian(_probabilities(z)[0])

    def _block_hessian(self, q: F64) -> F64:
        """Return the block's Hessian where the distributions are ``q``.

        Where all classes have the same direction the loss has no curvature. It gets that of a
        single class: gradients have no part in this direction.
        """
        rows, k = self._block_rows, self._classes
        m = rows.shape[1]
        hessian, height = np.zeros((k, m, k, m)), max(1, _TILE // m)
        for begin in range(0, len(rows), height):
            at = slice(begin, begin + height)
            some, of_classes, share = rows[at], q[at], self._share[at, 0]
            for a in range(k):
                for b in range(a + 1):
                    curvature = share * of_classes[:, a] * ((a == b) - of_classes[:, b])
                    hessian[a, :, b] += some.T @ (curvature[:, None] * some)
        for a in range(k):
            for b in range(a):
                hessian[b, :, a] = hessian[a, :, b]
        same = np.mean([hessian[a, :, a] for a in range(k)], axis=0) / k
        hessian += same[None, :, None, :]
        flat: F64 = hessian.reshape(k * m, k * m)
        flat[np.diag_indices(k * m)] += self._penalty.ravel()[self.block]
        return flat

    def _corrected(self, w: F64, q: F64, penalised: F64) -> F64 | None:
        """Return the distributions after a linearised Newton step in the block from ``w``.

        No gradient is left in the block, so that they are balanced. None if some are below zero: a
        step from a model far from the optimum is too long.
        """
        if self.block is None:
            return None
        self._latest = w, self._block_hessian(q)
        with contextlib.suppress(np.linalg.LinAlgError):
            rows, factors = self._block_rows, Factored(self._latest[1])
            shape = self._classes, rows.shape[1]
            penalty = self._penalty.ravel()[self.block].reshape(shape)
            wanted, changed = penalised.ravel()[self.block].reshape(shape), q
            for _ in range(_CORRECTIONS):
                rest = self._residuals(changed).T @ rows + wanted
                step = -factors.to_model(factors.of_gradient(rest.ravel())).reshape(shape)
                along = rows @ step.T
                along -= (q * along).sum(axis=1, keepdims=True)
                changed, wanted = changed + q * along, wanted + penalty * step
            return changed if changed.min() >= 0.0 else None
        return None


def _probabilities(z: F64) -> tuple[F64, F64]:
    """Return the distributions of margins (n, classes), and the logarithms of their sums (n,)."""
    top = z.max(axis=1, keepdims=True)
    q = np.exp(z - top)
    sums = q.sum(axis=1, keepdims=True)
    q /= sums
    return q, (np.log(sums) + top)[:, 0]


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
