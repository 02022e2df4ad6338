"""Follow a job to its end: call callbacks, write the run directory, evaluate the models."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol

from elasticml.errors import (
    ConfigError,
    DataError,
    ElasticmlError,
    JobFailedError,
    error_from_dict,
)
from elasticml.jobs.callbacks import CallbackRunner
from elasticml.jobs.job_spec import job_file_from_record
from elasticml.jobs.result import Result, make_result
from elasticml.jobs.rpc import JobOutcome
from elasticml.jobs.run_checkpoints import how_to_resume, saved_outcome
from elasticml.jobs.run_directory import DIRECTORY_LOST, RunDirectory
from elasticml.protocol.job_record import JobRecord
from elasticml.story.compressed_records import CompressedRecords
from elasticml.story.records import JobEnded, RoundEnded, StoryRecord, records_of
from elasticml.story.summary import summary_from_json

#: Seconds to wait for the last story records of an interrupted job.
LAST_WORDS_S = 5.0
#: ``reason`` of the error when the scheduler is gone, and the job with it.
SCHEDULER_LOST = "scheduler lost"
_WAS_REMOVED = "The run directory was removed while the job ran, and was written again."


class FollowedJob(Protocol):
    """The interface of a job that can be followed, such as a handle."""

    record: JobRecord

    def batches(self, since: int = 0) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Yield the story in batches, to its end."""

    def outcome(self) -> JobOutcome:
        """Fetch the job's results so far."""

    def cancel(self) -> None:
        """Cancel the job."""


def follow(
    handle: FollowedJob,
    *,
    run_dir: str | Path | None = None,
    cluster: Mapping[str, Any] | None = None,
    cancels: bool = False,
    continues: bool = False,
    callbacks: Sequence[Any] = (),
) -> Result:
    """Follow a job to its end and return its result.

    Parameters
    ----------
    run_dir : path, optional
        Where to write the run while the job runs.
    cluster : mapping, optional
        The ``cluster`` section for ``job.yaml``.
    cancels : bool
        Whether Ctrl-C here cancels the job. Either way, the directory keeps the partial results.
    continues : bool
        Whether the directory holds the run to resume.
    callbacks : sequence of Callback or callable
        What to do with each round and with the result (``elasticml/jobs/callbacks.py``).

    Raises
    ------
    ElasticmlError
        The cause of the job's failure, after the partial results were written. A run that never
        started, because job or data are invalid, leaves nothing behind.
    KeyboardInterrupt
        After an interrupt, once the partial results were written; a note names the directory.
    """
    job = job_file_from_record(handle.record) | (
        {} if cluster is None else {"cluster": dict(cluster)}
    )
    called = CallbackRunner(callbacks)
    called.call("on_start", job)
    directory = None if run_dir is None else RunDirectory(Path(run_dir))
    try:
        with nullcontext() if directory is None else directory.open(job, continues=continues):
            result = _Follower(handle, job, directory, called).run(cancels)
    except BaseException as error:
        called.call("on_fail", error)
        raise
    called.call("on_end", result)
    if called.failures:
        notes = summary_from_json(result.summary).notes or ()
        result.summary["notes"] = [*notes, *called.failures]
        if result.run_dir is not None:
            RunDirectory(result.run_dir).write_summary(result.summary)
            _write_report(result.run_dir)
    return result


