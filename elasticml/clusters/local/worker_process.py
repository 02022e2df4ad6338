"""A worker process of a local cluster: a Dask worker without a nanny that shuts down gracefully.

It holds the read end of its *lifeline*, a pipe whose write end only the scheduler process holds: a
line on it tells a standby to register, end of file means that the cluster has closed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import TYPE_CHECKING

from elasticml.clusters.local.process_options import WorkerOptions
from elasticml.clusters.process_setup import set_process_name
from elasticml.clusters.worker_lifecycle import (
    WorkerLifecycle,
    exit_soon,
    first,
    prepare_interpreter,
)

if TYPE_CHECKING:
    from distributed.worker import Worker


class WorkerProcess:
    """Run one worker of a local cluster, after waiting as a standby if it is one.

    Parameters
    ----------
    options : WorkerOptions
        The supervisor's options.
    lifeline : int
        Descriptor of the lifeline.
    """

    def __init__(self, options: WorkerOptions, lifeline: int) -> None:
        self._options = options
        self._lifeline = lifeline
        #: Set by the first line on the lifeline.
        self._released = asyncio.Event()
        self._lifecycle = WorkerLifecycle(options.grace_s, options.slowdown)

    async def run(self) -> None:
        """Serve until the worker is closed or must leave."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._lifecycle.terminated)
        threading.Thread(target=self._watch_lifeline, args=(loop,), daemon=True).start()
        if self._options.standby:
            await first(self._released.wait(), self._lifecycle.leave.wait())
        if not self._lifecycle.leave.is_set():
            await self._lifecycle.serve(self._new_worker())

    def _new_worker(self) -> Worker:
        from distributed.worker import Worker

        return Worker(
            self._options.scheduler,
            name=self._options.name,
            nthreads=self._options.threads,
            memory_limit=self._options.memory_limit,
            local_directory=self._options.scratch_dir,
            host="127.0.0.1",
            dashboard=False,
            dashboard_address="127.0.0.1:0",
        )

    def _watch_lifeline(self, loop: asyncio.AbstractEventLoop) -> None:
        # A thread, not a reader on the loop: it must end the process even if the loop hangs.
        while os.read(self._lifeline, 4096):
            loop.call_soon_threadsafe(self._released.set)
        exit_soon()
        loop.call_soon_threadsafe(self._lifecycle.leave.set)


def run_worker(options: WorkerOptions, lifeline: int) -> int:
    """Run a worker in this process until it exits.

    Parameters
    ----------
    options : WorkerOptions
        The supervisor's options.
    lifeline : int
        Descriptor of the read end of the lifeline.

    Returns
    -------
    int
        Exit status: 0 after a clean shutdown.
    """
    set_process_name(f"em-{options.name}")
    prepare_interpreter()
    asyncio.run(_run(options, lifeline))
    return 0


async def _run(options: WorkerOptions, lifeline: int) -> None:
    await WorkerProcess(options, lifeline).run()
