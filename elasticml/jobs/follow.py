"""Follow a job to its end: tell the watchers, write its directory, evaluate its models."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from elasticml.data.source import Source
from elasticml.errors import (
    ConfigError,
    DataError,
    ElasticmlError,
    JobFailedError,
    error_from_dict,
)
from elasticml.jobs.record import job_of
from elasticml.jobs.result import Result, evaluate, make_result
from elasticml.jobs.run_directory import DIRECTORY_LOST, RunDirectory
from elasticml.jobs.wire import Outcome
from elasticml.training.packed_records import PackedRecords

#: How long an interrupted job is given to say its last words.
LAST_WORDS_S = 5.0


class Watcher(Protocol):
    """Is told what a job's story says, as it is told."""

    def record(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Take note of further records."""
        ...


class Followed(Protocol):
    """A job, as far as following it needs to know: a handle."""

    spec: Mapping[str, Any]
    source: Source | None
    test: Source | None

    def batches(self, since: int = 0) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Yield the story in batches, to its end."""
        ...

    def outcome(self) -> Outcome:
        """Fetch what the job has reached."""
        ...

    def cancel(self) -> None:
        """End the job now."""
        ...


def follow(
    handle: Followed,
    *,
    run_dir: str | Path | None = None,
    watchers: Sequence[Watcher] = (),
    cluster: Mapping[str, Any] | None = None,
    evaluates: bool = True,
    cancels: bool = False,
    continues: bool = False,
) -> Result:
    """Follow a job to its end and return what it has come to.

    Parameters
    ----------
    run_dir : path, optional
        Where the run is written while it grows.
    watchers : sequence of Watcher
        Told every batch of the story's records.
    cluster : mapping, optional
        The ``cluster`` section for ``job.yaml``.
    evaluates : bool
        Whether the data are read again, for the objective over all of them and the metrics.
    cancels : bool
        Whether Ctrl-C here ends the job. The directory holds what it has reached either way.
    continues : bool
        The directory holds the run that goes on.

    Raises
    ------
    ElasticmlError
        What made the job fail; what there is of the run has been written before. Of a run that has
        not begun, because job or data are wrong, nothing is left.
    KeyboardInterrupt
        After an interrupt, when what there is has been written; a note of it says where.
    """
    job = job_of(handle.spec) | ({} if cluster is None else {"cluster": dict(cluster)})
    if run_dir is None:
        return _follow(handle, job, None, watchers, evaluates, cancels)
    with RunDirectory(Path(run_dir)).open(job, continues=continues) as directory:
        return _follow(handle, job, directory, [directory, *watchers], evaluates, cancels)


def _follow(
    handle: Followed,
    job: Mapping[str, Any],
    directory: RunDirectory | None,
    watchers: Sequence[Watcher],
    evaluates: bool,
    cancels: bool,
) -> Result:
    story = PackedRecords()
    try:
        for batch in handle.batches():
            story.extend(dict(record) for record in batch)
            for watcher in watchers:
                watcher.record(batch)
        result = _collect(handle, job, directory, story, evaluates)
    except KeyboardInterrupt as interrupt:
        if directory is not None:
            interrupt.add_note(f"what the run had reached is in {directory.path}")
        # After its end a job has nothing more to say, and the directory holds its final history.
        if cancels and not any(record["event"] == "JobEnded" for record in story):
            _last_words(handle, watchers, story)
        _rescue(handle, job, directory, story, "interrupted")
        raise
    except ElasticmlError as error:
        has_begun = any(record["event"] == "RoundEnded" for record in story)
        if directory is not None and isinstance(error, ConfigError | DataError) and not has_begun:
            directory.discard()  # nothing half-written: the same command works once it is put right
            raise
        if error.fields.get("reason") == DIRECTORY_LOST:
            if cancels:
                _last_words(handle, [], story)
            raise
        _rescue(handle, job, directory, story, error.message)
        if directory is not None and isinstance(error, JobFailedError):
            text = f"{error.message}; what there is of the run is in {directory.path}"
            raise type(error)(text, **error.fields) from error
        raise
    if directory is not None:
        _write_report(directory.path)
    return result


def _collect(
    handle: Followed,
    job: Mapping[str, Any],
    directory: RunDirectory | None,
    story: PackedRecords,
    evaluates: bool,
) -> Result:
    outcome = handle.outcome()
    run_dir = None if directory is None else directory.path
    result = make_result(outcome, job=job, story=story, run_dir=run_dir)
    _seal(result, directory)
    if outcome.state == "failed" and outcome.error is not None:
        raise error_from_dict(dict(outcome.error))
    if directory is not None:
        # Evaluation may take long: what is known is written before it.
        result.write(directory)
    if evaluates and outcome.state == "done":
        result = evaluate(
            result, outcome, record=handle.spec, source=handle.source, test=handle.test
        )
        if directory is not None:
            result.write(directory)
    return result


def _last_words(handle: Followed, watchers: Sequence[Watcher], story: PackedRecords) -> None:
    """Cancel the job and take down what it still has to say."""
    end_s = time.monotonic() + LAST_WORDS_S
    try:
        handle.cancel()
        for batch in handle.batches(since=len(story)):
            story.extend(dict(record) for record in batch)
            for watcher in watchers:
                watcher.record(batch)
            if time.monotonic() > end_s:
                return
    except ElasticmlError:
        return


def _rescue(
    handle: Followed,
    job: Mapping[str, Any],
    directory: RunDirectory | None,
    story: PackedRecords,
    reason: str,
) -> None:
    """Write what there is of a run that did not come to its end."""
    if directory is None or directory.is_as_before:
        return  # a run that was to go on, and of which there is no more than there was
    try:
        result = make_result(handle.outcome(), job=job, story=story, run_dir=directory.path)
    except ElasticmlError:
        directory.write_summary({"name": job["name"], "reason": reason, "error": reason})
    else:
        _seal(result, directory)
        if reason == "interrupted":
            result = replace(result, summary={**result.summary, "reason": reason})
        result.write(directory)
    _write_report(directory.path)


def _seal(result: Result, directory: RunDirectory | None) -> None:
    """Have the summary vouch for the story."""
    if directory is not None:
        result.summary["story"] = directory.seal


def _write_report(path: Path) -> None:
    from elasticml.report.html import write_report

    write_report(path)
