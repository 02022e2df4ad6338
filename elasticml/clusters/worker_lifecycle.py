"""Graceful shutdown of a worker process: on a notice or SIGTERM, announce it to jobs, then exit.

Shared by every cluster whose workers are ours: workers are not restarted, and jobs learn in advance
what they will lose.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from elasticml.runtime.executors import SWITCH_INTERVAL_S
from elasticml.runtime.fault_injection import SLOWNESS_EXTENSION, FaultSlowdown

if TYPE_CHECKING:
    from distributed.worker import Worker

logger = logging.getLogger(__name__)

#: Seconds from the decision to leave to the forced exit of the process.
EXIT_S_MAX = 2.0


async def announce(worker: Worker, grace_s: float, reason: str) -> None:
    """Tell jobs that this worker leaves; return when they agree, at the latest after the grace."""
    # Here, not above: it imports distributed, which may need the process's settings before.
    from elasticml.runtime.member_plugin import announce_notice

    try:
        await asyncio.wait_for(announce_notice(worker, grace_s, reason), grace_s)
    except TimeoutError:
        logger.info("worker %s: the grace of %g s has expired", worker.name, grace_s)
    except Exception:
        # The worker leaves even if a job cannot handle the notice.
        logger.exception("worker %s: its departure could not be announced", worker.name)


class WorkerLifecycle:
    """Run a worker from its registration to its announced departure.

    Parameters
    ----------
    grace_s : float
        Seconds that the process has after SIGTERM.
    slowdown : float
        Slowdown factor of computations.
    """

    def __init__(self, grace_s: float, slowdown: float = 1.0) -> None:
        self.grace_s = grace_s
        #: Set when the process must exit.
        self.leave = asyncio.Event()
        #: Whether the process has received SIGTERM.
        self.was_told = False
        #: The announcement, in progress or done; there is only one.
        self._announcement: asyncio.Task[None] | None = None
        self._departure: asyncio.Task[None] | None = None
        self._worker: Worker | None = None
        self._slowness = FaultSlowdown(slowdown)

    async def serve(self, worker: Worker) -> None:
        """Register a worker and serve until it is closed or must leave."""
        worker.handlers["em_notice"] = self.notice
        worker.handlers["em_slow"] = self.slow
        worker.extensions[SLOWNESS_EXTENSION] = self._slowness
        await worker
        self._worker = worker
        await first(worker.finished(), self.leave.wait())
        exit_soon()
        await worker.close(timeout=1, executor_wait=False, reason="elasticml-worker-leaves")

    async def notice(self, grace_s: float, reason: str = "notice") -> str:
        """Announce this worker's departure; the reply means that it may be killed.

        This is the worker's handler ``em_notice``.

        Parameters
        ----------
        grace_s : float
            Seconds until the worker is killed.
        reason : str
            Reason for the job's story.
        """
        if self._announcement is None:
            assert self._worker is not None
            self._announcement = asyncio.create_task(announce(self._worker, grace_s, reason))
        await asyncio.shield(self._announcement)
        return "OK"

    async def slow(self, factor: float) -> str:
        """Slow down computations by ``factor``: the worker's handler ``em_slow``."""
        self._slowness.factor = factor
        return "OK"

    def terminated(self) -> None:
        """Handle SIGTERM: announce the departure, then leave; after a notice, leave at once."""
        self.was_told = True
        if self._worker is None or self._announcement is not None or self._departure is not None:
            self.leave.set()
        else:
            self._departure = asyncio.create_task(self._depart())

    async def _depart(self) -> None:
        try:
            await self.notice(self.grace_s, "terminated")
        finally:
            self.leave.set()


def exit_soon() -> None:
    """Force the process to exit after ``EXIT_S_MAX`` seconds, even if a thread is stuck."""
    timer = threading.Timer(EXIT_S_MAX, os._exit, (1,))
    timer.daemon = True
    timer.start()


async def first(*waits: Any) -> None:
    """Wait for the first of several awaitables, then cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def prepare_interpreter() -> None:
    """Apply interpreter-wide settings in a process that runs a member."""
    import numpy as np

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    np.random.seed()  # noqa: NPY002  (a forked child must not share the global stream)
