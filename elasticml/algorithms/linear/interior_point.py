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

from elasticml.algorithms.linear.design import Design
from elasticml.algorithms.linear.fit import Fit
from elasticml.algorithms.linear.problem import Problem
from elasticml.arrays import F64

#: Columns up to which the method is considered.
COLUMNS_MAX: Final = 500
#: Steps after which the method gives up; 10 to 50 are usual.
STEPS_MAX: Final = 100
#: Products of dual variables and multipliers at the first point, as a share of the largest weight.
CENTRE: Final = 0.5
#: Share of the step to the nearest bound.
SHORT: Final = 0.99
#: Factor by which the gap must fall within LOOK steps.
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


class _Point(NamedTuple):
    """Model, dual variables and multipliers; all but w and ``excess`` are positive."""

    w: F64
    #: Margins minus 1.
    excess: F64
    #: (2, n): dual variables, below the weights, and what is left to these.
    duals: F64
    #: (2, n): multipliers of both bounds; ``excess`` is their difference at a solution.
    multipliers: F64
    #: ``sum b y x``, with b the dual variables.
    image: F64

    def mean(self) -> float:
        """Return the mean product of a dual variable and its multiplier."""
        return float((self.multipliers * self.duals).mean())


class _Step(NamedTuple):
    w: F64
    excess: F64
    duals: F64
    multipliers: F64

    def longest(self, point: _Point) -> float:
        """Return the longest step, up to 1, at which nothing is negative."""
        least = min(
            float((self.duals / point.duals).min()),
            float((self.multipliers / point.multipliers).min()),
        )
        return 1.0 if least >= -1.0 else -1.0 / least


class InteriorPoint:
    """The method for one set of targets, see the module docstring.

    Parameters
    ----------
    rows : Design
        n rows, in float64.
    targets : ndarray (n,)
        -1 and +1.
    weights : ndarray (n,), optional
        Above 0; None for ones.
    problem : Problem
    """

    def __init__(self, rows: Design, targets: F64, weights: F64 | None, problem: Problem) -> None:
        self._rows, self._y = rows.bordered(problem.intercept), targets
        self._s = np.ones(rows.n) if weights is None else weights
        self._strength = problem.l2 * float(self._s.sum())
        self._best: F64 = np.zeros(self._rows.n_model)
        self._primal, self._dual = math.inf, -math.inf

    def solve(self, gap: float, w: F64) -> Fit:
        """Step until the gap is at most ``gap``, or further steps hardly reduce it.

        Parameters
        ----------
        w : ndarray (d,) or, with a constant column, (d + 1,)
            First model.
        """
        point, gaps = self._first(w), []
        for done in range(STEPS_MAX + 1):
            self._measure(point)
            found = max(self._primal - self._dual, 0.0)
            gaps.append(found)
            is_stuck = done >= LOOK and found * FALL > gaps[-1 - LOOK]
            following = None if found <= gap or is_stuck else self._after(point)
            if following is None:
                break
            point = following
        return Fit(w=self._best, gap=found, steps=done, converged=found <= gap)

    def _first(self, w: F64) -> _Point:
        s, excess = self._s, self._y * self._rows.forward(w) - 1.0
        centre = CENTRE * float(s.max())
        # Both products of the conditions are alike: the root of a quadratic equation in b.
        b = 2.0 * centre * s / (excess * s + 2.0 * centre + np.hypot(excess * s, 2.0 * centre))
        duals = np.stack([b, s - b])
        image = self._rows.adjoint(self._y * b)
        return _Point(w, excess, duals, centre / duals, image)

    def _measure(self, point: _Point) -> None:
        """Keep the best certified objectives; ``image`` belongs to ``b`` up to rounding."""
        primal = float(self._s @ np.maximum(-point.excess, 0.0))
        primal += 0.5 * self._strength * float(point.w @ point.w)
        if primal < self._primal:
            self._primal, self._best = primal, point.w
        half = 0.5 / self._strength * float(point.image @ point.image)
        self._dual = max(self._dual, float(point.duals[0].sum()) - half)

    def _after(self, point: _Point) -> _Point | None:
        """Return the point after a step; None where the matrix or the step cannot be computed."""
        duals, multipliers = point.duals, point.multipliers
        with np.errstate(all="ignore"):
            scale = 1.0 / (multipliers / duals).sum(axis=0)
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

        def step(products: F64 | float) -> _Step:
            """Solve the linearised conditions that multipliers have these products with duals."""
            goals = products / duals
            wanted = goals[0] - goals[1] - point.excess
            right = self._rows.adjoint(self._y * (scale * wanted)) - lacking
            dw = scipy.linalg.cho_solve(factor, right, check_finite=False)
            forward = self._y * self._rows.forward(dw)
            db = scale * (wanted - forward)
            change = np.stack([db, -db])
            return _Step(dw, forward, change, goals - multipliers * change / duals - multipliers)

        with np.errstate(all="ignore"):
            mean, plain = point.mean(), step(0.0)
            far = plain.longest(point)
            after = (multipliers + far * plain.multipliers) * (duals + far * plain.duals)
            centre = (float(after.mean()) / mean) ** 3 * mean
            final = step(centre - plain.multipliers * plain.duals)
            far = SHORT * final.longest(point)
        if not (math.isfinite(far) and far > 0.0):
            return None
        b = duals[0] + far * final.duals[0]
        return _Point(
            w=point.w + far * final.w,
            excess=point.excess + far * final.excess,
            duals=np.stack([b, self._s - b]),
            multipliers=multipliers + far * final.multipliers,
            image=self._rows.adjoint(self._y * b),
        )
