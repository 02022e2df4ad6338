"""What a client hands to the driver of a submitted job, and what the driver leaves for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from elasticml.data import places
from elasticml.errors import ConfigError, ElasticmlError, error_from_dict, error_to_dict
from elasticml.jobs.mirror import DRIVER_DIRECTORY
from elasticml.terms import VERSION

#: The file in the scheduler's container that holds the submission.
SUBMISSION_FILE = "elasticml-job.json"
#: The key in the application's store that asks the driver to end the job.
CANCEL_KEY = "elasticml.cancel"
#: Attempts in a row that may end without a new checkpoint.
FUTILE_ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job for a cluster, complete: what its driver needs to know."""

    #: The job record; it says where checkpoints go, too.
    record: Mapping[str, Any]
    #: The ``cluster`` section, for ``job.yaml``.
    cluster: Mapping[str, Any]
    #: Where the run directory goes.
    place: str
    #: Workers to begin with, and the fewest where no more are granted for a while.
    workers: int
    workers_min: int
    evaluates: bool = True
    package: str = VERSION

    def to_json(self) -> bytes:
        """Write it as a file."""
        return json.dumps(asdict(self)).encode()


def read_submission(content: bytes) -> Submission:
    """Read what :meth:`Submission.to_json` wrote.

    Raises
    ------
    ConfigError
        When another version of elasticml wrote it.
    """
    fields = json.loads(content)
    if fields.get("package") != VERSION:
        raise ConfigError(
            f"the job was submitted by elasticml {fields.get('package')}, its environment has "
            f"{VERSION}: install the same version on both, or submit with --pack"
        )
    return Submission(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a submitted job has ended, as its driver says."""

    #: done, failed or cancelled.
    state: str
    #: In one line.
    reason: str
    error: Mapping[str, Any] | None = None

    @classmethod
    def of_error(cls, error: ElasticmlError) -> Verdict:
        """Say that a job has failed, and why."""
        return cls(state="failed", reason=error.message, error=error_to_dict(error))

    def to_error(self) -> ElasticmlError | None:
        """Return what made the job fail; None where nothing did."""
        return None if self.error is None else error_from_dict(dict(self.error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One life of a job's driver, as it stands beside the run; the last written is in charge."""

    number: int
    #: The YARN container that it lives in.
    container: str = ""
    #: Round of the checkpoint that it began with.
    round: int | None = None
    #: How many attempts in a row ended by their own fault and without a new checkpoint.
    futile: int = 0
    #: A word that no other attempt has.
    token: str = ""

    def after(self, *, container: str, round: int | None, token: str, is_ours: bool) -> Attempt:
        """Return the attempt that follows this one.

        Parameters
        ----------
        round : int or None
            Of the last checkpoint.
        is_ours : bool
            Whether this one ended by its own fault, and was not taken away.
        """
        got_on = round is not None and (self.round is None or round > self.round)
        futile = 0 if got_on else self.futile + int(is_ours)
        return Attempt(
            number=self.number + 1, container=container, round=round, futile=futile, token=token
        )


FIRST = Attempt(number=0)


def write_verdict(place: str, verdict: Verdict) -> None:
    """Write how a job has ended beside its run.

    Raises
    ------
    ConfigError
        When the place cannot be written.
    """
    _write(place, "verdict.json", asdict(verdict))


def read_verdict(place: str) -> Verdict | None:
    """Read how a job has ended; None while it runs.

    Raises
    ------
    ConfigError
        When the place cannot be read.
    """
    fields = _read(place, "verdict.json")
    return None if fields is None else Verdict(**fields)


def write_attempt(place: str, attempt: Attempt) -> None:
    """Write who drives the job from now on."""
    _write(place, "attempt.json", asdict(attempt))


def read_attempt(place: str) -> Attempt:
    """Read who drives the job; attempt 0 where nobody has yet."""
    fields = _read(place, "attempt.json")
    return FIRST if fields is None else Attempt(**fields)


def _write(place: str, name: str, fields: Mapping[str, Any]) -> None:
    content = json.dumps(fields, indent=2).encode() + b"\n"
    places.write_whole(places.join(place, DRIVER_DIRECTORY, name), content)


def _read(place: str, name: str) -> dict[str, Any] | None:
    try:
        found = json.loads(places.read_bytes(places.join(place, DRIVER_DIRECTORY, name)))
    except FileNotFoundError:
        return None
    return dict(found)
