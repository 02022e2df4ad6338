"""Logistic regression by dual coordinate ascent: when it pays, and the fit."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from elasticml.algorithms.base import Parallel
from elasticml.estimators.backend_choice import stored_values
from elasticml.estimators.linear_solver import LinearProblem, LinearSolution, solve
from elasticml.estimators.row_table import RowTable

F64 = NDArray[np.float64]

#: Least number of stored values: then passes over the rows, each of which improves the model, pay
#: more than the matrix products of Newton steps.
VALUES_MIN: Final = 8_000_000
#: Largest mean of ``C s |x|^2``; with a weaker penalty the number of passes grows.
STRENGTH_MAX: Final = 64.0
#: The most passes; afterwards Newton steps continue from the model.
PASSES_MAX: Final = 30
#: Least tolerance; below it, Newton's quadratic convergence is faster.
TOL_MIN: Final = 1e-7
#: Rows in the sample for the mean.
_SAMPLE: Final = 4096


def pays(X: Any, weights: F64 | None, C: float) -> bool:
    """Return whether dual passes over these rows are expected to be faster than Newton steps.

    Parameters
    ----------
    X : ndarray or sparse (n, d)
    weights : ndarray (n,), optional
    C : float
        May be infinite.
    """
    if stored_values(X) < VALUES_MIN or not math.isfinite(C):
        return False
    step = max(1, X.shape[0] // _SAMPLE)
    some = X[::step]
    values = some.data if scipy.sparse.issparse(some) else some
    square = float(np.square(values, dtype=np.float64).sum()) / max(1, some.shape[0])
    mean = 1.0 if weights is None else float(weights.mean())
    return bool(C * mean * square <= STRENGTH_MAX)


def fit(
    X: Any, targets: F64, weights: F64 | None, pool: Parallel, *, C: float, tol: float, passes: int
) -> LinearSolution:
    """Fit in this process, without an intercept, in at most ``PASSES_MAX`` passes.

    Parameters
    ----------
    X : ndarray or sparse (n, d), float64 or float32
    targets : ndarray (n,)
        -1 and +1.
    passes : int
        A further limit of the passes.
    """
    problem = LinearProblem(
        loss="logistic",
        strength=1.0 / C,
        intercept_scaling=None,
        tol=tol,
        rounds=min(passes, PASSES_MAX),
        seed=0,
    )
    return solve(problem, RowTable(X, pool), targets, weights, None)
