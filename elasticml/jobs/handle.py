"""A client's handle to a job that runs on the scheduler."""

from __future__ import annotations

import asyncio
import html
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticml.errors import UNKNOWN_JOB, ConfigError, ElasticmlError, JobFailedError
from elasticml.jobs.follow import SCHEDULER_LOST, follow
from elasticml.jobs.installed import check_installed
from elasticml.jobs.progress_bar import ProgressBar
from elasticml.jobs.result import Result
from elasticml.jobs.rpc import JobOutcome, read_outcome, unwrap_reply
from elasticml.jobs.run_checkpoints import forget_checkpoints
from elasticml.jobs.user_warnings import warn
from elasticml.protocol.job_record import JobRecord, job_record
from elasticml.report.status import JobStatus
from elasticml.specification.user_objects import give_again
from elasticml.story.records import JobBegun, JobEnded, records_of
from elasticml.story.summary import summary_from_json

if TYPE_CHECKING:
    from distributed import Client

Record = Mapping[str, Any]

#: Seconds that the scheduler holds a poll for new records before it returns none (long polling).
POLL_S = 1.0
#: Seconds for the scheduler's page to answer.
PAGE_S = 2.0
#: Seconds between two looks whether the client has lost its scheduler while it awaits a reply.
LOOK_S = 0.5


