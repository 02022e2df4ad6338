"""The summary of a run: ``summary.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticml.story.json_fields import OPTIONAL, JsonFields, fields_from_json


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberCounts(JsonFields):
    """Participating members."""

    start: int | None
    min: int | None
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary(JsonFields):
    """The result of a run in numbers; a field is None if it is unknown."""

    name: str | None
    job: str | None
    rounds: int | None
    #: Duration of the job.
    seconds: float | None
    #: Over all examples.
    objective: float | None
    objective_missing_because: str | None
    #: The objective of a single member's model, beside that of the mean of all.
    member_objective: float | None = field(default=None, metadata=OPTIONAL)
    gap: float | None
    #: The gap is only an upper bound, since examples were absent.
    gap_is_bound: bool | None
    converged: bool | None
    stopped_by: str | None
    #: How far the model is from the job's tolerance or target, why, and what to do; None if it
    #: reached it, or the job had none.
    unconverged: str | None = field(default=None, metadata=OPTIONAL)
    examples: int | None
    features: int | None
    members: MemberCounts | None
    #: Seconds of participation, summed over members.
    container_seconds: float | None
    holders: Any
    #: Number of decisions of each policy.
    decisions: Mapping[str, int] | None
    lost: int | None
    returned: int | None
    #: Members that a policy released, or whose workers were retired, without a chunk.
    retired: int | None
    attempts: int | None
    stand_in_rounds: int | None
    cuda_rounds: int | None
    chunks_moved: int | None
    moved_bytes: int | None
    #: Bytes of chunk bodies that members parsed, not taken from their hosts' caches; all attempts.
    parsed_bytes: int | None = field(default=None, metadata=OPTIONAL)
    #: The round that starts with the model, if it is that of a checkpoint, or better than the last.
    model_round: int | None = field(default=None, metadata=OPTIONAL)
    #: Of a simulation.
    simulated: bool | None = field(default=None, metadata=OPTIONAL)
    #: What has solved the problem of ``linear``.
    engine: str | None = field(default=None, metadata=OPTIONAL)
    #: What was found while the data were loaded.
    notes: tuple[str, ...] | None = field(default=None, metadata=OPTIONAL)
    #: Metrics on the training and the test data.
    train: Mapping[str, Any] | None = field(default=None, metadata=OPTIONAL)
    test: Mapping[str, Any] | None = field(default=None, metadata=OPTIONAL)
    #: The validation while training: metric, score and round of the model, rows, number of scores.
    validation: Mapping[str, Any] | None = field(default=None, metadata=OPTIONAL)
    error: str | None = field(default=None, metadata=OPTIONAL)
    #: Why the run has no normal end.
    reason: str | None = field(default=None, metadata=OPTIONAL)
    #: What the cluster took (``elasticml/report/preemptions.py``).
    preemptions: Mapping[str, Any] | None = field(default=None, metadata=OPTIONAL)
    run_dir: str | None = field(default=None, metadata=OPTIONAL)
    #: Of the run directory (``elasticml/jobs/run_directory.py``).
    format_version: int | None = field(default=None, metadata=OPTIONAL)

    def to_json(self) -> dict[str, Any]:
        """Return the summary as the content of ``summary.json``."""
        return self.fields_json()


def summary_from_json(values: Mapping[str, Any]) -> RunSummary:
    """Read a summary; an empty one if there is none."""
    return fields_from_json(RunSummary, values)
