"""Run a fit as an elastic job; importing what jobs need takes longer than most fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticml.data.source import Source
from elasticml.errors import JobFailedError
from elasticml.job import Job
from elasticml.jobs.algorithms import AnyAlgorithm
from elasticml.jobs.result import Result
from elasticml.jobs.settings import Stop


def run_job(
    algorithm: AnyAlgorithm,
    data: Source,
    client: Any,
    rounds: int,
    warm_start: Mapping[str, Any] | None = None,
) -> Result:
    """Train a model as a job on a cluster, in at most ``rounds`` rounds.

    Raises
    ------
    JobFailedError
        When the job fails, or ends without a model.
    """
    job = Job(
        algorithm,
        data,
        name="estimator",
        stop=Stop(rounds=rounds),
        warm_start=warm_start,
        evaluate=False,
    )
    result = job.run(client)
    if result.model is None:
        raise JobFailedError("the job ended before its first round", reason="no model")
    return result