class Handle:
    """A job on a scheduler. The client may disconnect, and another attach by ``job_id``.

    Iteration yields the records of the story from its start until the job has ended. ``job.start``,
    :meth:`Job.attach` and :meth:`Job.resume` make handles.

    Parameters
    ----------
    client : distributed.Client
    job_id : str
    record : mapping
        The job as it was sent to the scheduler.
    interrupted : mapping, optional
        Facts about a former attempt of the job, for the run directory.

    Examples
    --------
    >>> handle = em.Job(em.CoCoA(), em.from_arrays(X, y), stop=em.Stop(rounds=3)).start(client)
    >>> [record["event"] for record in handle][0]
    'JobStarted'
    >>> handle.result().summary["rounds"]
    3
    """

    def __init__(
        self,
        client: Client,
        job_id: str,
        record: JobRecord,
        interrupted: Mapping[str, Any] | None = None,
    ) -> None:
        self.job_id = job_id
        self.record = record
        self._client = client
        #: Arguments of :meth:`result` that continue the run directory of an interrupted run.
        self._interrupted = dict(interrupted or {})
        self._status = JobStatus(job=job_id)
        self._seen = 0
        #: The scheduler has answered for this job.
        self._was_known = False
        #: Set from another thread: the next question ends like a Ctrl-C here.
        self.interrupt = threading.Event()

    def __repr__(self) -> str:
        state = f", {self._status.state}, round {self._status.round}" if self._seen else ""
        return f"<Handle {self.job_id}{state}>"

    @property
    def spec(self) -> dict[str, Any]:
        """The job record as JSON values."""
        return self.record.fields_json()

    def status(self) -> JobStatus:
        """Return the job's current status.

        Returns
        -------
        JobStatus
            With ``state`` (loading, running, done, failed or cancelled), ``round``, ``seconds``,
            ``objective``, ``gap``, ``members``, ``absent_examples``, ``reason`` and more.

        Raises
        ------
        ConfigError
            When the scheduler does not know the job, or no longer does.
        JobFailedError
            When the scheduler cannot be reached.
        """
        for batch in story_batches(self._poll, self._seen, waits=False):
            for record in batch:
                self._status = self._status.after(record)
            self._seen += len(batch)
        return self._status

    def _poll(self, since: int, wait_s: float = 0.0) -> Record:
        return self._ask("em_poll", since=since, wait_s=wait_s)

    def _repr_html_(self) -> str:
        """Return the job's state and curves at present, for a notebook."""
        from elasticml.report.live import LiveJob
        from elasticml.report.panel import panel_html  # loads matplotlib

        live = LiveJob(self.job_id)
        try:
            for batch in story_batches(self._poll, 0, waits=False):
                live.read(batch)
        except ElasticmlError as error:
            return html.escape(f"{self!r}: {error.message}")
        return panel_html(live, live.status.seconds)

    def cancel(self) -> None:
        """Cancel the job; its partial results remain available."""
        self._ask("em_cancel")

    def forget(self) -> None:
        """Delete the job's results on the scheduler, which otherwise keeps them for a while.

        By default finished jobs are kept for 24 hours, up to 100 of them and 1 GiB: see
        :doc:`/how-to/dask-clusters`.
        """
        self._ask("em_forget")

    def batches(self, since: int = 0) -> Iterator[Sequence[Record]]:
        """Yield the story in batches as it grows, from a record number to the end.

        An empty batch means that there were no new records for a while.
        """
        yield from story_batches(partial(self._poll, wait_s=POLL_S), since)

    def events(self, since: int = 0) -> Iterator[Record]:
        """Yield the story's records as they arrive, from a record number to the end."""
        for batch in self.batches(since):
            yield from batch

    def __iter__(self) -> Iterator[Record]:
        return self.events()

    def result(
        self,
        *,
        progress: bool = False,
        run_dir: str | Path | None = None,
        cluster: Mapping[str, Any] | None = None,
        cancels: bool = False,
        continues: bool = False,
        callbacks: Sequence[Any] = (),
    ) -> Result:
        """Wait for the job to end, evaluate its models, and return the result.

        Parameters
        ----------
        progress : bool
            Whether to show the job's progress in the terminal.
        run_dir : path, optional
            Where to write story, history, model, summary and report while the job runs; for a job
            of ``em.Job.resume(client, run_dir)`` by default that directory.
        cluster : mapping, optional
            The ``cluster`` section for ``job.yaml``.
        cancels : bool
            Whether Ctrl-C cancels the job, instead of only ending the wait.
        continues : bool
            Whether the directory holds the run to resume.
        callbacks : sequence of Callback or callable
            What to do with each round and with the result, such as
            ``em.callbacks.MLflowCallback()``; a function is called with each row of the history.

        Warns
        -----
        sklearn.exceptions.ConvergenceWarning
            When the model missed the job's tolerance or target.

        Raises
        ------
        ElasticmlError
            The cause of the job's failure; the directory holds the partial results. When the
            scheduler is lost, the message says how to resume the job.
        """
        arguments: dict[str, Any] = {
            "run_dir": run_dir,
            "cluster": cluster,
            "cancels": cancels,
            "continues": continues,
            **(self._interrupted if run_dir is None else {}),
        }
        if not progress:
            result = follow(self, callbacks=callbacks, **arguments)
        else:
            with ProgressBar(url=page_url(self._client, self.job_id)) as shown:
                result = follow(self, callbacks=[*callbacks, shown], **arguments)
        unconverged = summary_from_json(result.summary).unconverged
        if unconverged:
            warn(unconverged)
        if any(ended.state == "done" for ended in records_of(JobEnded, result.story[-5:])):
            forget_checkpoints(self.record)
        return result

    def outcome(self) -> JobOutcome:
        """Fetch the job's results so far: arrays, snapshots, history, summary."""
        return read_outcome(self._ask("em_result"))

    def _ask(self, handler: str, **arguments: Any) -> Record:
        if self.interrupt.is_set():
            self.interrupt.clear()
            raise KeyboardInterrupt
        if self._client.status != "running":  # a closed one has no scheduler to ask
            raise self._lost("cannot be reached: it is gone")

        def call() -> Any:
            return getattr(self._client.scheduler, handler)(job=self.job_id, **arguments)

        try:
            answer = self._client.sync(_reply, self._client, call)
            if answer is None:  # it does not know the handler
                raise OSError("another scheduler answers at its address")
            answer = unwrap_reply(answer)
        except OSError as error:
            raise self._lost(f"cannot be reached: {error or 'it is gone'}") from error
        except ConfigError as error:
            if self._was_known and error.fields.get("reason") == UNKNOWN_JOB:
                raise self._lost(
                    "does not know it any more: it was restarted, or has dropped old results"
                ) from error
            raise
        self._was_known = True
        return answer

    def _lost(self, how: str) -> JobFailedError:
        return JobFailedError(f"the scheduler of job {self.job_id} {how}", reason=SCHEDULER_LOST)


