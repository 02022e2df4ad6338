"""The job record: a job file, resolved and validated, as the scheduler receives it.

A client writes it as JSON; the driver, the members, checkpoints and stories have the same JSON. It
is parsed once where it enters a process. Like a story it may come from another version: a missing
or damaged field has its default, and a field without a name here stays in the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elasticml.specification.sections import Collective, Fault, Stop
from elasticml.story.json_fields import OPTIONAL, JsonFields, fields_from_json

#: Seconds that a job waits for more members after one has arrived, if not all are sure to come.
GATHER_S = 3.0

_NO_STOP = Stop.of_record({})
_COLLECTIVE = Collective.of_record({})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLimits(JsonFields):
    """The section ``members``."""

    start: int = 1
    min: int = 1
    max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlace(JsonFields):
    """Where checkpoints are written, and how often."""

    #: Absolute path of a directory, or a URL.
    path: str = ""
    every_s: float = 0.0
    #: Whether the place is in the run directory, and the job file does not name it.
    in_run_dir: bool = field(default=False, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached(JsonFields):
    """How far the former attempt of a resumed job got."""

    round: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(JsonFields):
    """A job as the scheduler receives it; made by :func:`job_record`."""

    #: The JSON from which it was read.
    json: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: Version of the format, and the version of elasticml that wrote it.
    version: int = 0
    package: str = ""
    #: The job's id.
    job: str = ""
    name: str | None = None
    #: The spec of the data: training, validation and test rows.
    data: Mapping[str, Any] = field(default_factory=dict)
    chunk_bytes: int | None = None
    #: Directory for parsed blocks, false for none, None for the default.
    cache: Any = None
    #: The name of the algorithm, its settings, and the initial model as arrays.
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    absent: str | None = None
    #: Names or mappings.
    policies: tuple[Any, ...] = ()
    stop: Stop = _NO_STOP
    seed: int = 0
    deterministic: bool = True
    faults: tuple[Fault, ...] = ()
    collective: Collective = _COLLECTIVE
    partitions: int | None = None
    #: Members that hold each chunk's body; None: the driver decides.
    holders: int | None = None
    placement: str | None = None
    #: Path of the initial model.
    warm_start: str | None = None
    #: Metrics and rules of the validation while training.
    validate: Mapping[str, Any] | None = None
    members: MemberLimits = MemberLimits()
    checkpoint: CheckpointPlace | None = None
    threads: int | None = None
    memory_limit: int | None = None
    #: Options of the simulator.
    simulate: Mapping[str, Any] | None = None
    #: ``members.start`` is the number of workers at the submission: the job waits for no others.
    starts_with_present: bool = field(default=False, metadata=OPTIONAL)
    #: Seconds after a member's arrival for which the job waits for more, up to ``members.start``.
    gather_s: float | None = None
    #: Place of the checkpoints from which the job resumes.
    resume: str | None = None
    reached: Reached = Reached()

    @property
    def algorithm_name(self) -> str:
        """The algorithm: a name, or ``module:attribute``."""
        return str(self.algorithm.get("name"))

    @property
    def algorithm_settings(self) -> dict[str, Any]:
        """The settings of the algorithm, with the initial model."""
        return {name: value for name, value in self.algorithm.items() if name != "name"}

    @property
    def initial_model(self) -> Mapping[str, Any] | None:
        """The arrays of the initial model."""
        return self.algorithm.get("warm_start")

    @property
    def evaluate(self) -> Mapping[str, Any] | bool | None:
        """The section ``evaluate``; False if no model is scored on training and test rows."""
        section = self.json.get("evaluate")
        return section if isinstance(section, Mapping | bool) else None

    @property
    def is_cost_only(self) -> bool:
        """Whether the job is simulated from its costs, without data."""
        return bool((self.simulate or {}).get("costs"))

    def fields_json(self) -> dict[str, Any]:
        """Return the JSON from which the record was read."""
        return dict(self.json)

    def without_arrays(self) -> dict[str, Any]:
        """Return the JSON without the initial model, which has a value for each column."""
        section = {k: v for k, v in self.algorithm.items() if k != "warm_start"}
        return {**self.json, "algorithm": section}

    def changed(self, **fields: Any) -> JobRecord:
        """Return the record with other JSON values of some fields."""
        return job_record({**self.json, **fields})

    def with_start(self, members: int) -> JobRecord:
        """Return the record of a job that waits for this many members."""
        return self.changed(members={**self.members.fields_json(), "start": members})


def job_record(values: Mapping[str, Any]) -> JobRecord:
    """Read a job record from its JSON values."""
    return replace(fields_from_json(JobRecord, values), json=values)
