"""Linear problems with known optima, for tests: regularised least squares and logistic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearProblem:
    """``minimise  mean_i loss(y_i, x_i @ w) + l2 / 2 * |w|^2``, with its solution.

    ``values`` (n, d) float64, dense, with exact zeros if the problem is sparse; ``labels`` (n,);
    ``optimum`` (d,), and the ``objective`` at it.
    """

    values: NDArray[np.float64]
    labels: NDArray[np.float64]
    l2: float
    optimum: NDArray[np.float64]
    objective: float


def make_linear(
    n: int,
    d: int,
    seed: int = 0,
    *,
    loss: Literal["squared", "logistic"] = "squared",
    l2: float = 0.1,
    density: float = 1.0,
) -> LinearProblem:
    """Generate a small problem whose optimum is known in closed form.

    ``squared`` (``(z - y)^2 / 2``): Gaussian rows and noisy labels; the optimum solves the normal
    equations. ``logistic``: the rows are orthogonal, with lengths that make a chosen dual solution
    ``a_i in (0, 1/2)`` optimal: with ``w = sum_i a_i y_i x_i / (n l2)`` stationarity requires
    ``y_i x_i @ w = log((1 - a_i) / a_i)``, that is ``|x_i|^2 = n l2 log((1 - a_i) / a_i) / a_i``.

    Parameters
    ----------
    n, d : int
        Rows and columns; ``logistic`` requires ``n <= d``.
    l2 : float
        Positive.
    density : float
        Probability that a value is nonzero; only for ``squared``.

    Raises
    ------
    ValueError
        When a setting is out of range.

    Notes
    -----
    Error: rounding, about 1e-14 relative for well-conditioned sizes below a few hundred.
    """
    if n < 1 or d < 1 or not l2 > 0 or not 0 < density <= 1:
        raise ValueError(
            f"n={n}, d={d}, l2={l2}, density={density}; wanted n, d >= 1, l2 > 0, 0 < density <= 1"
        )
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    if loss == "squared":
        return _least_squares(rng, n, d, l2, density)
    if n > d or density != 1.0:
        raise ValueError(f"logistic needs n <= d and density 1, got n={n}, d={d}, {density}")
    return _logistic(rng, n, d, l2)


def _least_squares(
    rng: np.random.Generator, n: int, d: int, l2: float, density: float
) -> LinearProblem:
    values = rng.standard_normal((n, d)) * (rng.random((n, d)) < density)
    labels = values @ rng.standard_normal(d) + 0.5 * rng.standard_normal(n)
    normal = values.T @ values / n + l2 * np.eye(d)
    w: NDArray[np.float64] = np.linalg.solve(normal, values.T @ labels / n).astype(np.float64)
    residual = values @ w - labels
    objective = float(residual @ residual) / (2 * n) + l2 / 2 * float(w @ w)
    return LinearProblem(values=values, labels=labels, l2=l2, optimum=w, objective=objective)


def _logistic(rng: np.random.Generator, n: int, d: int, l2: float) -> LinearProblem:
    labels = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    dual = rng.uniform(0.05, 0.45, n)
    margin = np.log1p(-dual) - np.log(dual)
    directions = np.linalg.qr(rng.standard_normal((d, n)))[0].T
    values = np.sqrt(n * l2 * margin / dual)[:, None] * directions
    w = values.T @ (dual * labels) / (n * l2)
    objective = float(np.mean(np.log1p(np.exp(-margin)))) + l2 / 2 * float(w @ w)
    return LinearProblem(values=values, labels=labels, l2=l2, optimum=w, objective=objective)
