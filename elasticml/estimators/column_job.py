"""A sparse linear model for an estimator, as an elastic job whose members own columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.data.arrays import from_arrays
from elasticml.estimators.as_job import run_job
from elasticml.jobs.algorithms import PrimalCoCoA

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A model, and how good it is; in units of the mean over examples."""

    #: (d,)
    w: F64
    intercept: float
    gap: float
    rounds: int
    #: The gap was small enough, or nothing but rounding was left of it.
    converged: bool


def fit_as_job(
    X: Any,
    y: F64,
    weights: F64 | None,
    start: F64 | None,
    client: Any,
    *,
    penalty: PrimalCoCoA,
    rounds: int,
) -> Found:
    """Have a cluster's members fit a model.

    Parameters
    ----------
    X : ndarray or sparse (n, d)
    y : ndarray (n,)
        Of two classes -1 and +1.
    weights : ndarray (n,), optional
        None where all are one.
    start : ndarray (d,), optional
        Coefficients to begin with.
    penalty : PrimalCoCoA
        With the gap that is wanted as its ``tolerance``.
    rounds : int
        At most.

    Raises
    ------
    JobFailedError
        When the job fails.
    """
    warm_start = None if start is None else {"coef": start, "intercept": np.zeros(1)}
    data = from_arrays(X, y, weights, by="columns")
    result = run_job(penalty, data, client, rounds, warm_start)
    return Found(
        w=np.ravel(result.arrays["coef"]).copy(),
        intercept=float(result.arrays["intercept"][0]),
        gap=float(result.summary["gap"]),
        rounds=int(result.summary.get("rounds", len(result.history))),
        converged=bool(result.summary.get("converged")),
    )
