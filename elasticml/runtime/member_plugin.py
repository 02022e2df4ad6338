"""The Dask WorkerPlugin that runs members in a worker."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from typing import Any

from distributed import Worker
from distributed.diagnostics.plugin import WorkerPlugin

from elasticml.collective.dask_transport import transport_of
from elasticml.data.out_of_core.mapped_memory import spill_folder
from elasticml.errors import ConfigError
from elasticml.ids import VERSION
from elasticml.runtime.executors import SWITCH_INTERVAL_S, ThreadRunner, parallel
from elasticml.runtime.fault_injection import SLOWNESS_EXTENSION, FaultSlowdown
from elasticml.runtime.member_host import MemberHost
from elasticml.runtime.worker_context import WorkerContext
from elasticml.runtime.worker_limits import WorkerLimits

logger = logging.getLogger(__name__)

NAME = "elasticml-member"


class MemberPlugin(WorkerPlugin):
    """Runs members of any number of jobs in a worker.

    Parameters
    ----------
    version : str
        The scheduler's version of elasticml; a worker with another version is refused.
    """

    name = NAME

    def __init__(self, version: str) -> None:
        self.version = version
        self.host: MemberHost | None = None
        self._runners: list[ThreadRunner] = []
        self._announcing: asyncio.Task[list[str]] | None = None

    def setup(self, worker: Worker) -> None:
        """Listen for links and announce this worker to the scheduler."""
        if self.version != VERSION:
            raise ConfigError(
                f"worker {worker.address} has elasticml {VERSION}, the scheduler "
                f"{self.version}: install the same version on both"
            )
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        threads = worker.state.nthreads
        compute, reading = ThreadRunner("em-compute"), ThreadRunner("em-read", threads)
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
        )
        folder = spill_folder(worker.local_directory)
        limits = WorkerLimits.of_worker(worker.memory_manager.memory_limit, folder)

        async def announce() -> list[str]:
            return list(await worker.scheduler.em_announce(address=worker.address))

        self.host = MemberHost(context, announce, limits)
        self._announcing = asyncio.get_running_loop().create_task(announce())

    async def teardown(self, worker: Worker) -> None:
        """Close all members of this worker."""
        if self.host is not None:
            self.host.close()
        for runner in self._runners:
            runner.close()


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
    if plugin is None or plugin.host is None:
        return
    report: asyncio.Future[None] | None = None
    if reason == "terminated":
        # The scheduler must also learn it if all members are released and their links closed.
        call = worker.scheduler.em_stopping(address=worker.address, grace_s=grace_s)
        report = asyncio.ensure_future(call)
    await plugin.host.notice(grace_s, reason)
    if report is not None:
        await asyncio.wait([report], timeout=grace_s)
        if report.done() and not report.cancelled() and report.exception() is not None:
            logger.info(
                "could not tell the scheduler that the worker stops: %s", report.exception()
            )
