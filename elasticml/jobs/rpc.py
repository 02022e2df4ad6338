"""Decode the scheduler's RPC replies into arrays, dataset statistics and exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.data.dataset_stats import DatasetStats
from elasticml.errors import error_from_dict

Arrays = dict[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """A job's results so far, as the scheduler stores them."""

    state: str
    #: The model's arrays; empty before the first round.
    arrays: Arrays
    #: Models at the start of the rounds that the job evaluates.
    snapshots: dict[int, Arrays]
    history: list[dict[str, Any]]
    summary: dict[str, Any]
    facts: DatasetStats | None
    #: The error that made the job fail.
    error: Mapping[str, Any] | None


def unwrap_reply(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a reply, or raise the error that it holds."""
    error = answer.get("error")
    if error is not None and "state" not in answer:
        raise error_from_dict(dict(error))
    return answer


def read_outcome(answer: Mapping[str, Any]) -> JobOutcome:
    """Decode the reply to ``em_result``; arrays are float64 and own their memory."""
    facts = answer.get("facts")
    return JobOutcome(
        state=answer["state"],
        arrays=_arrays(answer["arrays"]),
        snapshots={int(key): _arrays(value) for key, value in answer["snapshots"].items()},
        history=[dict(row) for row in answer["history"]],
        summary=dict(answer["summary"]),
        facts=None if facts is None else DatasetStats.from_json(facts),
        error=answer.get("error"),
    )


def _arrays(named: Mapping[str, Any]) -> Arrays:
    return {
        name: np.frombuffer(value["data"], dtype="<f8").reshape(value["shape"]).copy()
        for name, value in named.items()
    }
