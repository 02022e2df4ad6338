"""The Dask WorkerPlugin that runs members in a worker."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import sys
import time
from typing import Any, Final

from distributed import Status, Worker
from distributed.diagnostics.plugin import WorkerPlugin

from elasticml.collective.dask_transport import transport_of
from elasticml.data.out_of_core.mapped_memory import process_memory, spill_folder
from elasticml.errors import ConfigError
from elasticml.ids import VERSION
from elasticml.runtime.executors import SWITCH_INTERVAL_S, BriefRunner, ThreadRunner, parallel
from elasticml.runtime.fault_injection import SLOWNESS_EXTENSION, FaultSlowdown
from elasticml.runtime.member_host import MemberHost
from elasticml.runtime.partitions import PartitionRequests
from elasticml.runtime.signal_drain import SignalDrain, signal_grace_s
from elasticml.runtime.worker_context import WorkerContext
from elasticml.runtime.worker_limits import WorkerLimits

logger = logging.getLogger(__name__)

NAME = "elasticml-member"

#: Seconds that a drained worker has to close before its process is ended.
CLOSE_S_MAX: Final = 2.0
#: Memory that reading a block of text takes besides its chunks, and the share of a worker's limit
#: for all blocks that are read at once.
READER_BYTES: Final = 64 * 2**20
READERS_SHARE: Final = 0.15
#: Longest drain of a worker that is closed without a notice: its nanny may kill it after 4 s.
TEARDOWN_S_MAX: Final = 3.0
#: Pause between two announcements.
AGAIN_S: Final = 1.0
#: A worker announces itself while it starts, and while it works.
RUNNING: Final = frozenset({Status.init, Status.starting, Status.running, Status.paused})


async def announced(worker: Worker) -> list[str]:
    """Announce a worker to its scheduler, until it answers; return the jobs that it runs.

    The connection may break while the scheduler lives. If it has ended, Dask closes the worker.
    """
    while worker.status in RUNNING:
        try:
            return list(await worker.scheduler.em_announce(address=worker.address))
        except OSError as error:
            logger.info("the scheduler cannot be reached: %s; announcing again", error)
            await asyncio.sleep(AGAIN_S)
    return []


class MemberPlugin(WorkerPlugin):
    """Runs members of any number of jobs in a worker, and drains them before the worker ends.

    Drained are workers that get ``em_notice`` or SIGTERM, and those that are closed while the
    scheduler is there. A cluster whose processes are elasticml's own handles their ends itself.

    Parameters
    ----------
    version : str
        The scheduler's version of elasticml; a worker with another version is refused.
    """

    name = NAME

    def __init__(self, version: str) -> None:
        self.version = version
        self.host: MemberHost | None = None
        self._runners: list[BriefRunner | ThreadRunner] = []
        self._announcing: asyncio.Task[list[str]] | None = None
        self._worker: Worker | None = None
        #: The announcement of this worker's end; there is only one.
        self._departure: asyncio.Task[None] | None = None
        self._signals: SignalDrain | None = None

    def setup(self, worker: Worker) -> None:
        """Listen for links and announce this worker to the scheduler."""
        if self.version != VERSION:
            raise ConfigError(
                f"worker {worker.address} has elasticml {VERSION}, the scheduler "
                f"{self.version}: install the same version on both"
            )
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        threads = worker.state.nthreads
        process_memory.limit_bytes = worker.memory_manager.memory_limit
        readers = process_memory.share(READERS_SHARE, threads * READER_BYTES) // READER_BYTES
        compute = BriefRunner("em-compute")
        reading = ThreadRunner("em-read", max(1, readers))
        self._runners = [compute, reading]
        context = WorkerContext(
            transport=transport_of(worker),
            compute=compute,
            reading=reading,
            parallel=parallel(threads),
            clock=time.monotonic,
            host=worker.ip,
            pid=os.getpid(),
            threads=threads,
            slowness=worker.extensions.setdefault(SLOWNESS_EXTENSION, FaultSlowdown()),
            partitions=PartitionRequests(worker),
            objects=lambda job: worker.scheduler.em_objects(job=job),
        )
        folder = spill_folder(worker.local_directory)
        limits = WorkerLimits.of_worker(worker.memory_manager.memory_limit, folder)

        announce = functools.partial(announced, worker)
        self.host = MemberHost(context, announce, limits)
        self._announcing = asyncio.get_running_loop().create_task(announce())
        self._worker = worker
        if worker.handlers.setdefault("em_notice", self.notice) == self.notice:
            self._signals = SignalDrain(self._on_signal, self._close_worker)
            self._signals.install()

    async def teardown(self, worker: Worker) -> None:
        """Close all members of this worker; drain it if it is closed without a notice."""
        if self._signals is not None:
            self._signals.restore()
        if worker.handlers.get("em_notice") == self.notice:
            if worker.status == Status.closing and _has_scheduler(worker):
                await self._drain_closing(worker)
            del worker.handlers["em_notice"]
        if self.host is not None:
            self.host.close()
        for runner in self._runners:
            runner.close()

    async def notice(self, grace_s: float, reason: str = "terminated") -> str:
        """Drain this worker: its handler ``em_notice``; the reply means that it may be stopped.

        Parameters
        ----------
        grace_s : float
            Seconds until the worker's process is stopped.
        reason : str
            Reason for the jobs' stories.
        """
        assert self._worker is not None
        assert self.host is not None
        if self._departure is None:
            # Dask has taken a plugin off its worker's list before it is torn down.
            work = _announce(self._worker, self.host, grace_s, reason)
            self._departure = asyncio.create_task(work)
        await asyncio.wait([self._departure], timeout=grace_s)
        return "OK"

    async def _drain_closing(self, worker: Worker) -> None:
        """Drain a worker that is being closed, unless no worker is left to take its chunks."""
        if self.host is None or not self.host.is_serving:
            return
        waits = [
            asyncio.ensure_future(self.notice(TEARDOWN_S_MAX)),
            asyncio.ensure_future(worker.scheduler.em_deserted(wait_s=TEARDOWN_S_MAX)),
        ]
        done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in pending:
            wait.cancel()
        for wait in done:
            if wait.exception() is not None:
                logger.info("this worker was closed undrained: %s", wait.exception())

    async def _on_signal(self, received: signal.Signals) -> None:
        worker, grace_s = self._worker, signal_grace_s()
        assert worker is not None
        if received == signal.SIGTERM:
            assert self.host is not None
            # A nanny that has sent it for memory kills the process if it stays as large.
            self.host.release_pages()
            await self.notice(grace_s, "terminated")
        else:
            await worker.scheduler.em_notice(workers=[worker.address], grace_s=grace_s)

    async def _close_worker(self) -> None:
        worker = self._worker
        assert worker is not None
        # Without a nanny the command line does not close the worker, it would only cut its links.
        # A nanny starts the worker again, as if elasticml were not there, unless it ends too.
        await worker.close(
            timeout=CLOSE_S_MAX,
            executor_wait=bool(worker.nanny),
            nanny=False,
            reason="signal-15",
        )


def _has_scheduler(worker: Worker) -> bool:
    """Return whether a worker's connection to the scheduler is open."""
    stream = worker.batched_stream
    return stream is not None and stream.comm is not None and not stream.closed()


