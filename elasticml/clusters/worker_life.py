"""The end of a worker process: notices and SIGTERM announce it, then the worker leaves.

The same in every cluster whose workers are ours: nobody restarts them, and a job is told first what
it will lose.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from elasticml.runtime.slowness import SLOWNESS_EXTENSION, Slowness

if TYPE_CHECKING:
    from distributed.worker import Worker

logger = logging.getLogger(__name__)

#: Seconds from the decision to leave to the end of the process, whatever the worker does.
EXIT_S_MAX = 2.0

#: Interpreter's thread switch interval: a busy Python thread then delays a frame by half a
#: millisecond, not five (measured in the prototypes of the collective).
SWITCH_INTERVAL_S = 5e-4


async def announce(worker: Worker, grace_s: float, reason: str) -> None:
    """Tell the jobs that this worker goes; return when it may, at the latest after the grace."""
    module = "elasticml.runtime.member_plugin"
    if importlib.util.find_spec(module) is None:
        return
    try:
        announce_notice = importlib.import_module(module).announce_notice
        await asyncio.wait_for(announce_notice(worker, grace_s, reason), grace_s)
    except TimeoutError:
        logger.info("worker %s: the grace of %g s is over", worker.name, grace_s)
    except Exception:
        # Whatever a job makes of the notice, the worker goes.
        logger.exception("worker %s: its end could not be announced", worker.name)


class WorkerLife:
    """The life of a worker from its registration on: work, be told to go, go.

    Parameters
    ----------
    grace_s : float
        Seconds that the process has from SIGTERM on.
    slowdown : float
        How many times as long computations take.
    """

    def __init__(self, grace_s: float, slowdown: float = 1.0) -> None:
        self.grace_s = grace_s
        #: Set when the process must end.
        self.leave = asyncio.Event()
        #: Whether somebody told the process to go.
        self.was_told = False
        #: The announcement under way or done; a second one is never made.
        self._announcement: asyncio.Task[None] | None = None
        self._departure: asyncio.Task[None] | None = None
        self._worker: Worker | None = None
        self._slowness = Slowness(slowdown)

    async def serve(self, worker: Worker) -> None:
        """Register a worker and serve until it is closed, by whomever, or has to leave."""
        worker.handlers["em_notice"] = self.notice
        worker.handlers["em_slow"] = self.slow
        worker.extensions[SLOWNESS_EXTENSION] = self._slowness
        await worker
        self._worker = worker
        await first(worker.finished(), self.leave.wait())
        exit_soon()
        await worker.close(timeout=1, executor_wait=False, reason="elasticml-worker-leaves")

    async def notice(self, grace_s: float, reason: str = "notice") -> str:
        """Announce the end of this worker; the reply means that it may be ended.

        This is the worker's handler ``em_notice``.

        Parameters
        ----------
        grace_s : float
            Seconds until the worker is ended.
        reason : str
            Why, for the job's story.
        """
        if self._announcement is None:
            assert self._worker is not None
            self._announcement = asyncio.create_task(announce(self._worker, grace_s, reason))
        await asyncio.shield(self._announcement)
        return "OK"

    async def slow(self, factor: float) -> str:
        """Take so many times as long for computations: the worker's handler ``em_slow``."""
        self._slowness.factor = factor
        return "OK"

    def terminated(self) -> None:
        """Act on SIGTERM: announce it, then leave; after a notice or a second time leave now."""
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


def exit_soon(status: int = 1) -> None:
    """End the process in ``EXIT_S_MAX`` seconds, whichever thread is stuck."""
    timer = threading.Timer(EXIT_S_MAX, os._exit, (status,))
    timer.daemon = True
    timer.start()


async def first(*waits: Any) -> None:
    """Wait for the first of several awaitables and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def prepare_interpreter() -> None:
    """Set what concerns the whole interpreter in a process with a member."""
    import numpy as np

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    np.random.seed()  # noqa: NPY002  (a forked child must not share the global stream)
