"""Minimise a smooth objective with a free intercept as an elastic job, by Newton steps."""

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
    """Minimise ``function`` over these rows as a job, and certify the model in this process.

    Parameters
    ----------
    rows : tuple
        X, targets, and weights or None.
    gap : float
        The gap to reach. The job stops by the norm of the gradient: the objective is
        ``l2``-strongly convex except in the intercept, so the gap is about ``|g|^2 / (2 l2)``. It
        is larger if the intercept is not optimal; then Newton steps here continue from the job's
        model.
    rounds : int
        The most rounds of the job and steps here, together.

    Raises
    ------
    JobFailedError
        When the job fails.
    """
    X, targets, weights = rows
    norm_at_zero = float(np.linalg.norm(function.at(np.zeros(function.n_model)).gradient))
    is_scaled = norm_at_zero > 0.0 and l2 > 0.0
    tolerance = math.sqrt(2.0 * l2 * gap) / norm_at_zero if is_scaled else gap
    algorithm = BatchGradient(
        loss=loss, l2=l2, optimizer="tron", intercept=intercept, tolerance=min(tolerance, 1.0)
    )
    result = run_job(algorithm, from_arrays(X, targets, weights), client, rounds)
    model = [np.ravel(result.arrays["coef"])]
    if intercept:
        model.append(np.ravel(result.arrays["intercept"]))
    point = function.at(np.concatenate(model))
    used = int(result.summary.get("rounds", 0))
    if math.isnan(point.gap):
        return Minimum(point=point, steps=used, converged=bool(result.summary.get("converged")))
    end = minimise(function, point.w, gap=gap, steps=max(rounds - used, 0))
    return Minimum(
        point=end.point,
        steps=used + end.steps,
        converged=end.converged,
    )
