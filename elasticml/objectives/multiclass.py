"""Losses of several classes: one margin per class and row, and the rows' class numbers.

Arrays of margins, directions and slopes have shape (classes, n): the products of one class's
coefficients with all rows are contiguous. Sums over rows release the GIL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from elasticml.arrays import F64
from elasticml.compiled import inlined_kernel, kernel
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.objectives.losses import Link

_NO_WEIGHTS: Final = np.empty(0)


@dataclass(frozen=True, slots=True)
class Softmax:
    """``log sum_k exp z_k - z_y``: multinomial logistic regression.

    Its methods are those of :class:`elasticml.objectives.loss_kernels.MarginLoss` for the margins
    z_i (classes,) of each row and its class number, from 0. With the Hessians H_i,
    ``curvature_along`` is the sum of ``s_i u_i' H_i u_i``, and ``smoothness`` bounds their
    eigenvalues. ``curvature`` writes what :meth:`times` and :meth:`diagonal` need of them.
    """

    name: str = "logistic"
    #: ``diag(p) - p p'`` has eigenvalues of at most 1/2.
    smoothness: float = 0.5
    is_classification: bool = True
    link: Link = "logit"

    def value_and_slope(
        self, margins: F64, targets: F64, weights: F64 | None, slope_out: F64
    ) -> float:
        """Write ``s_i grad loss(z_i, y_i)``; return the sum of losses."""
        return float(_softmax_value(margins, targets, _given(weights), slope_out))

    def along(
        self,
        margins: F64,
        directions: F64,
        targets: F64,
        weights: F64 | None,
        steps: F64,
        values_out: F64,
        slopes_out: F64,
    ) -> None:
        """Add values and slopes along a direction."""
        s = _given(weights)
        _softmax_along(margins, directions, targets, s, steps, values_out, slopes_out)

    def curvature_along(
        self, margins: F64, directions: F64, targets: F64, weights: F64 | None
    ) -> float:
        """Return the curvature along a direction."""
        return float(_softmax_curvature_along(margins, directions, _given(weights)))

    def curvature(self, margins: F64, targets: F64, weights: F64 | None, out: F64) -> None:
        """Write the probabilities of the classes."""
        _probabilities(margins, out)

    def times(self, curvatures: F64, weights: F64 | None, directions: F64) -> None:
        """Replace ``directions`` u_i (classes, n) by ``s_i H_i u_i``."""
        _softmax_times(curvatures, _given(weights), directions)

    def diagonal(self, curvatures: F64, weights: F64 | None) -> F64:
        """Return the diagonals of ``s_i H_i``; new, (classes, n)."""
        each: F64 = curvatures * (1.0 - curvatures)
        return each if weights is None else each * weights

    def pairs(self, classes: int) -> list[tuple[int, int]]:
        """Return the entries (k, j), j up to k, of the H_i that are not zero in all rows."""
        return [(k, j) for k in range(classes) for j in range(k + 1)]

    def entry(self, curvatures: F64, weights: F64 | None, k: int, j: int) -> F64:
        """Return entry (k, j) of ``s_i H_i``, which has one sign in all rows; (n,)."""
        of_one: F64 = curvatures[k] * (float(k == j) - curvatures[j])
        return of_one if weights is None else of_one * weights


@dataclass(frozen=True, slots=True)
class OneAgainstRest:
    """The sum over classes of a loss of two classes: of the class, +1, and all others, -1."""

    loss: MarginLoss
    is_classification: bool = True

    @property
    def name(self) -> str:
        """See :class:`Softmax`."""
        return self.loss.name

    @property
    def link(self) -> Link:
        """See :class:`Softmax`."""
        return self.loss.link

    @property
    def smoothness(self) -> float:
        """See :class:`Softmax`."""
        return self.loss.smoothness

    def value_and_slope(
        self, margins: F64, targets: F64, weights: F64 | None, slope_out: F64
    ) -> float:
        """See :class:`Softmax`."""
        return math.fsum(
            self.loss.value_and_slope(z, signs(targets, k), weights, slope_out[k])
            for k, z in enumerate(margins)
        )

    def along(
        self,
        margins: F64,
        directions: F64,
        targets: F64,
        weights: F64 | None,
        steps: F64,
        values_out: F64,
        slopes_out: F64,
    ) -> None:
        """See :class:`Softmax`."""
        for k, (z, u) in enumerate(zip(margins, directions, strict=True)):
            self.loss.along(z, u, signs(targets, k), weights, steps, values_out, slopes_out)

    def curvature_along(
        self, margins: F64, directions: F64, targets: F64, weights: F64 | None
    ) -> float:
        """See :class:`Softmax`."""
        return math.fsum(
            self.loss.curvature_along(z, u, signs(targets, k), weights)
            for k, (z, u) in enumerate(zip(margins, directions, strict=True))
        )

    def curvature(self, margins: F64, targets: F64, weights: F64 | None, out: F64) -> None:
        """Write the weighted second derivatives."""
        for k, z in enumerate(margins):
            self.loss.curvature(z, signs(targets, k), weights, out[k])

    def times(self, curvatures: F64, weights: F64 | None, directions: F64) -> None:
        """See :class:`Softmax`."""
        directions *= curvatures

    def diagonal(self, curvatures: F64, weights: F64 | None) -> F64:
        """See :class:`Softmax`."""
        return curvatures

    def pairs(self, classes: int) -> list[tuple[int, int]]:
        """See :class:`Softmax`."""
        return [(k, k) for k in range(classes)]

    def entry(self, curvatures: F64, weights: F64 | None, k: int, j: int) -> F64:
        """See :class:`Softmax`."""
        of_one: F64 = curvatures[k]
        return of_one


#: A loss of several classes.
MultiLoss = Softmax | OneAgainstRest


def multiclass_loss(loss: MarginLoss) -> MultiLoss:
    """Return the loss of several classes that belongs to one of two: softmax for the logistic."""
    return Softmax() if loss.name == "logistic" else OneAgainstRest(loss)


def signs(targets: F64, k: int) -> F64:
    """Return +1 for rows of class number k, else -1; new, (n,)."""
    return np.where(targets == k, 1.0, -1.0)


def _given(weights: F64 | None) -> F64:
    return _NO_WEIGHTS if weights is None else weights


@inlined_kernel
def _largest(z: F64, i: int) -> Any:
    top = z[0, i]
    for k in range(1, z.shape[0]):
        top = max(top, z[k, i])
    return top


@kernel
def _softmax_value(z: F64, targets: F64, weights: F64, out: F64) -> Any:
    total = 0.0
    for i in range(z.shape[1]):
        top = _largest(z, i)
        own = int(targets[i])
        # ``out`` may be ``z``, which is read before it is written.
        margin = z[own, i] - top
        powers = 0.0
        for k in range(z.shape[0]):
            out[k, i] = math.exp(z[k, i] - top)
            powers += out[k, i]
        s = weights[i] if weights.size > 0 else 1.0
        total += s * (math.log(powers) - margin)
        for k in range(z.shape[0]):
            out[k, i] *= s / powers
        out[own, i] -= s
    return total


@kernel
def _softmax_along(
    z: F64, u: F64, targets: F64, weights: F64, steps: F64, values: F64, slopes: F64
) -> None:
    for i in range(z.shape[1]):
        s = weights[i] if weights.size > 0 else 1.0
        own = int(targets[i])
        for j in range(steps.size):
            t = steps[j]
            top = z[0, i] + t * u[0, i]
            for k in range(1, z.shape[0]):
                top = max(top, z[k, i] + t * u[k, i])
            powers, dot = 0.0, 0.0
            for k in range(z.shape[0]):
                e = math.exp(z[k, i] + t * u[k, i] - top)
                powers += e
                dot += e * u[k, i]
            values[j] += s * (math.log(powers) - (z[own, i] + t * u[own, i] - top))
            slopes[j] += s * (dot / powers - u[own, i])


@kernel
def _softmax_curvature_along(z: F64, u: F64, weights: F64) -> Any:
    total = 0.0
    for i in range(z.shape[1]):
        top = _largest(z, i)
        powers, dot = 0.0, 0.0
        for k in range(z.shape[0]):
            e = math.exp(z[k, i] - top)
            powers += e
            dot += e * u[k, i]
        mean, square = dot / powers, 0.0
        for k in range(z.shape[0]):
            off = u[k, i] - mean
            square += math.exp(z[k, i] - top) * off * off
        total += (weights[i] if weights.size > 0 else 1.0) * square / powers
    return total


@kernel
def _probabilities(z: F64, out: F64) -> None:
    for i in range(z.shape[1]):
        top = _largest(z, i)
        powers = 0.0
        for k in range(z.shape[0]):
            out[k, i] = math.exp(z[k, i] - top)
            powers += out[k, i]
        for k in range(z.shape[0]):
            out[k, i] /= powers


@kernel
def _softmax_times(p: F64, weights: F64, u: F64) -> None:
    for i in range(p.shape[1]):
        dot = 0.0
        for k in range(p.shape[0]):
            dot += p[k, i] * u[k, i]
        s = weights[i] if weights.size > 0 else 1.0
        for k in range(p.shape[0]):
            u[k, i] = s * p[k, i] * (u[k, i] - dot)
