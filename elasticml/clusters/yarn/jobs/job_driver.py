"""The driver of a submitted job; it runs in the container of the application's scheduler.

It starts the job on the scheduler of its own process, keeps the run directory on local disk and a
copy of it where the client wants it, and ends the application. When its container or the
application master dies, the next attempt resumes from the last checkpoint.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from elasticml.clusters.polling import retry
from elasticml.clusters.yarn.jobs.applications import status_at
from elasticml.clusters.yarn.jobs.run_sync import RunSync
from elasticml.clusters.yarn.jobs.submission import (
    CANCEL_KEY,
    FUTILE_ATTEMPTS_MAX,
    SUBMISSION_FILE,
    Attempt,
    Submission,
    Verdict,
    read_attempt,
    read_submission,
    read_verdict,
    write_attempt,
    write_verdict,
)
from elasticml.clusters.yarn.yarn_client import YarnCallError, finish_application
from elasticml.data.source import Source, source_from_spec
from elasticml.data.storage.filesystem import exists, join, write_whole
from elasticml.errors import ConfigError, DataError, ElasticmlError, JobFailedError, one_line
from elasticml.jobs.follow import follow
from elasticml.jobs.handle import POLL_S, Record, story_batches
from elasticml.jobs.result import Result
from elasticml.jobs.rpc import JobOutcome, read_outcome, unwrap_reply
from elasticml.jobs.run_checkpoints import forget_checkpoints
from elasticml.protocol.job_record import JobRecord
from elasticml.report.status import JobStatus
from elasticml.runtime.checkpoints.checkpoint_store import read_checkpoint
from elasticml.story.records import JobEnded, records_of
from elasticml.story.summary import summary_from_json

if TYPE_CHECKING:
    from distributed import Scheduler

    from elasticml.clusters.yarn.yarn_client import YarnApplication
    from elasticml.runtime.scheduler_plugin import ElasticmlScheduler


#: Seconds between two reports, and the least change that is reported.
TELL_S = 1.0
STEP_MIN = 0.01


class ProgressReporter:
    """A callback that reports a job's progress.

    Parameters
    ----------
    tell : callable (float)
        Receives the fraction, in [0, 1]; it never decreases.
    clock : callable
        Monotonic time in seconds.
    """

    def __init__(
        self, tell: Callable[[float], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._status = JobStatus(job="")
        self._reported = -STEP_MIN  # so that 0 is reported as well
        self._reported_s: float | None = None

    def on_records(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Process new records and report the progress."""
        for record in records:
            self._status = self._status.after(record)
        share = progress_fraction(self._status)
        now_s = self._clock()
        if self._reported_s is not None and now_s - self._reported_s < TELL_S and share < 1:
            return
        if share >= self._reported + STEP_MIN:
            self._reported, self._reported_s = share, now_s
            self._tell(share)


def progress_fraction(status: JobStatus) -> float:
    """Return a job's progress in [0, 1], by the stop rule that is closest to ending it."""
    if status.is_over:
        return 1.0
    shares = [0.0]
    if status.rounds_max:
        shares.append(status.round / status.rounds_max)
    if status.seconds_max:
        shares.append(status.seconds / status.seconds_max)
    if status.epochs_max and status.epoch:
        shares.append(status.epoch / status.epochs_max)
    if status.gap_share is not None:
        shares.append(status.gap_share)
    return min(1.0, max(shares))


async def start_in_process(
    scheduler: Scheduler,
    record: JobRecord,
) -> InProcessJob:
    """Start a job on this process's scheduler; await it on the scheduler's event loop.

    Raises
    ------
    ConfigError, DataError
        When the job or its data are invalid.
    """
    from elasticml.runtime.scheduler_plugin import ElasticmlScheduler

    await scheduler.register_scheduler_plugin(ElasticmlScheduler(), idempotent=True)
    plugin: ElasticmlScheduler = scheduler.plugins[ElasticmlScheduler.name]
    unwrap_reply(await plugin.submit(record.json))
    return InProcessJob(plugin, asyncio.get_running_loop(), record)


class InProcessJob:
    """A job in this process; call its methods from other threads than that of the event loop."""

    def __init__(
        self,
        plugin: ElasticmlScheduler,
        loop: asyncio.AbstractEventLoop,
        record: JobRecord,
    ) -> None:
        self.record = record
        self._job = record.job
        self._plugin = plugin
        self._loop = loop

    def batches(self, since: int = 0) -> Iterator[Sequence[Record]]:
        """Yield the story in batches as it grows, to its end."""
        yield from story_batches(
            lambda n: self._ask(self._plugin.poll(self._job, since=n, wait_s=POLL_S)), since
        )

    def outcome(self) -> JobOutcome:
        """Return the job's results so far: arrays, snapshots, history, summary."""
        return read_outcome(self._ask(self._plugin.result(self._job)))

    def cancel(self) -> None:
        """Cancel the job; its partial results remain available."""
        self._ask(self._plugin.cancel(self._job))

    def _ask(self, question: Coroutine[Any, Any, Record]) -> Record:
        try:
            answer = asyncio.run_coroutine_threadsafe(question, self._loop).result()
        except RuntimeError as error:
            question.close()
            raise JobFailedError(
                f"the scheduler of job {self._job} has ended", reason="scheduler lost"
            ) from error
        return unwrap_reply(answer)


