"""Quantile regression with an L1 penalty, as a linear program, by an interior-point method.

    minimise  sum_i s_i rho(y_i - z_i) + alpha sum_j |w_j|,   z = X w + b,

``rho(r) = q r`` for r >= 0, else ``(q - 1) r``. A penalty is the loss of one more row: ``|w_j|`` is
twice the quantile loss for q = 1/2 of the target 0 at the margin w_j. The dual is

    maximise  sum_i a_i y_i  over  low_i <= a_i <= high_i  with  Z' a = 0,

where Z has all rows. It starts feasible and stays so up to rounding, hence every step has a
duality gap: ``sum_i loss_i(w) - sum_i a_i y_i``.

Source: Koenker and Portnoy (1997), the Frisch-Newton method; Mehrotra's corrector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy.linalg
import scipy.sparse

from elasticml.arrays import F64

#: Share of the way to the boundary that a step takes at most.
_BOUNDARY: Final = 0.9995
#: A diagonal is raised by this share of its largest entry if the matrix is singular.
_RIDGE: Final = 1e-14


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileFit:
    """The model with the lowest objective, with the best lower bound."""

    #: (d,)
    w: F64
    intercept: float
    value: float
    #: Objective minus lower bound, in units of the sum.
    gap: float
    steps: int


class QuantileProgram:
    """The program of the module docstring.

    Parameters
    ----------
    X : ndarray or CSR (n, d)
    y, weights : ndarray (n,)
        Weights are above 0.
    quantile : float, between 0 and 1
    alpha : float, not negative
        Penalty in units of the sum.
    intercept : bool
        Fit an unpenalised intercept.
    """

    def __init__(
        self, X: Any, y: F64, weights: F64, *, quantile: float, alpha: float, intercept: bool
    ) -> None:
        self._X, self._intercept = X, intercept
        n, self._d = X.shape
        self._n_penalties = self._d if alpha > 0.0 else 0
        penalties = np.full(self._n_penalties, alpha)
        self._y = np.concatenate([y, np.zeros(self._n_penalties)])
        self._low = np.concatenate([(quantile - 1.0) * weights, -penalties])
        self._high = np.concatenate([quantile * weights, penalties])
        self._n = n

    def solve(self, gap: float, steps: int) -> QuantileFit:
        """Minimise until the gap is at most ``gap`` or after this number of steps."""
        w = self._start()
        a, r = np.zeros(self._y.size), self._y - self._forward(w)
        size = max(float(np.abs(r).mean()), 1e-12)
        p, n = np.maximum(r, 0.0) + size, np.maximum(-r, 0.0) + size
        best = QuantileFit(w=w, intercept=0.0, value=np.inf, gap=np.inf, steps=0)
        bound = -np.inf
        for step in range(steps + 1):
            r = self._y - self._forward(w)
            value = float(np.maximum(self._high * r, self._low * r).sum())
            bound = max(bound, float(a @ self._y))
            if value < best.value:
                intercept = float(w[-1]) if self._intercept else 0.0
                best = QuantileFit(
                    w=w[: self._d].copy(), intercept=intercept, value=value, gap=0.0, steps=step
                )
            is_close = best.value - bound <= gap
            if is_close or step == steps:
                break
            moved = self._step(w, a, p, n, r)
            if moved is None:
                break
            w, a, p, n = moved
        return QuantileFit(
            w=best.w,
            intercept=best.intercept,
            value=best.value,
            gap=max(best.value - bound, 0.0),
            steps=step,
        )

    def _start(self) -> F64:
        """Return the least-squares model of the rows, slightly regularised."""
        ones = np.ones(self._y.size)
        G = self._gram(ones)
        G[np.diag_indices_from(G)] += 1e-8 * max(float(np.diag(G).max(initial=0.0)), 1e-300)
        w: F64 = scipy.linalg.lstsq(G, self._adjoint(self._y))[0]
        return w

    def _step(self, w: F64, a: F64, p: F64, n: F64, r: F64) -> tuple[F64, F64, F64, F64] | None:
        """Take Mehrotra's predictor and corrector; None if the system cannot be solved."""
        above, below = self._high - a, a - self._low
        theta = 1.0 / (p / above + n / below)
        solve = self._solver(self._gram(theta))
        if solve is None:
            return None
        off_dual, off_primal = r - p + n, -self._adjoint(a)
        mu = float(p @ above + n @ below) / (2 * a.size)

        def direction(up: F64, down: F64) -> tuple[F64, F64, F64, F64]:
            right = off_dual - up / above + down / below
            dw = solve(self._adjoint(theta * right) - off_primal)
            da = theta * (right - self._forward(dw))
            return dw, da, (up + p * da) / above, (down - n * da) / below

        _, da, dp, dn = direction(-p * above, -n * below)
        t_dual = min(_longest(above, -da), _longest(below, da))
        t_primal = min(_longest(p, dp), _longest(n, dn))
        after = float(
            (p + t_primal * dp) @ (above - t_dual * da)
            + (n + t_primal * dn) @ (below + t_dual * da)
        ) / (2 * a.size)
        centre = mu * (after / mu) ** 3
        dw, da, dp, dn = direction(centre - p * above + dp * da, centre - n * below - dn * da)
        t_dual = _BOUNDARY * min(_longest(above, -da), _longest(below, da))
        t_primal = _BOUNDARY * min(_longest(p, dp), _longest(n, dn))
        if not np.all(np.isfinite(dw)):
            return None
        t_dual, t_primal = min(t_dual, 1.0), min(t_primal, 1.0)
        return w + t_primal * dw, a + t_dual * da, p + t_primal * dp, n + t_primal * dn

    def _forward(self, w: F64) -> F64:
        margins = np.asarray(self._X @ w[: self._d], np.float64)
        if self._intercept:
            margins = margins + w[-1]
        return np.concatenate([margins, w[: self._n_penalties]])

    def _adjoint(self, c: F64) -> F64:
        image = np.zeros(self._d + self._intercept)
        image[: self._d] = self._X.T @ c[: self._n]
        image[: self._n_penalties] += c[self._n :]
        if self._intercept:
            image[-1] = c[: self._n].sum()
        return image

    def _gram(self, theta: F64) -> F64:
        """Return ``Z' diag(theta) Z``, (n_model, n_model)."""
        d, own = self._d, theta[: self._n]
        G = np.zeros((d + self._intercept, d + self._intercept))
        if scipy.sparse.issparse(self._X):
            G[:d, :d] = (self._X.T @ self._X.multiply(own[:, None]).tocsr()).toarray()
        else:
            G[:d, :d] = self._X.T @ (self._X * own[:, None])
        rows = np.arange(self._n_penalties)
        G[rows, rows] += theta[self._n :]
        if self._intercept:
            G[-1, :d] = G[:d, -1] = self._X.T @ own
            G[-1, -1] = own.sum()
        return G

    def _solver(self, G: F64) -> Any:
        """Return a function that solves systems with G; None if it is not finite."""
        if not np.all(np.isfinite(G)):
            return None
        # Scaled to a unit diagonal: columns of unequal size, and weights that span many decades.
        scale = 1.0 / np.sqrt(np.maximum(np.diag(G), 1e-300))
        scaled = scale[:, None] * G * scale
        for ridge in (0.0, _RIDGE, 1e-10, 1e-6):
            raised = scaled + ridge * np.eye(len(G))
            try:
                factor = scipy.linalg.cho_factor(raised)
            except np.linalg.LinAlgError:
                continue
            return lambda b, factor=factor: scale * scipy.linalg.cho_solve(factor, scale * b)
        return None


def _longest(value: F64, change: F64) -> float:
    """Return the step, at most 1 / 0.9995, at which the first value becomes 0."""
    falling = change < 0.0
    if not falling.any():
        return 1.0 / _BOUNDARY
    return min(float(np.min(value[falling] / -change[falling])), 1.0 / _BOUNDARY)