async def _reply(client: Client, ask: Callable[[], Coroutine[Any, Any, Record]]) -> Record | None:
    """Await a reply of the scheduler, but not its return once the client has lost it.

    Raises
    ------
    OSError
        When the client is not connected. A new connection would be tried for 30 s.
    """
    if client.status != "running":
        raise OSError("it is gone")
    reply = asyncio.ensure_future(ask())
    try:
        while not (await asyncio.wait([reply], timeout=LOOK_S))[0]:
            if client.status != "running":
                raise OSError("it is gone")
        return reply.result()
    finally:
        reply.cancel()


def story_batches(
    ask: Callable[[int], Record], since: int, *, waits: bool = True
) -> Iterator[Sequence[Record]]:
    """Yield a story in batches as it grows, to its end.

    Parameters
    ----------
    ask : callable (int)
        Returns the reply to ``em_poll`` for the records from a given number.
    since : int
        Number of the first record to request.
    waits : bool
        Whether to wait for more records until the job has ended.
    """
    while True:
        answer = ask(since)
        yield answer["records"]
        since = answer["next"]
        if waits and answer["done"] and not answer["records"]:
            return
        if not waits and since >= answer["told"]:
            return


def attach_handle(client: Client, job_id: str, objects: Sequence[Any] = ()) -> Handle:
    """Return a handle to a job that another client started.

    Raises
    ------
    ConfigError
        When the scheduler does not run elasticml or does not know the job.
    """
    prepare_scheduler(client)
    answer = Handle(client, job_id, job_record({}))._poll(0)
    record = job_record(next(records_of(JobBegun, answer["records"])).spec)
    give_again(record.fields_json(), objects)
    return Handle(client, job_id, record)


def prepare_scheduler(client: Client, workers: Sequence[str] = ()) -> None:
    """Install the driver plugin on a scheduler; it turns workers into members. Idempotent.

    Parameters
    ----------
    workers : sequence of str
        Addresses of workers that shall have elasticml too.

    Raises
    ------
    ConfigError
        When the scheduler or a worker lacks elasticml, or has another version.
    """
    from elasticml.runtime.scheduler_plugin import ElasticmlScheduler

    check_installed(client, workers)
    client.register_plugin(ElasticmlScheduler())


def jobs_on(client: Client) -> list[dict[str, Any]]:
    """Return the jobs of a scheduler, newest first: id, name, algorithm, state and last figures.

    Raises
    ------
    ConfigError
        When the scheduler has another version of elasticml.
    """
    prepare_scheduler(client)
    jobs: Mapping[str, Mapping[str, Any]] = client.sync(client.scheduler.em_jobs)
    return [{"job": job, **figures} for job, figures in list(jobs.items())[::-1]]


def workers_of(client: Client) -> Mapping[str, Any]:
    """Return the scheduler's workers: the information about each, by address.

    ``client.scheduler_info()`` is not reliable: every two seconds the client refreshes it without
    the workers, possibly between our request and our access to the reply.
    """
    workers: Mapping[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    return workers


def page_url(client: Client, job_id: str) -> str | None:
    """Return the address of the scheduler's page with a job; None if it does not answer here."""
    from urllib.parse import quote, urljoin

    import urllib3

    try:
        link = urljoin(client.dashboard_link, "elasticml")
        answer = urllib3.request("GET", link, timeout=PAGE_S, retries=False)
    except (urllib3.exceptions.HTTPError, OSError, ValueError, KeyError, TypeError):
        return None  # no HTTP server, an address that only a proxy knows, a firewall
    return f"{link}#{quote(job_id)}" if answer.status == HTTPStatus.OK else None
