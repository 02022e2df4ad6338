"""A job as it stands at the end of a round, and as another process finds it written down."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticml.algorithms.base import Arrays, Resume
from elasticml.control.policy import Progress
from elasticml.data.facts import DataFacts
from elasticml.errors import ConfigError, DataError

#: Sections of a job record that a job must have in common with the one that it goes on from: all
#: others may be changed, as to give it more rounds or other workers.
SAME_SECTIONS = ("data", "algorithm", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a job stands when a round has ended and the next one has not begun.

    Taken in every round: it refers to what is there and never changes afterwards.
    """

    #: The round with which to go on.
    round: int
    #: Seconds since the job began.
    seconds: float
    resume: Resume
    #: What the driver machine remembers, see :mod:`elasticml.control.resuming`.
    machine: Mapping[str, Any]
    #: What the journal has counted.
    counts: Mapping[str, Any]
    #: Records of the story, rows of the history and finished rounds so far.
    story: int
    rows: int
    progress: int
    #: Rounds of which the model is kept, ascending.
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All that another process needs to go on, read back from where it was written."""

    #: Which process of the job wrote it, from 1 on, and its number among all.
    attempt: int
    number: int
    standing: Standing
    #: The job record, without a model that the job started from.
    record: Mapping[str, Any]
    #: What tells the data from others, and what was found in them.
    fingerprint: str
    facts: DataFacts
    story: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]
    progress: Sequence[Progress]
    snapshots: Mapping[int, Arrays]
    #: The chunks of each member when it was written, as text.
    owners: Mapping[str, Sequence[str]]
    #: Names of the files that it is made of.
    files: tuple[str, ...] = ()
    #: Where the parts of the journal begin and end, by file, in order.
    parts: Sequence[Mapping[str, Any]] = ()
    #: Files with the models kept for the evaluation, by round.
    models: Mapping[int, str] = field(default_factory=dict)
    #: Newer ones that could not be read, and why.
    notes: tuple[str, ...] = field(default=())

    @property
    def round(self) -> int:
        """The round with which to go on."""
        return self.standing.round

    @property
    def seconds(self) -> float:
        """Seconds since the job began, when its last round ended."""
        return self.standing.seconds


def without_arrays(record: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a job record without the model to start from, which is as long as the data are wide."""
    section = {k: v for k, v in record["algorithm"].items() if k != "warm_start"}
    return {**record, "algorithm": section}


def with_present_members(record: Mapping[str, Any], present: int) -> dict[str, Any]:
    """Have a job that goes on wait for no more members than there are, and for one at least."""
    members = record.get("members") or {}
    least = max(1, int(members.get("min") or 1))
    start = min(int(members.get("start") or 1), max(least, present))
    return {**record, "members": {**members, "start": start}}


def check_same_job(checkpoint: Checkpoint, record: Mapping[str, Any], fingerprint: str) -> None:
    """Refuse to go on from what belongs to another job, or to other data.

    Raises
    ------
    ConfigError
        When the job is another one; the message names the first setting that is.
    DataError
        When the data have been changed.
    """
    former = _plain(without_arrays(checkpoint.record))
    present = _plain(without_arrays(record))
    for section in SAME_SECTIONS:
        where = _difference(_lasting(former, section), _lasting(present, section), section)
        if where is not None:
            raise ConfigError(
                f"resume: the checkpoint is of another job: {where}; give the same settings, or "
                "run the job anew",
                path="resume",
            )
    if fingerprint != checkpoint.fingerprint:
        raise _changed("size, age or options of the files are others")


def _lasting(record: Mapping[str, Any], section: str) -> Any:
    """Take a section without the rule when to stop that some algorithms are told."""
    found = record.get(section)
    if section != "algorithm" or not isinstance(found, Mapping):
        return found
    return {name: value for name, value in found.items() if name != "epochs"}


def check_same_data(checkpoint: Checkpoint, facts: DataFacts) -> None:
    """Refuse to go on with data in which other things were found than before.

    Raises
    ------
    DataError
        When it is so.
    """
    former = checkpoint.facts
    for name in ("n_rows", "n_columns", "label_counts", "weight_sum"):
        was, found = getattr(former, name), getattr(facts, name)
        # Weights are added up in the order of the chunks.
        if was != found and not (name == "weight_sum" and abs(was - found) <= 1e-9 * abs(was)):
            raise _changed(f"{name} was {_short(was)}, is {_short(found)}")


def _changed(what: str) -> DataError:
    return DataError(
        f"resume: the data have changed since the checkpoint was written: {what}; put the old "
        "files back, or run the job anew"
    )


def _plain(value: Any) -> Any:
    """Copy as JSON would; what is None is not given."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return json.loads(json.dumps(value, default=str))


def _difference(former: Any, present: Any, path: str) -> str | None:
    """Say where two settings differ first; None where they do not."""
    if isinstance(former, Mapping) and isinstance(present, Mapping):
        for key in sorted({*former, *present}):
            found = _difference(former.get(key), present.get(key), f"{path}.{key}")
            if found is not None:
                return found
        return None
    if former == present:
        return None
    return f"{path} was {_short(former)}, is {_short(present)}"


def _short(value: Any) -> str:
    text = "not given" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
