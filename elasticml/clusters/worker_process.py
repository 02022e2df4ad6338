"""One worker process of a local cluster: a Dask worker without nanny that leaves in good order.

It holds the read end of its *lifeline*, a pipe whose other end only the scheduler process has: a
line on it lets a standby register, its end means that the cluster is over.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from elasticml.clusters.linux import die_with_parent, set_process_name
from elasticml.clusters.options import WorkerOptions, worker_options
from elasticml.clusters.settings import (
    WORKER_MODULES,
    configure_dask,
    configure_logging,
    load,
    redirect_output,
)
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


class WorkerProcess:
    """The life of the process: register, work, be told to go, go.

    Parameters
    ----------
    options : WorkerOptions
        What the keeper asked for.
    lifeline : int
        Descriptor of the lifeline.
    """

    def __init__(self, options: WorkerOptions, lifeline: int) -> None:
        self._options = options
        self._lifeline = lifeline
        #: Set by the first line on the lifeline.
        self._released = asyncio.Event()
        #: Set when the process must end.
        self._leave = asyncio.Event()
        #: The announcement under way or done; a second one is never made.
        self._announcement: asyncio.Task[None] | None = None
        self._departure: asyncio.Task[None] | None = None
        self._worker: Worker | None = None
        self._slowness = Slowness(options.slowdown)

    async def run(self) -> None:
        """Serve until the worker is closed, by whomever."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminated)
        threading.Thread(target=self._watch_lifeline, args=(loop,), daemon=True).start()
        if self._options.standby:
            await _first(self._released.wait(), self._leave.wait())
        if self._leave.is_set():
            return
        worker = self._new_worker()
        await worker
        self._worker = worker
        await _first(worker.finished(), self._leave.wait())
        _exit_soon()
        await worker.close(timeout=1, executor_wait=False, reason="elasticml-worker-leaves")

    def _new_worker(self) -> Worker:
        from distributed.worker import Worker

        worker = Worker(
            self._options.scheduler,
            name=self._options.name,
            nthreads=self._options.threads,
            memory_limit=self._options.memory_limit,
            local_directory=self._options.scratch_dir,
            host="127.0.0.1",
            dashboard=False,
            dashboard_address="127.0.0.1:0",
        )
        worker.handlers["em_notice"] = self.notice
        worker.handlers["em_slow"] = self.slow
        worker.extensions[SLOWNESS_EXTENSION] = self._slowness
        return worker

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

    def _terminated(self) -> None:
        """Act on SIGTERM: announce it, then leave; after a notice or a second time leave now."""
        if self._worker is None or self._announcement is not None or self._departure is not None:
            self._leave.set()
        else:
            self._departure = asyncio.create_task(self._depart())

    async def _depart(self) -> None:
        try:
            await self.notice(self._options.grace_s, "terminated")
        finally:
            self._leave.set()

    def _watch_lifeline(self, loop: asyncio.AbstractEventLoop) -> None:
        # A thread, not a reader on the loop: it must end the process where the loop hangs.
        while os.read(self._lifeline, 4096):
            loop.call_soon_threadsafe(self._released.set)
        _exit_soon()
        loop.call_soon_threadsafe(self._leave.set)


def _exit_soon() -> None:
    """End the process in ``EXIT_S_MAX`` seconds, whichever thread is stuck."""
    timer = threading.Timer(EXIT_S_MAX, os._exit, (1,))
    timer.daemon = True
    timer.start()


async def _first(*waits: Any) -> None:
    """Wait for the first of several awaitables and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def run_worker(options: WorkerOptions, lifeline: int) -> int:
    """Run a worker in this process until it ends.

    Parameters
    ----------
    options : WorkerOptions
        What the keeper asked for.
    lifeline : int
        Descriptor of the read end of the lifeline.

    Returns
    -------
    int
        Exit status: 0 when it left in good order.
    """
    import numpy as np

    set_process_name(f"em-{options.name}")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    np.random.seed()  # noqa: NPY002  (a forked child must not share the global stream)
    asyncio.run(_run(options, lifeline))
    return 0


async def _run(options: WorkerOptions, lifeline: int) -> None:
    await WorkerProcess(options, lifeline).run()


def main() -> None:
    """Run a worker that was not forked: arguments are its options and its parent's id."""
    options = worker_options(sys.argv[1])
    die_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The worker's own children must not inherit the lifeline as their standard input.
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    redirect_output(options.log_file)
    configure_dask(dashboard=False)
    configure_logging()
    load(WORKER_MODULES)
    status = run_worker(options, lifeline)
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
