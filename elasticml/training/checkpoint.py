"""A job's state between two rounds, and the checkpoint from which another process resumes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticml.algorithms.base import Arrays, Resume
from elasticml.control.policy import Progress
from elasticml.data.dataset_stats import DatasetStats
from elasticml.data.source import FILES, Source, resolve_chunk_bytes
from elasticml.errors import ConfigError, DataError
from elasticml.protocol.job_record import GATHER_S, JobRecord
from elasticml.specification.user_objects import without_marks

#: Sections of a job record that must be the same when a job resumes. All others may change, for
#: instance to allow more rounds or other workers.
SAME_SECTIONS = ("data", "algorithm", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The state of a job after a round has ended and before the next one starts.

    Created in every round: it refers to existing objects and is immutable.
    """

    #: The next round.
    round: int
    #: Seconds since the job started.
    seconds: float
    resume: Resume
    #: The model of a run whose scheduler is lost: the one with which the next round starts, or an
    #: earlier one if that is better.
    model: Arrays = field(default_factory=dict)
    #: The round that began with that earlier model.
    model_round: int | None = None
    #: State of the driver machine, see :mod:`elasticml.control.checkpoint_state`.
    machine: Mapping[str, Any]
    #: Counters of the journal.
    counts: Mapping[str, Any]
    #: Numbers of story records, history rows and finished rounds so far.
    story: int
    rows: int
    progress: int
    #: Rounds whose models are kept, ascending.
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything another process needs to resume the job, read back from storage."""

    #: The attempt that wrote it, from 1, and the checkpoint's number among all of the job.
    attempt: int
    number: int
    resume_point: ResumePoint
    #: The job record, without its initial model.
    record: JobRecord
    #: Fingerprint of the data, and their statistics.
    fingerprint: str
    facts: DatasetStats
    story: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]
    progress: Sequence[Progress]
    snapshots: Mapping[int, Arrays]
    #: Chunk ids that each member owned at the time, as text.
    owners: Mapping[str, Sequence[str]]
    #: Names of its files.
    files: tuple[str, ...] = ()
    #: File and range of each part of the journal, in order.
    parts: Sequence[Mapping[str, Any]] = ()
    #: Files with the models kept for the evaluation, by round.
    models: Mapping[int, str] = field(default_factory=dict)
    #: Newer checkpoints that could not be read, and why; then what is missing in this one.
    notes: tuple[str, ...] = field(default=())
    #: Whether nothing is missing in the journal and the models kept for the evaluation.
    is_whole: bool = True

    @property
    def round(self) -> int:
        """The next round."""
        return self.resume_point.round

    @property
    def seconds(self) -> float:
        """Seconds from the start of the job to the end of its last round."""
        return self.resume_point.seconds


def record_to_resume(record: JobRecord, checkpoint: Checkpoint, source: Source) -> JobRecord:
    """Return the record with what a resumed job needs besides.

    It does not wait long for as many members as before, and its chunks are as large as before:
    then they are in the hosts' caches.
    """
    former = checkpoint.record
    size = former.chunk_bytes or resolve_chunk_bytes(source, None, former.members.start)
    return record.changed(gather_s=GATHER_S, chunk_bytes=record.chunk_bytes or size)


def check_same_job(checkpoint: Checkpoint, record: JobRecord, fingerprint: str) -> None:
    """Check that a checkpoint belongs to this job and to these data.

    Raises
    ------
    ConfigError
        When a setting differs; the message names the first one.
    DataError
        When the data have changed.
    """
    former = _plain(checkpoint.record.without_arrays())
    present = _plain(record.without_arrays())
    for section in SAME_SECTIONS:
        where = _difference(_lasting(former, section), _lasting(present, section), section)
        if where is not None:
            raise ConfigError(
                f"resume: the checkpoint is of another job: {where}; give the same settings, or "
                "run the job from its start"
            )
    if fingerprint != checkpoint.fingerprint:
        raise _changed("size, modification time or options of the files differ")


def _lasting(sections: Mapping[str, Any], section: str) -> Any:
    """Return a section without ``epochs``, a stop rule, which may change."""
    values = sections.get(section)
    if section != "algorithm" or not isinstance(values, Mapping):
        return values
    return {name: value for name, value in values.items() if name != "epochs"}


def check_same_data(checkpoint: Checkpoint, facts: DatasetStats) -> None:
    """Check that the statistics of the data are those of the checkpoint.

    Raises
    ------
    DataError
        When they differ.
    """
    former = checkpoint.facts
    for name in ("n_rows", "n_columns", "label_counts", "weight_sum"):
        was, now = getattr(former, name), getattr(facts, name)
        # The order in which weights are added follows the order of the chunks.
        if was != now and not (name == "weight_sum" and abs(was - now) <= 1e-9 * abs(was)):
            raise _changed(f"{name} was {_short(was)}, is {_short(now)}")


def _changed(what: str) -> DataError:
    return DataError(
        f"resume: the data have changed since the checkpoint was written: {what}; restore the old "
        "files, or run the job from its start"
    )


def _plain(value: Any) -> Any:
    """Convert to plain JSON values, without keys whose value is None, and listings of files.

    Fingerprints say whether the files are the same.
    """
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items() if v is not None and k != FILES}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return json.loads(without_marks(json.dumps(value, default=str)))


def _difference(former: Any, present: Any, path: str) -> str | None:
    """Describe the first difference between two settings; None if they are equal."""
    if isinstance(former, Mapping) and isinstance(present, Mapping):
        for key in sorted({*former, *present}):
            difference = _difference(former.get(key), present.get(key), f"{path}.{key}")
            if difference is not None:
                return difference
        return None
    if former == present:
        return None
    return f"{path} was {_short(former)}, is {_short(present)}"


def _short(value: Any) -> str:
    text = "not given" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