#: Seconds to wait for all workers if the job may start with fewer, and if it resumes.
PATIENCE_S, PATIENCE_RESUMED_S = 60.0, 30.0
LOOK_S = 0.1
#: Attempts at operations on the run's destination, and the pause between them.
TRIES_MAX, TRY_PAUSE_S = 20, 3.0
T = TypeVar("T")

#: YARN's final status for each state of a job.
_FINAL = {"done": "SUCCEEDED", "failed": "FAILED", "cancelled": "KILLED"}


class Superseded(ElasticmlError):
    """Another attempt drives the job; this one must not touch it."""


class Cancelled(ElasticmlError):
    """The job was cancelled before this attempt started it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """How an attempt starts."""

    attempt: Attempt
    #: Path of the checkpoints to resume from; None if there are none.
    resume: str | None


class YarnJob:
    """Drives one job from its submission to the end of its application.

    Parameters
    ----------
    submission : Submission
    scheduler : Scheduler
        The scheduler of this process.
    app : YarnApplication
        The application of this process.
    folder : Path
        Local parent directory of the run directory.
    """

    def __init__(
        self,
        submission: Submission,
        scheduler: Scheduler,
        app: YarnApplication,
        folder: Path,
    ) -> None:
        self._submission = submission
        self._scheduler = scheduler
        self._app = app
        self._path = folder / "run"
        #: Set when the client has asked to cancel, through the application's key-value store.
        self._is_cancelled = threading.Event()

    async def run(self) -> None:
        """Run the job, write its verdict, and end the application."""
        place = self._submission.place
        threading.Thread(target=self._wait_for_cancel, name="em-cancel-wait", daemon=True).start()
        try:
            verdict = await asyncio.to_thread(_trying, lambda: read_verdict(place))
            if verdict is None:
                verdict = await self._drive()
        except Superseded:
            return
        except Cancelled as ended:
            verdict = Verdict(state="cancelled", reason=ended.message)
        except ElasticmlError as error:
            verdict = Verdict.of_error(self._explained(error))
        except Exception as error:
            # A bug: every further attempt would fail in the same way.
            traceback.print_exc()
            text = f"{type(error).__name__}: {one_line(error)}"
            verdict = Verdict.of_error(JobFailedError(f"internal error: {text}; see the logs"))
        await asyncio.to_thread(self._end, verdict)

    async def _drive(self) -> Verdict:
        submission = self._submission
        begun = await asyncio.to_thread(_trying, self._begin)
        record = submission.record
        source = source_from_spec(record.data)
        # On the first attempt unreadable data are an error of the job, so do not retry.
        tries = TRIES_MAX if begun.attempt.number > 1 else 1
        await asyncio.to_thread(_trying, lambda: check_readable(source), tries)
        members = await self._workers(begun.resume is not None)
        if begun.resume is not None:
            record = record.changed(**await asyncio.to_thread(self._resumed, begun.resume))
        else:
            record = record.with_start(min(record.members.start, members))
        job = await start_in_process(self._scheduler, record)
        threading.Thread(
            target=self._cancel_job, args=(job,), name="em-cancel-job", daemon=True
        ).start()
        result = await asyncio.to_thread(self._follow, job, begun.attempt)
        states = [ended.state for ended in records_of(JobEnded, result.story)]
        summary = summary_from_json(result.summary)
        reason = f"{summary.rounds} rounds ({summary.stopped_by})"
        return Verdict(state=(states or ["done"])[-1], reason=reason)

    def _begin(self) -> Beginning:
        """Take the job over from the previous attempt.

        Raises
        ------
        JobFailedError
            When too many attempts in a row made no progress.
        """
        place = self._submission.place
        before = read_attempt(place)
        checkpoints = self._submission.record.checkpoint
        path = None if checkpoints is None else checkpoints.path
        checkpoint = None if path is None else read_checkpoint(path)
        attempt = before.after(
            container=os.environ.get("CONTAINER_ID", ""),
            round=None if checkpoint is None else checkpoint.round,
            token=secrets.token_hex(8),
            is_ours=before.number > 0 and not self._was_taken_away(before.container),
        )
        if attempt.futile >= FUTILE_ATTEMPTS_MAX:
            raise JobFailedError(
                f"the driver has failed {attempt.futile} times in a row without progress; see the "
                "logs of its containers"
            )
        write_attempt(place, attempt)
        return Beginning(attempt=attempt, resume=None if checkpoint is None else path)

    def _resumed(self, resume: str) -> dict[str, Any]:
        """Return the fields of the job record for a resumed job."""
        status = _trying(lambda: status_at(self._submission.place))
        return {"resume": resume, "reached": {"round": status.round, "seconds": status.seconds}}

    def _was_taken_away(self, container: str) -> bool:
        """Return whether the container of an earlier attempt was pre-empted."""
        with suppress(YarnCallError):
            ended = self._app.containers(services=["dask.scheduler"], states=["failed"])
            return any(c.container == container and "preempted" in c.message.lower() for c in ended)
        return False

    async def _workers(self, resumes: bool) -> int:
        """Wait for the workers and return their number.

        Raises
        ------
        Cancelled
            When the job is cancelled meanwhile.
        """
        requested = self._submission.workers
        least = 1 if resumes else self._submission.workers_min
        patience_s = PATIENCE_RESUMED_S if resumes else PATIENCE_S
        began_s = time.monotonic()
        while True:
            present = len(self._scheduler.workers)
            if self._is_cancelled.is_set():
                raise Cancelled(f"waiting for its workers ({present} of {requested} were there)")
            is_patient = time.monotonic() - began_s < patience_s
            if present >= requested or (present >= least and not is_patient):
                return present
            await asyncio.sleep(LOOK_S)

    def _follow(self, job: InProcessJob, attempt: Attempt) -> Result:
        """Follow the job to its end, and synchronize its run directory meanwhile."""
        place = self._submission.place
        superseded = threading.Event()

        def is_ours() -> bool:
            if read_attempt(place).token != attempt.token and not superseded.is_set():
                superseded.set()
                job.cancel()
            return not superseded.is_set()

        with RunSync(self._path, place, is_ours):
            result = follow(
                job,
                run_dir=self._path,
                callbacks=[ProgressReporter(self._set_progress)],
                cluster=self._submission.cluster,
            )
        if superseded.is_set():
            raise Superseded("another attempt drives the job now")
        return result

    def _set_progress(self, share: float) -> None:
        with suppress(YarnCallError):
            self._app.set_progress(share)

    def _wait_for_cancel(self) -> None:
        """Wait for a cancel request in the application's key-value store."""
        with suppress(YarnCallError):
            self._app.store.wait(CANCEL_KEY)
            self._is_cancelled.set()

    def _cancel_job(self, job: InProcessJob) -> None:
        """Cancel the running job on request."""
        self._is_cancelled.wait()
        with suppress(ElasticmlError):
            job.cancel()

    def _end(self, verdict: Verdict) -> None:
        """Write the verdict, remove checkpoints that are no longer needed, end the application."""
        place = self._submission.place
        try:
            _trying(lambda: write_verdict(place, verdict))
            _trying(lambda: self._write_summary(verdict))
            if verdict.state == "done":
                forget_checkpoints(self._submission.record)
        except ConfigError as error:
            if verdict.state != "failed":
                verdict = Verdict.of_error(error)
        text = f"{verdict.state}: {verdict.reason}"
        if verdict.state != "failed":
            text += f"; the run is in {place}"
        finish_application(self._app, _FINAL[verdict.state], text)

    def _write_summary(self, verdict: Verdict) -> None:
        """Write a summary from the story if every attempt died before it wrote one."""
        place = self._submission.place
        if exists(join(place, "summary.json")) or not exists(join(place, "story.jsonl")):
            return
        status = status_at(place)
        summary = {
            "name": self._submission.record.name,
            "rounds": status.round,
            "seconds": status.seconds,
            "reason": f"{verdict.state}: {verdict.reason}",
        }
        write_whole(join(place, "summary.json"), (json.dumps(summary, indent=2) + "\n").encode())

    def _explained(self, error: ElasticmlError) -> ElasticmlError:
        """Replace the local run directory in the message by the destination that clients see."""
        message = error.message.replace(str(self._path), self._submission.place)
        return type(error)(message, **error.fields)


def check_readable(source: Source) -> None:
    """Check that this node can read the data, so that an error comes before the job.

    Raises
    ------
    ConfigError, DataError
        When the data are not accessible here, or invalid.
    """
    try:
        source.blocks()
    except (ConfigError, DataError) as error:
        raise type(error)(
            f"{error.message} (as seen on node {os.uname().nodename}: data must be at a path that "
            "all nodes share, or on hdfs://)",
            **error.fields,
        ) from error


def _trying(act: Callable[[], T], tries: int = TRIES_MAX) -> T:
    return retry(act, tries=tries, pause_s=TRY_PAUSE_S)


def main() -> None:
    """Run the scheduler of an application, and its job in it."""
    from elasticml.clusters.yarn.scheduler_service import serve

    submission = read_submission(Path(SUBMISSION_FILE).read_bytes())

    async def work(scheduler: Any, app: Any) -> None:
        await YarnJob(submission, scheduler, app, Path.cwd()).run()

    serve(work)
    sys.stderr.flush()


if __name__ == "__main__":
    main()
