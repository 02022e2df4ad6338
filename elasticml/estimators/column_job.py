"""Fit a sparse linear model as an elastic job on column-partitioned data."""

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
    """A model with its duality gap, in units of the mean over examples."""

    #: (d,)
    w: F64
    intercept: float
    gap: float
    rounds: int
    #: The gap reached the tolerance or the level of rounding errors.
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
    """Fit a model as a job on a cluster.

    Parameters
    ----------
    X : ndarray or sparse (n, d)
    y : ndarray (n,)
        -1 and +1 for two classes.
    weights : ndarray (n,), optional
        None if all are one.
    start : ndarray (d,), optional
        Initial coefficients.
    penalty : PrimalCoCoA
        Its ``tolerance`` is the gap to reach.
    rounds : int
        The most rounds.

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
