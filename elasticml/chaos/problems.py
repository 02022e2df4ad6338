"""The data of fault plans, and the true objective of a model, computed with numpy from all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from elasticml.algorithms.base import Arrays
from elasticml.arrays import F64
from elasticml.data.readers.arrays import ArraySource, from_arrays


@cache
def _rows(rows: int, columns: int, seed: int, is_real: bool) -> tuple[F64, F64]:
    """Draw two noisy classes, or a noisy linear target, around three centres."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns)) / np.sqrt(columns)
    X += rng.standard_normal((3, columns))[rng.integers(0, 3, rows)]
    y = X @ rng.standard_normal(columns) + 0.3 * rng.standard_normal(rows)
    return X, y if is_real else np.sign(y)


def rows_of(algorithm: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[F64, F64]:
    """Return X (n, d) and y (n,) for an algorithm."""
    is_real = algorithm.get("loss") == "squared"
    return _rows(data["rows"], data["columns"], data["seed"], is_real)


def source_of(algorithm: Mapping[str, Any], data: Mapping[str, Any]) -> ArraySource:
    """Return the rows as a source; by columns for primal CoCoA, in 32 bits for networks."""
    X, y = rows_of(algorithm, data)
    if algorithm["name"] == "local_sgd":
        return from_arrays(X.astype(np.float32), (y > 0).astype(np.float64))
    return from_arrays(X, y, by="columns" if algorithm["name"] == "primal_cocoa" else "rows")


_LOSSES: Mapping[str, Callable[[F64, F64], F64]] = {
    "hinge": lambda z, y: np.maximum(1.0 - y * z, 0.0),
    "squared_hinge": lambda z, y: np.maximum(1.0 - y * z, 0.0) ** 2,
    "logistic": lambda z, y: np.logaddexp(0.0, -y * z),
    "squared": lambda z, y: 0.5 * (z - y) ** 2,
}


def true_objective(algorithm: Mapping[str, Any], data: Mapping[str, Any], model: Arrays) -> float:
    """Return ``mean_i loss_i + l1 |w|_1 + l2/2 |w|^2`` over all rows, for a linear model.

    The cross-entropy of a network that is one linear layer with two outputs is the logistic loss of
    their difference.
    """
    X, y = rows_of(algorithm, data)
    if algorithm["name"] == "local_sgd":
        w, intercept = np.diff(model["weight"], axis=0)[0], np.diff(model["bias"])[0]
    else:
        w = np.asarray(model["coef"], dtype=np.float64).reshape(-1)
        intercept = np.ravel(model.get("intercept", 0.0))[0]
    z = X @ w + float(intercept)
    penalty = algorithm.get("l1", 0.0) * np.abs(w).sum() + 0.5 * algorithm.get("l2", 0.0) * w @ w
    return float(_LOSSES[algorithm.get("loss", "logistic")](z, y).mean() + penalty)
