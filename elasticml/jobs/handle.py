"""A client's hold on a job that lives on the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticml.data.source import Source, source_from_spec
from elasticml.errors import JobFailedError
from elasticml.jobs.checkpoints import forget_checkpoints
from elasticml.jobs.follow import Watcher, follow
from elasticml.jobs.progress import Progress
from elasticml.jobs.result import Result
from elasticml.jobs.status import JobStatus
from elasticml.jobs.wire import Outcome, checked, read_outcome

if TYPE_CHECKING:
    from distributed import Client

Record = Mapping[str, Any]

#: How long the scheduler holds a question for new records before it answers that there are none.
POLL_S = 1.0


class Handle:
    """A job on a scheduler; the client may leave, and another attach by ``job_id``.

    Iterating yields the story from its beginning, record by record, until the job is over.
    """

    def __init__(
        self,
        client: Client,
        job_id: str,
        record: Record,
        source: Source | None = None,
        test: Source | None = None,
    ) -> None:
        self.job_id = job_id
        #: The job record.
        self.spec = record
        self.source = source
        self.test = test
        self._client = client
        self._status = JobStatus(job=job_id)
        self._seen = 0

    def __repr__(self) -> str:
        return f"<Handle {self.job_id}>"

    def status(self) -> JobStatus:
        """Ask how the job stands now.

        Raises
        ------
        ConfigError
            When the scheduler does not know the job (any more).
        JobFailedError
            When the scheduler cannot be reached.
        """
        while True:
            answer = self._ask("em_poll", since=self._seen, wait_s=0.0)
            for record in answer["records"]:
                self._status = self._status.after(record)
            self._seen = answer["next"]
            if self._seen >= answer["told"]:
                return self._status

    def cancel(self) -> None:
        """End the job now; what it has reached stays as its result."""
        self._ask("em_cancel")

    def forget(self) -> None:
        """Drop the job's results on the scheduler; they would stay for 24 hours."""
        self._ask("em_forget")

    def batches(self, since: int = 0) -> Iterator[Sequence[Record]]:
        """Yield the story in batches as it grows, from a record's number on, to its end.

        An empty batch says that nothing has happened for a while.
        """
        yield from story_batches(lambda n: self._ask("em_poll", since=n, wait_s=POLL_S), since)

    def events(self, since: int = 0) -> Iterator[Record]:
        """Yield the story's records as they are told, from a record's number on, to its end."""
        for batch in self.batches(since):
            yield from batch

    def __iter__(self) -> Iterator[Record]:
        return self.events()

    def result(
        self,
        *,
        progress: bool = False,
        run_dir: str | Path | None = None,
        watchers: Sequence[Watcher] = (),
        cluster: Mapping[str, Any] | None = None,
        cancels: bool = False,
        continues: bool = False,
    ) -> Result:
        """Wait for the job's end, evaluate its models, and return what it has come to.

        Parameters
        ----------
        progress : bool
            Whether the terminal shows how the job stands.
        run_dir : path, optional
            Where story, history, model, summary and report are written, while the job runs.
        watchers : sequence of Watcher
            Told the story as it grows.
        cluster : mapping, optional
            The ``cluster`` section for ``job.yaml``.
        cancels : bool
            Whether Ctrl-C ends the job, too, and not only the waiting.
        continues : bool
            The directory holds the run that goes on.

        Raises
        ------
        ElasticmlError
            What made the job fail; the directory holds what it had reached.
        """
        arguments: dict[str, Any] = {
            "run_dir": run_dir,
            "cluster": cluster,
            "evaluates": self.spec.get("evaluate") is not False,
            "cancels": cancels,
            "continues": continues,
        }
        if not progress:
            result = follow(self, watchers=watchers, **arguments)
        else:
            with Progress() as shown:
                result = follow(self, watchers=[*watchers, shown], **arguments)
        if any(r["event"] == "JobEnded" and r.get("state") == "done" for r in result.story[-5:]):
            forget_checkpoints(self.spec)
        return result

    def outcome(self) -> Outcome:
        """Fetch what the job has reached so far: arrays, snapshots, history, summary."""
        return read_outcome(self._ask("em_result"))

    def _ask(self, handler: str, **arguments: Any) -> Record:
        call = getattr(self._client.scheduler, handler)
        try:
            answer = self._client.sync(call, job=self.job_id, **arguments)
        except OSError as error:
            raise JobFailedError(
                f"the scheduler of job {self.job_id} cannot be reached: {error or 'it is gone'}",
                reason="scheduler lost",
            ) from error
        return checked(answer)


def story_batches(ask: Callable[[int], Record], since: int) -> Iterator[Sequence[Record]]:
    """Yield a story in batches as it grows, to its end.

    Parameters
    ----------
    ask : callable (int)
        Returns the answer to ``em_poll`` for what there is from a record's number on.
    since : int
        The number of the first record to ask for.
    """
    while True:
        answer = ask(since)
        yield answer["records"]
        since = answer["next"]
        if answer["done"] and not answer["records"]:
            return


def attach_handle(client: Client, job_id: str) -> Handle:
    """Get hold of a job that another client started.

    Raises
    ------
    ConfigError
        When the scheduler does not run elasticml or does not know the job.
    """
    prepare_scheduler(client)
    answer = Handle(client, job_id, {})._ask("em_poll", since=0, wait_s=0.0)
    record = answer["records"][0]["spec"]
    test = record.get("test")
    return Handle(
        client,
        job_id,
        record,
        source_from_spec(record["data"]),
        None if test is None else source_from_spec(test),
    )


def prepare_scheduler(client: Client) -> None:
    """Install the driver on a scheduler; it makes members of its workers. Idempotent.

    Raises
    ------
    ConfigError
        When the scheduler has another version of elasticml.
    """
    from elasticml.runtime.scheduler_plugin import ElasticmlScheduler

    client.register_plugin(ElasticmlScheduler())


def workers_of(client: Client) -> Mapping[str, Any]:
    """Ask the scheduler which workers it has: what is known of each, by its address.

    Not what ``client.scheduler_info()`` keeps: every two seconds the client looks at the scheduler
    without its workers, and that may come between an answer and its reading.
    """
    found: Mapping[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    return found
