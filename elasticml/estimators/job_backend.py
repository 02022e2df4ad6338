"""Run an estimator's fit as an elastic job on a Dask cluster.

Import this inside functions only: it loads everything that jobs need, which takes longer than most
fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import numpy as np

from elasticml.algorithms.linear.coordinate_descent_kernels import Penalty
from elasticml.algorithms.linear.newton import ROUNDED, Minimum, Point
from elasticml.algorithms.linear.working_sets import SparseFit
from elasticml.arrays import F64
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


# Minimise a smooth objective with a free intercept by jobs.

#: Jobs that are run to reach a gap, each with a smaller tolerance.
_JOBS_MAX: Final = 3


def minimise_by_jobs(
    certified: Callable[[F64], Point],
    zero: F64,
    data: Source,
    client: Any,
    *,
    loss: str,
    l2: float,
    intercept: bool,
    fixed: int | None,
    gap: float,
    rounds: int,
) -> Minimum:
    """Minimise a loss with an L2 penalty by jobs, and certify the model.

    Parameters
    ----------
    certified : callable
        Maps a model, (n_model,), to its value, gradient and gap.
    zero : ndarray (n_model,)
        The model without features.
    fixed : int, optional
        Number of the offset's column, whose coefficient is 1.
    gap : float
        The gap to reach, in units of the mean. A job stops by the norm of the gradient, which
        bounds the gap up to the intercept; if the gap is larger, it is run again.
    rounds : int
        The most rounds.

    Raises
    ------
    JobFailedError
        When a job fails.
    """
    norm = float(np.linalg.norm(certified(zero).gradient))
    is_scaled = norm > 0.0 and l2 > 0.0
    tolerance = 0.5 * math.sqrt(2.0 * l2 * gap) / norm if is_scaled else gap
    used = 0
    for _ in range(_JOBS_MAX):
        algorithm = BatchGradient(
            loss=loss,
            l2=l2,
            optimizer="auto",
            intercept=intercept,
            scale="standard",
            penalise="raw",
            tolerance=min(tolerance, 1.0),
            offset=fixed,
        )
        result = run_job(algorithm, data, client, rounds - used)
        summary = summary_from_json(result.summary)
        used += summary.rounds or 0
        parts = [result.arrays["coef"]]
        if intercept:
            parts.append(np.reshape(result.arrays["intercept"], (-1, 1)))
        # Each class's coefficients, then its intercept.
        point = certified(np.concatenate(parts, axis=1, dtype=np.float64).ravel())
        if math.isnan(point.gap):
            return Minimum(point=point, steps=used, converged=bool(summary.converged))
        if point.gap <= max(gap, ROUNDED * point.value):
            return Minimum(point=point, steps=used, converged=True)
        if used >= rounds:
            break
        tolerance *= min(0.1, 0.5 * math.sqrt(gap / point.gap))
    return Minimum(point=point, steps=used, converged=False)
