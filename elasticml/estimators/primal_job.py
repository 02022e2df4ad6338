"""A smooth objective with a free intercept as an elastic job: Newton steps on members."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.linear_function import LinearFunction
from elasticml.algorithms.newton import Minimum
from elasticml.data.arrays import from_arrays
from elasticml.errors import JobFailedError
from elasticml.job import Job
from elasticml.jobs.algorithms import BatchGradient
from elasticml.jobs.settings import Stop

F64 = NDArray[np.float64]


def train_job(
    function: LinearFunction,
    rows: tuple[Any, F64, F64 | None],
    client: Any,
    *,
    loss: Any,
    l2: float,
    intercept: bool,
    gap: float,
    rounds: int,
) -> Minimum:
    """Have members minimise what ``function`` is over these rows, and certify the model here.

    Parameters
    ----------
    rows : tuple
        X, targets, and weights or None.
    gap : float
        Wanted. Members stop by the gradient's norm: the objective is ``l2``-strongly convex in all
        but the intercept, so that the gap is about ``|g|^2 / (2 l2)`` at most.

    Raises
    ------
    JobFailedError
        When the job fails.
    """
    X, targets, weights = rows
    first = float(np.linalg.norm(function.at(np.zeros(function.n_model)).gradient))
    share = math.sqrt(2.0 * l2 * gap) / first if first > 0.0 and l2 > 0.0 else gap
    job = Job(
        BatchGradient(
            loss=loss, l2=l2, optimizer="tron", intercept=intercept, tolerance=min(share, 1.0)
        ),
        from_arrays(X, targets, weights),
        name="estimator",
        stop=Stop(rounds=rounds),
        evaluate=False,
    )
    result = job.run(client)
    if result.model is None:
        raise JobFailedError("the job ended before its first round", reason="no model")
    found = [np.ravel(result.arrays["coef"])]
    if intercept:
        found.append(np.ravel(result.arrays["intercept"]))
    point = function.at(np.concatenate(found))
    done = bool(result.summary.get("converged"))
    return Minimum(
        point=point,
        steps=int(result.summary.get("rounds", 0)),
        converged=done or point.gap <= gap,
    )
