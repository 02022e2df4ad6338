"""A smooth objective with a free intercept as an elastic job: Newton steps on members."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.linear_function import LinearFunction
from elasticml.algorithms.newton import Minimum, minimise
from elasticml.data.arrays import from_arrays
from elasticml.estimators.as_job import run_job
from elasticml.jobs.algorithms import BatchGradient

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
        but the intercept, so that the gap is about ``|g|^2 / (2 l2)``. It may be more, where the
        intercept is not at its best: then steps in this process go on from the members' model.
    rounds : int
        At most, of members, and of steps here as many as members left.

    Raises
    ------
    JobFailedError
        When the job fails.
    """
    X, targets, weights = rows
    first = float(np.linalg.norm(function.at(np.zeros(function.n_model)).gradient))
    share = math.sqrt(2.0 * l2 * gap) / first if first > 0.0 and l2 > 0.0 else gap
    algorithm = BatchGradient(
        loss=loss, l2=l2, optimizer="tron", intercept=intercept, tolerance=min(share, 1.0)
    )
    result = run_job(algorithm, from_arrays(X, targets, weights), client, rounds)
    found = [np.ravel(result.arrays["coef"])]
    if intercept:
        found.append(np.ravel(result.arrays["intercept"]))
    point = function.at(np.concatenate(found))
    used = int(result.summary.get("rounds", 0))
    if math.isnan(point.gap):
        return Minimum(point=point, steps=used, converged=bool(result.summary.get("converged")))
    end = minimise(function, point.w, gap=gap, steps=max(rounds - used, 0))
    return Minimum(
        point=end.point,
        steps=used + end.steps,
        converged=end.converged,
    )
