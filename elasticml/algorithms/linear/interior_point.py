"""Primal-dual interior point method for the hinge loss, for rows with few columns.

``sum_i s_i max(0, 1 - y_i x_i.w) + strength/2 |w|^2``, where w may include the coefficient of a
constant column. Each step factorises one matrix of the size of the model, ``strength I +
X^T D X``, so that the number of steps hardly depends on the conditioning of the rows, which slows
dual coordinate descent down at large C.

Source: Ferris and Munson (2002), "Interior-point methods for massive support vector machines";
predictor and corrector of Mehrotra (1992). Deviation: the first step starts at the model of a few
passes of dual coordinate descent, with all products of the conditions alike.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.linalg

from elasticml.algorithms.linear.row_blocks import BorderedRows, RowBlocks
from elasticml.arrays import F64

#: Columns up to which the method is considered.
COLUMNS_MAX: Final = 500
#: Steps after which the method gives up; 10 to 50 are usual.
STEPS_MAX: Final = 100
#: Products of dual variables and multipliers at the first point, as a share of the largest weight.
CENTRE: Final = 0.5
#: Share of the step to the nearest bound.
SHORT: Final = 0.99
#: Factor by which the mean product must fall within LOOK steps.
FALL: Final = 1.6
LOOK: Final = 8
#: Expected steps.
STEPS: Final = 25


def passes_of(X: Any) -> float:
    """Return how many passes of dual coordinate descent the method is expected to cost.

    The nanoseconds were measured with one thread on rows of 2 to 90 stored values; only their
    ratios matter.

    Parameters
    ----------
    X : ndarray or CSR (n, d)

    Returns
    -------
    float
        Infinite if the method is not considered.
    """
    n, d = X.shape
    if d > COLUMNS_MAX or n < d:
        return math.inf
    if hasattr(X, "indptr"):
        stored = np.diff(X.indptr).astype(np.float64)
        total, products = float(stored.sum()), 0.45 * float(stored @ stored)
    else:
        total, products = float(n * d), 0.02 * n * d * d
    step = 1e5 + 60.0 * n + 6.0 * total + products + 0.1 * d**3
    return float(STEPS * step / (35.0 * n + 1.1 * total))


class InteriorFit(NamedTuple):
    """A model with its certificate."""

    #: (d,) or, with a constant column, (d + 1,).
    w: F64
    gap: float
    steps: int


class _Point(NamedTuple):
    """Model, dual variables and multipliers; all but w and ``excess`` are positive."""

    w: F64
    #: Margins minus 1.
    excess: F64
    #: Dual variables, below the weights, and what is left to these.
    b: F64
    left: F64
    #: Multipliers of both bounds; ``excess = z - u`` at a solution.
    z: F64
    u: F64
    #: ``sum b y x``.
    image: F64

    def mean(self) -> float:
        """Return the mean product of a dual variable and its multiplier."""
        return float(self.z @ self.b + self.u @ self.left) / (2 * self.b.size)


class _Step(NamedTuple):
    w: F64
    excess: F64
    b: F64
    z: F64
    u: F64

    def longest(self, point: _Point) -> float:
        """Return the longest step, up to 1, at which nothing is negative."""
        least = min(
            float((self.b / point.b).min()),
            float((-self.b / point.left).min()),
            float((self.z / point.z).min()),
            float((self.u / point.u).min()),
        )
        return 1.0 if least >= -1.0 else -1.0 / least


class InteriorPoint:
    """The method for one set of targets, see the module docstring.

    Parameters
    ----------
    blocks : RowBlocks
        n rows, in float64.
    targets : ndarray (n,)
        -1 and +1.
    weights : ndarray (n,), optional
        Above 0; None for ones.
    strength : float, above 0
    constant : float, optional
        Value of the constant column; None for none.
    """

    def __init__(
        self,
        blocks: RowBlocks,
        targets: F64,
        weights: F64 | None,
        *,
        strength: float,
        constant: float | None,
    ) -> None:
        self._rows, self._y = BorderedRows(blocks, constant), targets
        self._s = np.ones(blocks.n) if weights is None else weights
        self._strength = strength
        self._best: F64 = np.zeros(self._rows.n_model)
        self._primal, self._dual = math.inf, -math.inf

    def solve(self, gap: float, w: F64) -> InteriorFit:
        """Step until the gap is at most ``gap``, or further steps hardly reduce it.

        Parameters
        ----------
        w : ndarray (d,) or, with a constant column, (d + 1,)
            First model.
        """
        point, means = self._first(w), []
        for done in range(STEPS_MAX):
            self._measure(point)
            means.append(point.mean())
            is_stuck = done >= LOOK and means[-1] * FALL > means[-1 - LOOK]
            if self._primal - self._dual <= gap or is_stuck:
                return self._fit(done)
            following = self._after(point)
            if following is None:
                return self._fit(done)
            point = following
        return self._fit(STEPS_MAX)

    def _fit(self, steps: int) -> InteriorFit:
        return InteriorFit(self._best, max(self._primal - self._dual, 0.0), steps)

    def _first(self, w: F64) -> _Point:
        s, excess = self._s, self._y * self._rows.forward(w) - 1.0
        centre = CENTRE * float(s.max())
        # Both products of the conditions are alike: the root of a quadratic equation in b.
        b = 2.0 * centre * s / (excess * s + 2.0 * centre + np.hypot(excess * s, 2.0 * centre))
        left = s - b
        image = self._rows.adjoint(self._y * b)
        return _Point(
            w=w, excess=excess, b=b, left=left, z=centre / b, u=centre / left, image=image
        )

    def _measure(self, point: _Point) -> None:
        """Keep the best certified objectives; ``image`` belongs to ``b`` up to rounding."""
        primal = float(self._s @ np.maximum(-point.excess, 0.0))
        primal += 0.5 * self._strength * float(point.w @ point.w)
        if primal < self._primal:
            self._primal, self._best = primal, point.w
        half = 0.5 / self._strength * float(point.image @ point.image)
        self._dual = max(self._dual, float(point.b.sum()) - half)

    def _after(self, point: _Point) -> _Point | None:
        """Return the point after a step; None where the matrix or the step cannot be computed."""
        b, left, z, u = point.b, point.left, point.z, point.u
        with np.errstate(all="ignore"):
            scale = 1.0 / (z / b + u / left)
            matrix = self._rows.gram(scale)
        matrix[np.diag_indices_from(matrix)] += self._strength
        if not np.isfinite(matrix).all():
            return None
        try:
            factor = scipy.linalg.cho_factor(
                matrix, lower=True, overwrite_a=True, check_finite=False
            )
        except np.linalg.LinAlgError:
            return None
        lacking = self._strength * point.w - point.image

        def step(lower: F64 | float, upper: F64 | float) -> _Step:
            """Solve the linearised conditions ``z b = lower`` and ``u left = upper``."""
            wanted = lower / b - upper / left - point.excess
            right = self._rows.adjoint(self._y * (scale * wanted)) - lacking
            dw = scipy.linalg.cho_solve(factor, right, check_finite=False)
            forward = self._y * self._rows.forward(dw)
            db = scale * (wanted - forward)
            return _Step(
                w=dw,
                excess=forward,
                b=db,
                z=(lower - z * db) / b - z,
                u=(upper + u * db) / left - u,
            )

        with np.errstate(all="ignore"):
            mean, plain = point.mean(), step(0.0, 0.0)
            far = plain.longest(point)
            after = float(
                (z + far * plain.z) @ (b + far * plain.b)
                + (u + far * plain.u) @ (left - far * plain.b)
            ) / (2 * b.size)
            centre = (after / mean) ** 3 * mean
            final = step(centre - plain.z * plain.b, centre + plain.u * plain.b)
            far = SHORT * final.longest(point)
        if not (math.isfinite(far) and far > 0.0):
            return None
        b = b + far * final.b
        return _Point(
            w=point.w + far * final.w,
            excess=point.excess + far * final.excess,
            b=b,
            left=self._s - b,
            z=z + far * final.z,
            u=u + far * final.u,
            image=self._rows.adjoint(self._y * b),
        )