class _Follower:
    """Passes a job's story on, and makes its result, or what is left of it."""

    def __init__(
        self,
        handle: FollowedJob,
        job: Mapping[str, Any],
        directory: RunDirectory | None,
        called: CallbackRunner,
    ) -> None:
        self._handle = handle
        self._job = job
        self._directory = directory
        self._path = None if directory is None else directory.path
        #: Receive the story as it grows.
        self._observers = [one for one in (directory, called) if one is not None]
        self._story = CompressedRecords()

    def run(self, cancels: bool) -> Result:
        """Follow the job to its end; see :func:`follow`."""
        try:
            self._receive(self._handle.batches())
            result = self._collect()
        except KeyboardInterrupt as interrupt:
            self._interrupted(interrupt, cancels)
            raise
        except ElasticmlError as error:
            directory, is_invalid = self._directory, isinstance(error, ConfigError | DataError)
            if directory is not None and is_invalid and not self._has(RoundEnded):
                directory.discard()  # so that the same command works once the error is fixed
                raise
            if directory is not None and error.fields.get("reason") == DIRECTORY_LOST:
                self._observers.remove(directory)
                if cancels:
                    self._last_words()
                raise self._with_remedy(error) from error
            self._rescue(error.message)
            if isinstance(error, JobFailedError):
                raise self._with_remedy(error) from error
            raise
        if self._path is not None:
            # The run has succeeded, even if the disk is full now.
            result.summary["notes"] += _write_report(self._path)
        return result

    def _receive(
        self, batches: Iterable[Sequence[Mapping[str, Any]]], end_s: float = math.inf
    ) -> None:
        """Pass records on as they arrive, to the end of the story or until some time."""
        for batch in batches:
            self._story.extend(dict(record) for record in batch)
            for observer in self._observers:
                observer.on_records(batch)
            if time.monotonic() > end_s:
                return

    def _has(self, kind: type[StoryRecord]) -> bool:
        return next(records_of(kind, self._story), None) is not None

    def _interrupted(self, interrupt: KeyboardInterrupt, cancels: bool) -> None:
        """Cancel the job, and write its partial results."""
        # After its end a job writes no more records, and the directory holds the final history.
        has_ended = self._has(JobEnded)
        if cancels and not has_ended:
            self._last_words()
        directory = self._directory
        if directory is not None:
            if not self._has(RoundEnded) and directory.discard():
                interrupt.add_note("no round had ended, and nothing was written")
                return
            interrupt.add_note(
                f"the job had ended: its model is in {self._path}"
                if has_ended
                else f"partial results of the run are in {self._path}"
            )
        self._rescue("interrupted")

    def _last_words(self) -> None:
        """Cancel the job and collect its last records."""
        with suppress(ElasticmlError):
            end_s = time.monotonic() + LAST_WORDS_S
            self._handle.cancel()
            self._receive(self._handle.batches(since=len(self._story)), end_s)

    def _with_remedy(self, error: ElasticmlError) -> ElasticmlError:
        """Return the error with what is left of the run, and how to resume it."""
        text = [error.message]
        if self._path is not None:
            text.append(f"partial results of the run are in {self._path}")
        if error.fields.get("reason") in (SCHEDULER_LOST, DIRECTORY_LOST):
            is_command = "cluster" in self._job
            text.append(how_to_resume(self._handle.record, self._path, is_command=is_command))
        return type(error)("; ".join(text), **error.fields)

    def _collect(self) -> Result:
        outcome = self._handle.outcome()
        result = self._result(outcome)
        if outcome.state == "failed" and outcome.error is not None:
            raise error_from_dict(dict(outcome.error))
        if self._directory is not None:
            if self._directory.was_removed:
                result.summary["notes"] += [_WAS_REMOVED]
            result.write(self._directory)
        return result

    def _result(self, outcome: JobOutcome) -> Result:
        return make_result(outcome, job=self._job, story=self._story, run_dir=self._path)

    def _rescue(self, reason: str) -> None:
        """Write the partial results of a run that did not end normally."""
        directory = self._directory
        if directory is None or directory.is_as_before:
            return  # a resumed run that made no progress; the directory is unchanged
        try:
            outcome = self._handle.outcome()
        except ElasticmlError:
            outcome = saved_outcome(self._handle.record, self._story, reason)
        result = self._result(outcome)
        if reason == "interrupted":
            result.summary["reason"] = reason
        result.write(directory)
        _write_report(directory.path)


def _write_report(path: Path) -> list[str]:
    """Draw the report; return a note if it cannot be written."""
    from elasticml.report.run_page import write_report

    try:
        write_report(path)
    except ConfigError as error:
        return [f"there is no report: {error.message}; draw it later: elasticml report {path}"]
    return []
