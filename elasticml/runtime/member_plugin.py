"""The member in a Dask worker: a WorkerPlugin that lives as long as its worker."""

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
from elasticml.runtime.executors import ThreadRunner, parallel
from elasticml.runtime.fault_injection import SLOWNESS_EXTENSION, FaultSlowdown
from elasticml.runtime.member_host import MemberHost
from elasticml.runtime.worker_context import WorkerContext
from elasticml.runtime.worker_limits import WorkerLimits

logger = logging.getLogger(__name__)

NAME = "elasticml-member"
#: Thread switches are not waited for longer than this, so that links stay quick beside Python work.
SWITCH_INTERVAL_S = 5e-4


class MemberPlugin(WorkerPlugin):
    """Makes a worker a place where members of any number of jobs can live.

    Parameters
    ----------
    version : str
        The scheduler's elasticml; a worker with another one is refused.
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
        environment = WorkerContext(
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
        budget = WorkerLimits.of_worker(worker.memory_manager.memory_limit, folder)

        async def announce() -> list[str]:
            return list(await worker.scheduler.em_announce(address=worker.address))

        self.host = MemberHost(environment, announce, budget)
        self._announcing = asyncio.get_running_loop().create_task(announce())

    async def teardown(self, worker: Worker) -> None:
        """End all members of this worker."""
        if self.host is not None:
            self.host.close()
        for runner in self._runners:
            runner.close()


def _plugin_of(worker: Any) -> MemberPlugin | None:
    plugin = worker.plugins.get(NAME)
    return plugin if isinstance(plugin, MemberPlugin) else None


async def announce_notice(worker: Worker, grace_s: float, reason: str) -> None:
    """Tell every job that this worker will go; return when it may, at the latest after the grace.

    Parameters
    ----------
    worker : distributed.Worker
    grace_s : float
        Seconds until the worker's process is stopped.
    reason : str
        "terminated" (the process has been told to end), "preempted", ...: for the story.
    """
    plugin = _plugin_of(worker)
    if plugin is None or plugin.host is None:
        return
    telling: list[asyncio.Future[None]] = []
    if reason == "terminated":
        # Also of members that have been let go already, whose own links are closed.
        said = worker.scheduler.em_stopping(address=worker.address, grace_s=grace_s)
        telling.append(asyncio.ensure_future(said))
    await plugin.host.notice(grace_s, reason)
    if telling:
        await asyncio.wait(telling, timeout=grace_s)
        for told in telling:
            if told.done() and not told.cancelled() and told.exception() is not None:
                logger.info("the scheduler was not told of the end: %s", told.exception())
