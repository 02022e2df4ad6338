"""Supervise the worker processes of a local cluster: start, kill, bring back, pre-fork, end.

The supervisor runs in the scheduler process, on its event loop. The scheduler reports registrations
and the processes themselves report their exit. A worker that dies stays dead: nothing is restarted
unless it was requested.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from distributed.diagnostics.plugin import SchedulerPlugin

from elasticml.clusters.local.launchers import ForkServerLauncher, Process
from elasticml.clusters.local.process_options import ClusterOptions, WorkerOptions, last_line
from elasticml.errors import ConfigError, SubmissionError
from elasticml.runtime.fault_injection import FAULT_INJECTOR_EXTENSION, How

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

State = Literal["standby", "starting", "running", "leaving", "gone"]

#: Seconds between a worker's deadline and its SIGKILL. By then it has announced its exit and only
#: has to close its connections.
CLOSE_S_MAX = 2.0

#: Seconds that the workers have to exit by themselves when the cluster closes.
END_S_MAX = 3.0


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """One worker process. Names are never reused."""

    name: str
    log_file: str
    state: State
    #: Write end of the pipe that is the worker's standard input; None once it is closed.
    lifeline: int | None
    process: Process | None = None
    #: Set at registration, kept afterwards.
    address: str | None = None
    #: Set at registration or exit, whichever comes first.
    settled: asyncio.Event = field(default_factory=asyncio.Event)


class WorkerSupervisor(SchedulerPlugin):
    """Start and end the cluster's workers on request.

    It is the cluster's :class:`~elasticml.runtime.fault_injection.FaultInjector` and its
    :class:`~elasticml.runtime.scaler.Scaler`.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The running scheduler that the workers register with.
    launcher : ForkServerLauncher
        Starts the processes.
    options : ClusterOptions
        The cluster's options.
    memory_limit : int
        Bytes per worker.
    """

    name = FAULT_INJECTOR_EXTENSION

    def __init__(
        self,
        scheduler: Scheduler,
        launcher: ForkServerLauncher,
        options: ClusterOptions,
        memory_limit: int,
    ) -> None:
        self._scheduler = scheduler
        self._launcher = launcher
        self._options = options
        self._memory_limit = memory_limit
        self._records: dict[str, WorkerRecord] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    # Scheduler callbacks.

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Record that a worker has registered."""
        record = self._records.get(str(scheduler.workers[worker].name))
        if record is not None and record.state == "starting":
            record.address = worker
            record.state = "running"
            record.settled.set()

    # Requests.

    def status(self) -> list[WorkerRecord]:
        """List the workers and standbys that have not ended, oldest first."""
        return [record for record in self._records.values() if record.state != "gone"]

    async def scale(self, n: int) -> None:
        """Start or end workers until there are ``n``; return when they have registered or ended.

        The youngest leave first, after a notice.

        Raises
        ------
        ConfigError
            When ``n`` is below 1.
        SubmissionError
            When a worker does not register.
        """
        if n < 1:
            raise ConfigError(
                f"a cluster needs workers: got {n}, wanted at least 1; close the cluster to end it"
            )
        current = self._in_state("starting", "running")
        if n >= len(current):
            await self.bring_back(n - len(current))
        else:
            await self._end_all(current[n:], "notice", self._options.grace_s)

    async def prepare(self, n: int) -> None:
        """Ensure at least ``n`` standbys; see ``FaultInjector`` in runtime/fault_injection.py."""
        missing = n - len(self._in_state("standby"))
        records = [self._new_record("standby") for _ in range(missing)]
        await asyncio.gather(*(self._launch(record) for record in records))

    async def bring_back(self, n: int) -> None:
        """Start ``n`` workers, standbys first; return when all have registered.

        Raises
        ------
        SubmissionError
            When a worker exits before it registers, or takes too long; it is killed.
        """
        released = self._in_state("standby")[: max(n, 0)]
        for record in released:
            record.state = "starting"
            assert record.lifeline is not None
            with suppress(BrokenPipeError):
                os.write(record.lifeline, b"register\n")
        started = [self._new_record("starting") for _ in range(n - len(released))]
        await asyncio.gather(*(self._launch(record) for record in started))
        await self._registered([*released, *started])

    async def lose(self, addresses: Sequence[str], how: How, grace_s: float) -> None:
        """End workers; see :class:`~elasticml.runtime.fault_injection.FaultInjector`.

        Parameters
        ----------
        addresses : sequence of str
            Addresses or names of workers; those that have ended already are skipped.
        how, grace_s
            As in the protocol.

        Raises
        ------
        ConfigError
            When an address never belonged to this cluster, or ``how`` is unknown.
        """
        if how not in ("kill", "terminate", "notice"):
            raise ConfigError(
                f"cannot lose workers by {how!r}; wanted 'kill', 'terminate' or 'notice'"
            )
        records = [self._find(address) for address in addresses]
        await self._end_all([r for r in records if r.state != "gone"], how, grace_s)

    async def slow(self, addresses: Sequence[str], factor: float) -> None:
        """Slow workers down; see :class:`~elasticml.runtime.fault_injection.FaultInjector`."""
        if not factor >= 1.0:
            raise ConfigError(f"slowdown: got {factor!r}, wanted a factor of at least 1")
        for record in [self._find(address) for address in addresses]:
            if record.state == "running" and record.address is not None:
                with suppress(OSError):
                    await self._scheduler.rpc(record.address).em_slow(factor=factor)

    async def request(self, count: int) -> int:
        """Start more workers for a job; see :class:`~elasticml.runtime.scaler.Scaler`."""
        room = self._options.workers_max - len(self._in_state("starting", "running"))
        granted = max(0, min(count, room))
        await self.bring_back(granted)
        return granted

    async def release(self, addresses: Sequence[str]) -> None:
        """End workers that a job releases; see :class:`~elasticml.runtime.scaler.Scaler`."""
        running = {r.address: r for r in self._in_state("running")}
        released = [running[address] for address in addresses if address in running]
        # With a notice, because other jobs may have members there.
        await self._end_all(released, "notice", self._options.grace_s)

    async def close(self) -> None:
        """End every worker and standby; kill those left after ``END_S_MAX`` seconds."""
        if self._is_closing:
            return
        self._is_closing = True
        records = self.status()
        for record in records:
            record.state = "leaving"
            self._close_lifeline(record)
        await asyncio.gather(*(self._ended(record, END_S_MAX) for record in records))
        await self._launcher.close()

    # Starting.

    def _new_record(self, state: State) -> WorkerRecord:
        name = f"worker-{len(self._records)}"
        log_file = str(Path(self._options.log_dir) / f"{name}.log")
        record = WorkerRecord(name=name, log_file=log_file, state=state, lifeline=None)
        self._records[name] = record
        return record

    async def _launch(self, record: WorkerRecord) -> None:
        """Start the process of a record and watch for its exit."""
        options = WorkerOptions(
            name=record.name,
            scheduler=self._scheduler.address,
            threads=self._options.threads,
            memory_limit=self._memory_limit,
            grace_s=self._options.grace_s,
            standby=record.state == "standby",
            log_file=record.log_file,
            scratch_dir=self._options.scratch_dir,
            slowdown=self._options.slowdown.get(record.name, 1.0),
        )
        read_end, record.lifeline = os.pipe()
        try:
            record.process = await self._launcher.start(options, read_end)
        except SubmissionError:
            self._note_end(record)
            raise
        finally:
            os.close(read_end)
        if record.state in ("leaving", "gone"):
            # It was asked to end before its process existed.
            record.process.send_signal(signal.SIGKILL)
        task = asyncio.create_task(self._follow(record, record.process))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, record: WorkerRecord, process: Process) -> None:
        await process.ended.wait()
        logger.info("%s (pid %d) ended while %s", record.name, process.pid, record.state)
        self._note_end(record)

    def _note_end(self, record: WorkerRecord) -> None:
        record.state = "gone"
        record.settled.set()
        self._close_lifeline(record)

    def _close_lifeline(self, record: WorkerRecord) -> None:
        if record.lifeline is not None:
            os.close(record.lifeline)
            record.lifeline = None

    async def _registered(self, records: list[WorkerRecord]) -> None:
        """Wait until all records are settled; raise if one did not register."""
        waits = (record.settled.wait() for record in records)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waits), self._options.start_timeout_s)
        failed = [record for record in records if record.address is None]
        if not failed or self._is_closing:
            return
        first = failed[0]
        what = "ended before it registered" if first.state == "gone" else "did not register"
        await self._end_all([record for record in failed if record.state != "gone"], "kill", 0)
        raise SubmissionError(
            f"{first.name} {what}: got {last_line(first.log_file)!r}, wanted {len(records)} "
            f"registered workers within {self._options.start_timeout_s:g} s; see {first.log_file}",
            log_file=first.log_file,
        )

    # Ending.

    def _in_state(self, *states: State) -> list[WorkerRecord]:
        return [record for record in self._records.values() if record.state in states]

    def _find(self, address: str) -> WorkerRecord:
        # Youngest first: the kernel reuses the port of a worker that has ended.
        for record in reversed(self._records.values()):
            if address in (record.address, record.name):
                return record
        names = ", ".join(sorted(r.address or r.name for r in self.status()))
        raise ConfigError(f"no worker {address!r} in this cluster; its workers are {names}")

    async def _end_all(self, records: list[WorkerRecord], how: How, grace_s: float) -> None:
        if how == "kill":
            # Send all signals first, so that workers that are lost together vanish together.
            for record in records:
                self._signal(record, signal.SIGKILL)
        await asyncio.gather(*(self._end(record, how, grace_s) for record in records))

    async def _end(self, record: WorkerRecord, how: How, grace_s: float) -> None:
        record.state = "leaving"
        left_s = CLOSE_S_MAX
        if how == "notice":
            await self._announce(record, grace_s)
        if how == "terminate":
            left_s = grace_s
        if how != "kill":
            self._signal(record, signal.SIGTERM)
        await self._ended(record, left_s)

    async def _announce(self, record: WorkerRecord, grace_s: float) -> None:
        """Send a worker its notice; return when it is ready to go, or after the grace."""
        if record.address is None:
            return
        try:
            await asyncio.wait_for(self._send_notice(record.address, grace_s), grace_s)
        except TimeoutError:
            logger.info("%s: the notice's grace of %g s has expired", record.name, grace_s)
        except OSError as error:
            logger.info("%s: exited before it answered the notice: %s", record.name, error)

    async def _send_notice(self, address: str, grace_s: float) -> None:
        await self._scheduler.rpc(address).em_notice(grace_s=grace_s, reason="noticed")

    async def _ended(self, record: WorkerRecord, left_s: float) -> None:
        """Wait for a process to exit; kill it after ``left_s`` seconds."""
        if record.process is None:
            return
        try:
            await asyncio.wait_for(record.process.ended.wait(), left_s)
        except TimeoutError:
            logger.info("%s is still running after %g s and is killed", record.name, left_s)
            self._signal(record, signal.SIGKILL)
            await record.process.ended.wait()
        self._note_end(record)

    def _signal(self, record: WorkerRecord, number: int) -> None:
        if record.process is not None:
            record.process.send_signal(number)
