"""The driver in a Dask scheduler: a SchedulerPlugin that runs jobs and answers clients."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import numpy as np
from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.protocol.pickle import dumps
from distributed.system import MEMORY_LIMIT

from elasticml.algorithms.base import Arrays
from elasticml.algorithms.registry import column_bytes
from elasticml.collective.dask_transport import transport_of
from elasticml.control.job_state import JobState
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.readers.files import located
from elasticml.data.source import source_from_spec
from elasticml.errors import UNKNOWN_JOB, ConfigError, ElasticmlError, error_to_dict
from elasticml.ids import RECORD_VERSION, VERSION, chunk_id
from elasticml.protocol.events import BlocksLocated
from elasticml.protocol.job_record import JobRecord, job_record
from elasticml.protocol.notices import ContainerStopping, MarkLifted, Notice
from elasticml.runtime.block_registry import BlockRegistry, columns_that_fit
from elasticml.runtime.checkpoints.attempt_claim import AttemptClaim
from elasticml.runtime.checkpoints.checkpoint_store import checkpoint_of, read_checkpoint
from elasticml.runtime.dask_demand import DaskDemand
from elasticml.runtime.driver_agent import DriverAgent, DriverContext
from elasticml.runtime.executors import BriefRunner, ThreadRunner
from elasticml.runtime.fault_injection import FAULT_INJECTOR_EXTENSION
from elasticml.runtime.finished_jobs import KEYS, FinishedJob, FinishedJobs
from elasticml.runtime.member_plugin import NAME as MEMBER_NAME
from elasticml.runtime.member_plugin import MemberPlugin
from elasticml.runtime.notice_service import NoticeService, check_notice
from elasticml.runtime.partitions import PartitionFeed
from elasticml.runtime.preemption_board import board_of, for_job
from elasticml.runtime.retirements import Retirements
from elasticml.runtime.scaler import SCALER_EXTENSION
from elasticml.runtime.signal_drain import NannySignals
from elasticml.runtime.web.page import serve_page
from elasticml.specification.user_objects import receive_objects
from elasticml.story.history import HistoryRow
from elasticml.training.checkpoint import Checkpoint, record_to_resume

logger = logging.getLogger(__name__)

TICK_S = 0.02
#: Longest wait until the present workers have loaded elasticml, in seconds.
LOADING_S_MAX = 3.0
#: Topic under which a nanny reports that it ends a worker for memory.
MEMORY_TOPIC = "worker-restart-memory"
#: Most story records in one reply: a day's story is larger than a message should be.
POLLED_MAX = 10_000
#: The records of this many seconds go into one reply: a reply costs this process about as much as
#: its work between two exchanges, at that very time.
GATHERED_S = 0.1


class ElasticmlScheduler(SchedulerPlugin):
    """Runs jobs in the scheduler process; there is one per scheduler.

    Its pickle contains its version only: jobs arrive as records through its handlers.
    """

    name = "elasticml"
    idempotent = True

    def __init__(self) -> None:
        self.version = VERSION

    async def start(self, scheduler: Scheduler) -> None:
        """Register the handlers, and load the member plugin on all present and future workers."""
        if self.version != VERSION:
            raise ConfigError(
                f"the scheduler has elasticml {VERSION}, the client {self.version}: "
                "install the same version on both"
            )
        self._scheduler = scheduler
        #: Running and finished jobs, oldest first.
        self.known_jobs: dict[str, DriverAgent | FinishedJob] = {}
        self._finished = FinishedJobs(self._drop)
        #: What drives each running job.
        self._drives: dict[str, asyncio.Task[None]] = {}
        #: Of jobs whose data are Dask collections.
        self._feeds: dict[str, PartitionFeed] = {}
        #: Objects of running jobs that workers cannot import, pickled.
        self._objects: dict[str, Mapping[str, bytes]] = {}
        self.ready: set[str] = set()
        #: Names of the workers that have announced themselves, and their memory limits.
        self._announced: dict[str, tuple[str, int]] = {}
        #: Set while no worker can serve.
        self._deserted = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        handlers: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            "em_announce": self.announce,
            "em_stopping": self.stopping,
            "em_deserted": self.deserted,
            "em_checkpoint": self.checkpoint,
            "em_partitions": self.partitions,
            "em_submit": self.submit,
            "em_poll": self.poll,
            "em_cancel": self.cancel,
            "em_result": self.result,
            "em_jobs": self.jobs,
            "em_objects": self.objects,
            "em_forget": self.forget,
            "em_demand": self.demand,
        }
        scheduler.handlers.update(handlers)
        self._board = board_of(scheduler.extensions)
        self._board.subscribe(self._on_notice)
        self._notices = NoticeService(scheduler, self._board)
        scheduler.handlers.update(self._notices.handlers)
        self._demand = DaskDemand(scheduler, self._states)
        self._retirements = Retirements(scheduler, self._board, self._states)
        transport_of(scheduler)
        self._page = serve_page(scheduler, self.known_jobs)
        loading = asyncio.ensure_future(self._register_worker_plugin())
        self._keep(loading)
        # A worker that is stopped does not answer; those that do announce themselves.
        await asyncio.wait([loading], timeout=LOADING_S_MAX)
        # Not awaited: it waits for all nannies that start at present.
        self._spawn(self._register_nanny_plugin())

    async def _register_worker_plugin(self) -> None:
        """Load the member plugin on all present and future workers."""
        try:
            await self._scheduler.register_worker_plugin(
                None, dumps(MemberPlugin(self.version)), MEMBER_NAME, idempotent=True
            )
        except OSError as error:  # that worker is gone; the others announce themselves
            logger.warning("a worker ended while it loaded elasticml: %s", error)

    async def _register_nanny_plugin(self) -> None:
        """Drain the workers of nannies whose process receives a signal."""
        try:
            await self._scheduler.register_nanny_plugin(
                None, dumps(NannySignals()), NannySignals.name, idempotent=True
            )
        except Exception as error:
            logger.warning("a nanny does not handle signals for elasticml: %s", error)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self._keep(asyncio.get_running_loop().create_task(work))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all jobs."""
        self._page.close()
        for task in list(self._tasks):
            task.cancel()
        for drive in list(self._drives.values()):
            drive.cancel()
        for shell in self._running():
            await shell.close()
        self._finished.close()
        for feed in self._feeds.values():
            await feed.close()
        self._retirements.close()

    def _running(self) -> list[DriverAgent]:
        return [
            shell
            for shell in self.known_jobs.values()
            if isinstance(shell, DriverAgent) and not shell.ended.is_set()
        ]

    def _states(self) -> list[JobState]:
        return [shell.machine.state for shell in self._running()]

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """Tell the jobs that a worker is gone."""
        self._unready(worker)
        for shell in self._running():
            shell.worker_removed(worker)
        for feed in self._feeds.values():
            feed.removed(worker)
        self._notices.removed(worker)

    def log_event(self, topic: str, msg: Any) -> None:
        """Tell the jobs that a nanny ends a worker because its memory is full."""
        if topic != MEMORY_TOPIC or msg.get("worker") not in self._announced:
            return
        name, limit_bytes = self._announced[msg["worker"]]
        for shell in self._running():
            shell.ended_for_memory(msg["worker"], name, msg["rss"], limit_bytes)

    def _unready(self, worker: str) -> None:
        """Offer a worker to no job any more."""
        self.ready.discard(worker)
        if not self.ready:
            self._deserted.set()

    def _on_notice(self, notice: Notice) -> None:
        """Pass a notice about a container or node on to the running jobs.

        If a single job runs and the cluster can scale, the job chooses which container to release.
        """
        running = self._running()
        may_choose = len(running) == 1 and SCALER_EXTENSION in self._scheduler.extensions
        for shell in running:
            shell.feed(for_job(notice, may_choose))
            if isinstance(notice, MarkLifted) and notice.address in self.ready:
                # Its member may have been released, and the container not taken.
                shell.invite(notice.address)

    # --- handlers ------------------------------------------------------------------------

    async def announce(self, address: str) -> list[str]:
        """Record a worker that can serve, invite it to the running jobs, and return their ids."""
        check_notice([address], 0.0)
        if address not in self._scheduler.workers:
            return []  # it is gone meanwhile
        self.ready.add(address)
        worker = self._scheduler.workers.get(address)
        if worker is not None:
            self._announced[address] = str(worker.name), worker.memory_limit or 0
        self._deserted.clear()
        running = self._running()
        for shell in running:
            shell.invite(address)
        return sorted(shell.job for shell in running)

    async def stopping(self, address: str, grace_s: float) -> None:
        """Record a worker whose process has received SIGTERM; notify the jobs."""
        check_notice([address], grace_s)
        self._unready(address)
        event = ContainerStopping(cause=f"SIGTERM {address}", address=address, grace_s=grace_s)
        for shell in self._running():
            shell.feed(event)

    async def deserted(self, wait_s: float) -> None:
        """Return when no worker is left that could take chunks, at the latest after ``wait_s``."""
        await _first(self._deserted, wait_s)

    async def checkpoint(self, place: str) -> dict[str, Any]:
        """Return the record of the job whose checkpoints are in a place; none if it has none."""
        try:
            checkpoint = await asyncio.to_thread(read_checkpoint, place)
        except ElasticmlError as error:
            return {"error": error_to_dict(error)}
        return {"record": None if checkpoint is None else checkpoint.record.fields_json()}

    async def submit(
        self,
        record: Mapping[str, Any],
        ids: Sequence[str] = (),
        bodies: Sequence[Any] = (),
        summaries: Sequence[Mapping[str, Any]] = (),
        graph: bytes | None = None,
        objects: Mapping[str, bytes] | None = None,
    ) -> dict[str, Any]:
        """Start a job; return its id, or the error that prevented its start.

        With ``resume``, the path of its checkpoints, it continues from the last of them;
        ``reached`` may state the progress made before, ``round`` and ``seconds``.

        ``ids``, ``bodies`` and ``summaries`` are those of an in-memory source; ``graph`` is the
        pickled :class:`PartitionGraph` of Dask collections; ``objects`` are the user's that cannot
        be imported, pickled, by their paths in the record.
        """
        submitted = job_record(record)
        receive_objects(objects or {})
        blocks: dict[int, list[tuple[str, Any]]] = {}
        for id, body in zip(ids, bodies, strict=True):
            blocks.setdefault(chunk_id(id).block, []).append((id, body))
        place = submitted.checkpoint
        claim = None if place is None else AttemptClaim(submitted.job, place)
        try:
            resumed = await asyncio.to_thread(checkpoint_of, submitted, claim)
            known = [BlockSummary.from_json(s) for s in summaries]
            registry = BlockRegistry(blocks, known)
            shell = self._make(submitted, registry, resumed, claim, objects or {})
            if graph is not None:
                self._feeds[shell.job] = PartitionFeed(self._scheduler, shell.job, graph)
        except ElasticmlError as error:
            if claim is not None:
                await asyncio.to_thread(claim.release)
            return {"error": error_to_dict(located(error, "the scheduler"))}
        self.known_jobs[shell.job] = shell
        if objects:
            self._objects[shell.job] = objects
        shell.driver_session.open(shell.now_s())
        for mark in self._board.live():
            shell.feed(for_job(mark, may_choose=False))  # it has no members to choose from yet
        self._demand.started(shell.job)
        feed = self._feeds.get(shell.job)
        if feed is not None:
            shell.feed(BlocksLocated(cause="Dask", holders=feed.holders()))
        self._drives[shell.job] = asyncio.get_running_loop().create_task(self._drive(shell))
        for address in sorted(self.ready):
            shell.invite(address)
        return {"job": shell.job}

    def _make(
        self,
        record: JobRecord,
        blocks: BlockRegistry,
        resumed: Checkpoint | None,
        claim: AttemptClaim | None,
        objects: Mapping[str, bytes],
    ) -> DriverAgent:
        if record.version != RECORD_VERSION or record.package != self.version:
            raise ConfigError(
                f"the job record is of elasticml {record.package}, the scheduler runs "
                f"{self.version}: install the same version on both"
            )
        injector = self._scheduler.extensions.get(FAULT_INJECTOR_EXTENSION)
        if record.faults and injector is None:
            raise ConfigError(
                "faults: needs a cluster whose processes elasticml owns, and this one is "
                "another's; use cluster.kind: local, or leave faults out"
            )
        source = source_from_spec(record.data)
        if resumed is not None:
            record = record_to_resume(record, resumed, source)
        context = DriverContext(
            transport=transport_of(self._scheduler),
            runner=BriefRunner(f"em-driver-{record.job}"),
            clock=time.monotonic,
            injector=injector,
            scaler=self._scheduler.extensions.get(SCALER_EXTENSION),
            more_workers=self._demand.more_workers,
            io_runner=ThreadRunner(f"em-checkpoint-{record.job}"),
            claim=claim,
            has_objects=bool(objects),
        )
        shell = DriverAgent(record, context, source=source, blocks=blocks, resumed=resumed)
        members = [(w.memory_limit, w.nthreads) for w in self._scheduler.workers.values()]
        remembered = column_bytes(record.algorithm)
        shell.driver_session.columns_max = columns_that_fit(MEMORY_LIMIT, members, remembered)
        return shell

    async def _drive(self, shell: DriverAgent) -> None:
        """Tick a job's driver until the job ends; then keep its results only."""
        job = shell.job
        while not shell.ended.is_set():
            shell.tick()
            await asyncio.sleep(TICK_S)
        self._demand.ended(job)
        self._objects.pop(job, None)
        feed = self._feeds.pop(job, None)
        if feed is not None:
            await feed.close()
        await shell.wind_down()
        if self.known_jobs.get(job) is shell:
            finished = FinishedJob.of(shell.record, shell.driver_session, shell.now_s())
            self.known_jobs[job] = finished
            self._finished.add(job, finished.nbytes)
        self._drives.pop(job, None)
        shell.dismantle()

    def _drop(self, job: str) -> None:
        """Forget a finished job."""
        self.known_jobs.pop(job, None)
        self._finished.forget(job)
        self._page.forget(job)

    def _shell(self, job: str) -> DriverAgent | FinishedJob:
        shell = self.known_jobs.get(job)
        if shell is None:
            raise ConfigError(
                f"no job {job!r} here, wanted one of {sorted(self.known_jobs)}; finished jobs are "
                f"kept as long as the scheduler's Dask configuration says: {', '.join(KEYS)}",
                reason=UNKNOWN_JOB,
            )
        return shell

    async def partitions(
        self, job: str, address: str, blocks: Sequence[int], request: int
    ) -> dict[str, Any]:
        """Give a member partitions of its job's Dask collections; return when it has taken them."""
        feed = self._feeds.get(job)
        return {} if feed is None else await feed.fetch(address, blocks, request)

    async def objects(self, job: str) -> Mapping[str, bytes]:
        """Return what a job's members need and cannot import, pickled."""
        return self._objects.get(job, {})

    async def poll(self, job: str, since: int = 0, wait_s: float = 0.0) -> dict[str, Any]:
        """Return story records from ``since`` on; wait for the next one if there is none yet.

        A long story is sent in parts: more follows while ``next`` is less than ``told``.
        """
        try:
            shell = self._shell(job)
        except ElasticmlError as unknown:
            nothing = {"done": True, "records": [], "next": since, "told": since}
            return {"error": error_to_dict(unknown), **nothing}
        # They outlive the driver: the job may end, and be forgotten, during a wait.
        journal, ended, state, error = shell.journal, shell.ended, shell.state, shell.error
        if wait_s > 0 and not ended.is_set() and len(journal.story) < since + POLLED_MAX:
            if len(journal.story) <= since:
                shell.grown.clear()
                await _first(shell.grown, wait_s)
            if len(journal.story) > since:
                await _first(ended, GATHERED_S)
            now = self.known_jobs.get(job)
            if now is not None:
                state, error = now.state, now.error
        records = journal.story[since : since + POLLED_MAX]
        return {
            "records": records,
            "next": since + len(records),
            "told": len(journal.story),
            "done": ended.is_set(),
            "state": state,
            "rows": len(journal.rows),
            "error": error,
        }

    async def cancel(self, job: str) -> dict[str, Any]:
        """End a job now; its last model remains as its result."""
        try:
            shell = self._shell(job)
            if isinstance(shell, DriverAgent):
                shell.cancel()
        except ElasticmlError as error:
            return {"error": error_to_dict(error)}
        return {}

    async def result(self, job: str) -> dict[str, Any]:
        """Return a job's model, snapshots, history and summary, as far as they exist."""
        try:
            shell = self._shell(job)
        except ElasticmlError as error:
            return {"error": error_to_dict(error)}
        data: Mapping[str, Any]
        summary: Mapping[str, Any]
        if isinstance(shell, DriverAgent):
            session = shell.driver_session
            arrays = session.result_arrays()
            summary, facts, data = session.summary, session.facts, session.source.spec()
        else:
            arrays, summary, facts, data = shell.arrays, shell.summary, shell.facts, shell.data
            self._finished.fetched(job)
        return {
            "arrays": _wire(arrays),
            "snapshots": {r: _wire(model) for r, model in shell.journal.snapshots.items()},
            "history": list(shell.journal.rows),
            "summary": dict(summary),
            "facts": None if facts is None else facts.to_json(),
            "data": data,
            "state": shell.state,
            "error": shell.error,
        }

    async def jobs(self) -> dict[str, Any]:
        """Return this scheduler's jobs by id, oldest first: their states and last figures."""
        return {job: _figures(shell) for job, shell in self.known_jobs.items()}

    async def demand(self) -> dict[str, Any]:
        """Return what the jobs ask of a client's cluster: nothing if the cluster has a scaler."""
        asked = await self._demand.asked()
        if SCALER_EXTENSION in self._scheduler.extensions:
            return {"running": 0, "workers": 0, "idle": []}
        return asked

    async def forget(self, job: str) -> dict[str, Any]:
        """Drop a finished job's results; cancel it first if it is running."""
        shell, drive = self.known_jobs.get(job), self._drives.get(job)
        self._drop(job)
        if isinstance(shell, DriverAgent):
            shell.cancel()
        if drive is not None:
            await asyncio.wait([drive])
        return {}


def _figures(shell: DriverAgent | FinishedJob) -> dict[str, Any]:
    rows, has_ended = shell.journal.rows, shell.ended.is_set()
    last = HistoryRow(rows[-1] if len(rows) else {})
    return {
        "name": shell.record.name,
        "algorithm": shell.record.algorithm_name,
        "state": shell.state,
        "round": last.round,
        "objective": last.objective,
        "gap": last.gap,
        "members": last.members,
        "seconds": last.seconds if has_ended else shell.now_s(),
    }


async def _first(event: asyncio.Event, wait_s: float) -> None:
    """Wait for an event, at most ``wait_s`` seconds."""
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait([waiting], timeout=wait_s)
    waiting.cancel()


def _wire(arrays: Arrays) -> dict[str, Any]:
    return {
        name: {"shape": list(array.shape), "data": np.ascontiguousarray(array).tobytes()}
        for name, array in arrays.items()
    }
