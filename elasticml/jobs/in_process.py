"""Start and follow a job on the scheduler of this process, without a client."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elasticml.data.source import Source
from elasticml.errors import JobFailedError
from elasticml.jobs.handle import POLL_S, Record, story_batches
from elasticml.jobs.wire import Outcome, checked, read_outcome

if TYPE_CHECKING:
    from distributed import Scheduler

    from elasticml.runtime.scheduler_plugin import ElasticmlScheduler


async def start_in_process(
    scheduler: Scheduler,
    record: Mapping[str, Any],
    source: Source | None = None,
    test: Source | None = None,
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
    checked(await plugin.submit(record))
    return InProcessJob(plugin, asyncio.get_running_loop(), record, source, test)


class InProcessJob:
    """A job in this process; call its methods from other threads than that of the event loop."""

    def __init__(
        self,
        plugin: ElasticmlScheduler,
        loop: asyncio.AbstractEventLoop,
        record: Mapping[str, Any],
        source: Source | None,
        test: Source | None,
    ) -> None:
        #: The job record.
        self.spec = record
        self.source = source
        self.test = test
        self._job = str(record["job"])
        self._plugin = plugin
        self._loop = loop

    def batches(self, since: int = 0) -> Iterator[Sequence[Record]]:
        """Yield the story in batches as it grows, to its end."""
        yield from story_batches(
            lambda n: self._ask(self._plugin.poll(self._job, since=n, wait_s=POLL_S)), since
        )

    def outcome(self) -> Outcome:
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
        return checked(answer)
