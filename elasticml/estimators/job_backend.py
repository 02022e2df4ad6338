"""Run an estimator's fit as an elastic job on a Dask cluster.

Import this inside functions only: it loads everything that jobs need, which takes longer than most
fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np

from elasticml.algorithms.linear.coordinate_descent_kernels import Penalty
from elasticml.algorithms.linear.linear_objective import LinearObjective
from elasticml.algorithms.linear.newton import Minimum, minimise
from elasticml.algorithms.linear.softmax_objective import SoftmaxObjective
from elasticml.algorithms.linear.working_sets import SparseFit
from elasticml.arrays import F64
from elasticml.data.readers.arrays import from_arrays
from elasticml.data.source import Source
from elasticml.errors import JobFailedError
from elasticml.job import Job
from elasticml.jobs.follow import follow
from elasticml.jobs.result import Result
from elasticml.specification.algorithms import AnyAlgorithm, BatchGradient, PrimalCoCoA
from elasticml.specification.sections import Stop
from elasticml.story.summary import summary_from_json


def run_job(
    algorithm: AnyAlgorithm,
    data: Source,
    client: Any,
    rounds: int,
    warm_start: Mapping[str, Any] | None = None,
    gap: float | None = None,
) -> Result:
    """Train a model as a job on a cluster, in at most ``rounds`` rounds or to a certified gap.

    Raises
    ------
    JobFailedError
        When the job fails, or ends without a model.
    """
    job = Job(
        algorithm,
        data,
        name="estimator",
        stop=Stop(rounds=rounds, gap=gap),
        warm_start=warm_start,
        # Rounds with stand-ins would use up max_iter while a killed worker comes back.
        absent="reload",
        evaluate=False,
    )
    # The estimator itself warns of a model that misses its own tolerance.
    result = follow(job.start(client), cancels=True)
    if result.model is None:
        raise JobFailedError("the job ended before its first round", reason="no model")
    return result


# Fit a sparse linear model as an elastic job on column-partitioned data.


def fit_columns_as_job(
    data: Source,
    start: F64 | None,
    client: Any,
    penalty: Penalty,
    total: float,
    *,
    loss: Literal["squared", "logistic", "squared_hinge"] = "squared",
    intercept: bool,
    gap: float,
    rounds: int,
    seed: int | None = None,
) -> SparseFit:
    """Fit a model as a job on a cluster.

    Parameters
    ----------
    data : Source
        By columns; targets are -1 and +1 for two classes.
    start : ndarray (d,), optional
        Initial coefficients.
    penalty : Penalty
    total : float
        The sum of the weights, if ``penalty`` and ``gap`` are in units of the sum over examples;
        1 if they are in units of the mean.
    gap : float
        The gap to reach.
    rounds : int
        The most rounds.

    Raises
    ------
    JobFailedError
        When the job fails.
    """
    settings = PrimalCoCoA(
        loss=loss,
        l1=penalty.a1 / total,
        l2=penalty.a2 / total,
        positive=penalty.positive,
        intercept=intercept,
        tolerance=gap / total,
        seed=seed,
    )
    warm_start = None if start is None else {"coef": start, "intercept": np.zeros(1)}
    result = run_job(settings, data, client, rounds, warm_start)
    summary = summary_from_json(result.summary)
    return SparseFit(
        w=np.ravel(result.arrays["coef"]).copy(),
        b=float(result.arrays["intercept"][0]),
        gap=math.nan if summary.gap is None else summary.gap * total,
        steps=len(result.history) if summary.rounds is None else summary.rounds,
        converged=bool(summary.converged),
    )


def model_vector(arrays: Mapping[str, Any], intercept: bool) -> F64:
    """Return a job's model as one vector: each class's coefficients, then its intercept."""
    parts = [arrays["coef"], *([np.reshape(arrays["intercept"], (-1, 1))] if intercept else [])]
    return np.concatenate(parts, axis=1, dtype=np.float64).ravel()


# Minimise a smooth objective with a free intercept as an elastic job, by Newton steps.


def fit_primal_as_job(
    function: LinearObjective | SoftmaxObjective,
    rows: tuple[Any, F64, F64 | None],
    client: Any,
    *,
    gap: float,
    rounds: int,
) -> Minimum:
    """Minimise ``function`` over these rows as a job, and certify the model in this process.

    Parameters
    ----------
    rows : tuple
        X, targets (of several classes their numbers), and weights or None.
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
    norm_at_zero = float(np.linalg.norm(function.at(function.zero()).gradient))
    is_scaled = norm_at_zero > 0.0 and function.l2 > 0.0
    tolerance = math.sqrt(2.0 * function.l2 * gap) / norm_at_zero if is_scaled else gap
    algorithm = BatchGradient(
        loss=cast(Any, function.loss),
        l2=function.l2,
        optimizer="auto",
        intercept=function.has_intercept,
        scale="standard",
        penalise="raw",
        tolerance=min(tolerance, 1.0),
        offset=getattr(function, "fixed", None),
    )
    result = run_job(algorithm, from_arrays(X, targets, weights), client, rounds)
    point = function.at(model_vector(result.arrays, function.has_intercept))
    summary = summary_from_json(result.summary)
    used = summary.rounds or 0
    if math.isnan(point.gap):
        return Minimum(point=point, steps=used, converged=bool(summary.converged))
    end = minimise(function, point.w, gap=gap, steps=max(rounds - used, 0))
    return Minimum(
        point=end.point,
        steps=used + end.steps,
        converged=end.converged,
    )