def _plugin_of(worker: Any) -> MemberPlugin | None:
    plugin = worker.plugins.get(NAME)
    return plugin if isinstance(plugin, MemberPlugin) else None


async def announce_notice(worker: Worker, grace_s: float, reason: str) -> None:
    """Announce to every job that this worker will stop.

    Return when all members have been released, at the latest after the grace period.

    Parameters
    ----------
    worker : distributed.Worker
    grace_s : float
        Seconds until the worker's process is stopped.
    reason : str
        "terminated" (the process got SIGTERM), "preempted", ...: recorded in the story.
    """
    plugin = _plugin_of(worker)
    if plugin is not None and plugin.host is not None:
        await _announce(worker, plugin.host, grace_s, reason)


async def _announce(worker: Worker, host: MemberHost, grace_s: float, reason: str) -> None:
    report: asyncio.Future[None] | None = None
    if reason == "terminated":
        # The scheduler must also learn it if all members are released and their links closed.
        call = worker.scheduler.em_stopping(address=worker.address, grace_s=grace_s)
        report = asyncio.ensure_future(call)
    await host.notice(grace_s, reason)
    if report is not None:
        await asyncio.wait([report], timeout=grace_s)
        if report.done() and not report.cancelled() and report.exception() is not None:
            logger.info(
                "could not tell the scheduler that the worker stops: %s", report.exception()
            )
