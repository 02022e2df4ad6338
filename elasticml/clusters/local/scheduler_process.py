"""The scheduler process of a local cluster: Dask's scheduler and the worker supervisor.

The first line on standard input holds the options; each further line is a command, answered by one
line of JSON on standard output. End of file on standard input means that the client has exited.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from elasticml.clusters.local.launchers import ForkServerLauncher
from elasticml.clusters.local.process_options import ClusterOptions, cluster_options
from elasticml.clusters.process_setup import (
    SCHEDULER_MODULES,
    configure_dask,
    configure_logging,
    freeze_memory,
    load,
    pause_collections,
    redirect_output,
    set_process_name,
)
from elasticml.errors import ElasticmlError

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from elasticml.clusters.local.worker_supervisor import WorkerSupervisor

logger = logging.getLogger(__name__)

#: Seconds that the scheduler has to close its connections when the cluster closes.
CLOSE_S_MAX = 5.0


class SchedulerProcess:
    """Serve one local cluster until its client closes it or exits, or Dask closes it.

    Parameters
    ----------
    options : ClusterOptions
        The client's options.
    answers : int
        Descriptor for the replies to the client.
    launcher : ForkServerLauncher
        Starts the workers.
    """

    def __init__(self, options: ClusterOptions, answers: int, launcher: ForkServerLauncher) -> None:
        self._options = options
        self._answers = answers
        self._launcher = launcher
        self._commands: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._was_closed = False
        #: Set when the cluster must end.
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Start scheduler and workers, serve commands, then end everything."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._over.set)
        scheduler, supervisor = await self._start()
        reading = asyncio.create_task(self._read())
        serving = asyncio.create_task(self._serve(scheduler.address, supervisor))
        serving.add_done_callback(lambda _: self._over.set())
        closed = asyncio.create_task(scheduler.finished())
        over = asyncio.create_task(self._over.wait())
        await asyncio.wait([closed, over], return_when=asyncio.FIRST_COMPLETED)
        for task in (reading, serving, closed, over):
            task.cancel()
        # Close the scheduler first, so that no job takes the shutdown for lost members.
        with suppress(TimeoutError):
            await asyncio.wait_for(scheduler.close(reason="elasticml-cluster-over"), CLOSE_S_MAX)
        await supervisor.close()
        failure = serving.exception() if serving.done() and not serving.cancelled() else None
        # A client that closes the cluster decides about the logs; without one they are removed.
        keeps_logs = self._was_closed or failure is not None
        doomed = self._options.scratch_dir if keeps_logs else self._options.own_dir
        shutil.rmtree(doomed, ignore_errors=True)
        if failure is not None:
            raise failure

    async def _start(self) -> tuple[Scheduler, WorkerSupervisor]:
        import dask
        from distributed.scheduler import Scheduler

        from elasticml.clusters.local.worker_supervisor import WorkerSupervisor
        from elasticml.runtime.fault_injection import FAULT_INJECTOR_EXTENSION
        from elasticml.runtime.scaler import SCALER_EXTENSION

        # Dask's scheduler has a working folder too; otherwise it would stay behind in the
        # system's temporary folder.
        dask.config.set({"temporary-directory": self._options.scratch_dir})
        dashboard_address = self._options.dashboard_address
        scheduler = await Scheduler(
            host="127.0.0.1",
            port=0,
            protocol="tcp",
            dashboard=dashboard_address is not None,
            dashboard_address=dashboard_address or "127.0.0.1:0",
        )
        supervisor = WorkerSupervisor(
            scheduler, self._launcher, self._options, _memory_limit(self._options)
        )
        scheduler.add_plugin(supervisor)
        scheduler.extensions[FAULT_INJECTOR_EXTENSION] = supervisor
        scheduler.extensions[SCALER_EXTENSION] = supervisor
        return scheduler, supervisor

    async def _read(self) -> None:
        """Queue the client's commands; act on ``close`` and on the client's exit at once."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb", buffering=0)
        )
        while line := await reader.readline():
            command = json.loads(line)
            if command["op"] == "close":
                self._was_closed = True
                self._over.set()
            else:
                self._commands.put_nowait(command)
        if not self._options.keep:
            self._over.set()

    async def _serve(self, address: str, supervisor: WorkerSupervisor) -> None:
        """Start the workers, then run the client's commands in order."""
        await self._answer(0, supervisor.scale(self._options.workers), lambda: {"address": address})
        while True:
            command = await self._commands.get()
            number = command["number"]
            match command["op"]:
                case "scale" | "prepare" | "bring_back" as op:
                    await self._answer(number, getattr(supervisor, op)(command["n"]))
                case "lose":
                    how, grace_s = command["how"], command["grace_s"]
                    await self._answer(number, supervisor.lose(command["workers"], how, grace_s))
                case "slow":
                    factor = command["factor"]
                    await self._answer(number, supervisor.slow(command["workers"], factor))
                case "workers":
                    await self._answer(number, _nothing(), lambda: {"workers": _rows(supervisor)})

    async def _answer(
        self, number: int, work: Awaitable[None], result: Callable[[], dict[str, Any]] = dict
    ) -> None:
        try:
            await work
            answer = result()
        except ElasticmlError as error:
            kind = type(error).__name__
            fields = error.fields
            answer = {"error": {"kind": kind, "message": error.message, "fields": fields}}
        try:
            os.write(self._answers, (json.dumps({**answer, "number": number}) + "\n").encode())
        except BrokenPipeError:
            logger.info("the client exited before it got its reply")


async def _nothing() -> None:
    """Do nothing: a query has no work to wait for."""


def _rows(supervisor: WorkerSupervisor) -> list[dict[str, Any]]:
    return [
        {
            "name": record.name,
            "address": record.address,
            "pid": None if record.process is None else record.process.pid,
            "state": record.state,
        }
        for record in supervisor.status()
    ]


def _memory_limit(options: ClusterOptions) -> int:
    """Return the bytes per worker: the limit given, or an equal share of the machine's memory."""
    if options.memory_limit is not None:
        return options.memory_limit
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT) // options.workers


def _new_launcher(options: ClusterOptions) -> ForkServerLauncher:
    log_file = f"{options.log_dir}/forkserver.log"
    kernels = (options.algorithms, options.layout)
    launcher = ForkServerLauncher(options.threads, log_file, kernels)
    launcher.launch()
    return launcher


async def _run(options: ClusterOptions, answers: int, launcher: ForkServerLauncher) -> None:
    await SchedulerProcess(options, answers, launcher).run()


def _read_line(descriptor: int) -> str:
    """Read one line and not a byte more: the event loop reads the rest."""
    line = bytearray()
    while (byte := os.read(descriptor, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def main() -> None:
    """Run the scheduler process; the options come as the first line of standard input.

    What is imported at the top of this module delays the fork server, and so all workers.
    """
    pause_collections()
    options = cluster_options(_read_line(0))
    # Replies must not be mixed with what libraries print.
    answers = os.dup(1)
    redirect_output(f"{options.log_dir}/scheduler.log")
    set_process_name("em-scheduler")
    # The fork server runs its imports on another core while this process imports the scheduler.
    launcher = _new_launcher(options)
    configure_dask(dashboard=options.dashboard_address is not None)
    configure_logging()
    load(SCHEDULER_MODULES)
    freeze_memory()
    asyncio.run(_run(options, answers, launcher))
    sys.stderr.flush()


if __name__ == "__main__":
    main()
