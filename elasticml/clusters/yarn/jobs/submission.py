"""The files between a client and the driver of a submitted job: submission, attempt and verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from elasticml.clusters.yarn.jobs.run_sync import DRIVER_DIRECTORY
from elasticml.data.storage import filesystem
from elasticml.errors import ConfigError, ElasticmlError, error_from_dict, error_to_dict
from elasticml.ids import VERSION
from elasticml.protocol.job_record import JobRecord, job_record

#: The file in the scheduler's container that holds the submission.
SUBMISSION_FILE = "elasticml-job.json"
#: The key in the application's store that asks the driver to end the job.
CANCEL_KEY = "elasticml.cancel"
#: Consecutive attempts that may end without a new checkpoint.
FUTILE_ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Everything that the driver of a submitted job needs."""

    #: The job record, including the path of the checkpoints.
    record: JobRecord
    #: The ``cluster`` section, for ``job.yaml``.
    cluster: Mapping[str, Any]
    #: Destination of the run directory.
    place: str
    #: Initial number of workers, and the least if no more are granted for a while.
    workers: int
    workers_min: int
    package: str = VERSION

    def to_json(self) -> bytes:
        """Serialize to JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return json.dumps({**values, "record": self.record.fields_json()}).encode()


def read_submission(content: bytes) -> Submission:
    """Parse the output of :meth:`Submission.to_json`.

    Raises
    ------
    ConfigError
        When another version of elasticml wrote it.
    """
    values = json.loads(content)
    if values.get("package") != VERSION:
        raise ConfigError(
            f"the job was submitted by elasticml {values.get('package')}, its environment has "
            f"{VERSION}: install the same version on both, or submit with --pack"
        )
    return Submission(**{**values, "record": job_record(values["record"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a submitted job ended, as its driver reports."""

    #: done, failed or cancelled.
    state: str
    #: One line.
    reason: str
    error: Mapping[str, Any] | None = None

    @classmethod
    def of_error(cls, error: ElasticmlError) -> Verdict:
        """Return the verdict for a job that failed with an error."""
        return cls(state="failed", reason=error.message, error=error_to_dict(error))

    def to_error(self) -> ElasticmlError | None:
        """Return the error that made the job fail; None if it did not fail."""
        return None if self.error is None else error_from_dict(dict(self.error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a job's driver, stored beside the run; the last one written is in charge."""

    number: int
    #: Its YARN container.
    container: str = ""
    #: Round of the checkpoint from which it resumed.
    round: int | None = None
    #: Consecutive attempts that ended by their own fault and without a new checkpoint.
    futile: int = 0
    #: Unique to this attempt.
    token: str = ""

    def after(self, *, container: str, round: int | None, token: str, is_ours: bool) -> Attempt:
        """Return the attempt that follows this one.

        Parameters
        ----------
        round : int or None
            Round of the last checkpoint.
        is_ours : bool
            Whether this attempt ended by its own fault, and was not pre-empted.
        """
        made_progress = round is not None and (self.round is None or round > self.round)
        futile = 0 if made_progress else self.futile + int(is_ours)
        return Attempt(
            number=self.number + 1, container=container, round=round, futile=futile, token=token
        )


FIRST = Attempt(number=0)


def write_verdict(place: str, verdict: Verdict) -> None:
    """Write a job's verdict beside its run.

    Raises
    ------
    ConfigError
        When it cannot be written.
    """
    _write(place, "verdict.json", asdict(verdict))


def read_verdict(place: str) -> Verdict | None:
    """Read a job's verdict; None while it runs.

    Raises
    ------
    ConfigError
        When it cannot be read.
    """
    fields = _read(place, "verdict.json")
    return None if fields is None else Verdict(**fields)


def write_attempt(place: str, attempt: Attempt) -> None:
    """Write the attempt that drives the job from now on."""
    _write(place, "attempt.json", asdict(attempt))


def read_attempt(place: str) -> Attempt:
    """Read the attempt that drives the job; attempt 0 if there is none yet."""
    fields = _read(place, "attempt.json")
    return FIRST if fields is None else Attempt(**fields)


def _write(place: str, name: str, fields: Mapping[str, Any]) -> None:
    content = json.dumps(fields, indent=2).encode() + b"\n"
    filesystem.write_whole(filesystem.join(place, DRIVER_DIRECTORY, name), content)


def _read(place: str, name: str) -> dict[str, Any] | None:
    try:
        fields = json.loads(filesystem.read_bytes(filesystem.join(place, DRIVER_DIRECTORY, name)))
    except FileNotFoundError:
        return None
    return dict(fields)
