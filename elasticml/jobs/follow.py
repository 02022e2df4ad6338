"""Follow a job to its end: call callbacks, write the run directory, evaluate the models."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
from elasticml.story.records import JobEnded, RoundEnded, records_of
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
        ...

    def outcome(self) -> JobOutcome:
        """Fetch the job's results so far."""
        ...

    def cancel(self) -> None:
        """Cancel the job."""
        ...


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
    try:
        if run_dir is None:
            result = _follow(handle, job, None, called, cancels)
        else:
            with RunDirectory(Path(run_dir)).open(job, continues=continues) as directory:
                result = _follow(handle, job, directory, called, cancels)
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


def _follow(
    handle: FollowedJob,
    job: Mapping[str, Any],
    directory: RunDirectory | None,
    called: CallbackRunner,
    cancels: bool,
) -> Result:
    story = CompressedRecords()
    try:
        for batch in handle.batches():
            story.extend(dict(record) for record in batch)
            if directory is not None:
                directory.record(batch)
            called.record(batch)
        result = _collect(handle, job, directory, story)
    except KeyboardInterrupt as interrupt:
        # After its end a job writes no more records, and the directory holds the final history.
        has_ended = next(records_of(JobEnded, story), None) is not None
        if cancels and not has_ended:
            _last_words(handle, directory, called, story)
        has_begun = next(records_of(RoundEnded, story), None) is not None
        if directory is not None and not has_begun and directory.discard():
            interrupt.add_note("no round had ended, and nothing was written")
            raise
        if directory is not None:
            interrupt.add_note(
                f"the job had ended: its model is in {directory.path}"
                if has_ended
                else f"partial results of the run are in {directory.path}"
            )
        _rescue(handle, job, directory, story, "interrupted")
        raise
    except ElasticmlError as error:
        has_begun = next(records_of(RoundEnded, story), None) is not None
        if directory is not None and isinstance(error, ConfigError | DataError) and not has_begun:
            directory.discard()  # so that the same command works once the error is fixed
            raise
        if error.fields.get("reason") == DIRECTORY_LOST:
            if cancels:
                _last_words(handle, None, CallbackRunner([]), story)
            raise _with_remedy(error, handle.record, job, directory) from error
        _rescue(handle, job, directory, story, error.message)
        if isinstance(error, JobFailedError):
            raise _with_remedy(error, handle.record, job, directory) from error
        raise
    if directory is not None:
        # The run has succeeded, even if the disk is full now.
        result.summary["notes"] += _write_report(directory.path)
    return result


def _with_remedy(
    error: ElasticmlError,
    record: JobRecord,
    job: Mapping[str, Any],
    directory: RunDirectory | None,
) -> ElasticmlError:
    """Return the error with what is left of the run, and how to resume it."""
    path = None if directory is None else directory.path
    text = [error.message]
    if path is not None:
        text.append(f"partial results of the run are in {path}")
    if error.fields.get("reason") in (SCHEDULER_LOST, DIRECTORY_LOST):
        text.append(how_to_resume(record, path, is_command="cluster" in job))
    return type(error)("; ".join(text), **error.fields)


def _collect(
    handle: FollowedJob,
    job: Mapping[str, Any],
    directory: RunDirectory | None,
    story: CompressedRecords,
) -> Result:
    outcome = handle.outcome()
    run_dir = None if directory is None else directory.path
    result = make_result(outcome, job=job, story=story, run_dir=run_dir)
    if outcome.state == "failed" and outcome.error is not None:
        raise error_from_dict(dict(outcome.error))
    if directory is not None:
        if directory.was_removed:
            result.summary["notes"] += [_WAS_REMOVED]
        result.write(directory)
    return result


def _last_words(
    handle: FollowedJob,
    directory: RunDirectory | None,
    called: CallbackRunner,
    story: CompressedRecords,
) -> None:
    """Cancel the job and collect its last records."""
    end_s = time.monotonic() + LAST_WORDS_S
    try:
        handle.cancel()
        for batch in handle.batches(since=len(story)):
            story.extend(dict(record) for record in batch)
            if directory is not None:
                directory.record(batch)
            called.record(batch)
            if time.monotonic() > end_s:
                return
    except ElasticmlError:
        return


def _rescue(
    handle: FollowedJob,
    job: Mapping[str, Any],
    directory: RunDirectory | None,
    story: CompressedRecords,
    reason: str,
) -> None:
    """Write the partial results of a run that did not end normally."""
    if directory is None or directory.is_as_before:
        return  # a resumed run that made no progress; the directory is unchanged
    try:
        outcome = handle.outcome()
    except ElasticmlError:
        outcome = saved_outcome(handle.record, story, reason)
    result = make_result(outcome, job=job, story=story, run_dir=directory.path)
    if reason == "interrupted":
        result = replace(result, summary={**result.summary, "reason": reason})
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
