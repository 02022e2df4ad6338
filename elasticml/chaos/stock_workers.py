"""``dask scheduler`` and ``dask worker`` processes, started as a user does."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

import psutil
from distributed import Client

from elasticml.chaos import namespaces, wall_clock
from elasticml.chaos.temporary_faults import Undo
from elasticml.clusters.local.cluster import LocalWorker
from elasticml.clusters.polling import until
from elasticml.errors import JobFailedError
from elasticml.jobs.announce import announce
from elasticml.jobs.handle import workers_of
from elasticml.runtime.fault_injection import How

_START_S_MAX: Final = 120.0
#: Longest jump of a clock.
_JUMP_S_MAX: Final = 86400.0


class StockWorkers:
    """A stock Dask cluster on this machine; a context manager.

    Parameters
    ----------
    folder : Path
        For the scheduler's file and the logs.
    members : int
        Workers at the start.
    hosts : sequence of str
        Network namespaces: of the scheduler, and of the workers in turn. Without them all are on
        this machine's loopback device.
    """

    client: Client

    def __init__(self, folder: Path, members: int, hosts: Sequence[str] = ()) -> None:
        self._folder, self._members, self._hosts = folder, members, hosts
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._scheduler: subprocess.Popen[bytes] | None = None
        self._file = folder / "scheduler.json"

    def __enter__(self) -> Self:
        try:
            port = ["--port", "0", "--scheduler-file", str(self._file)]
            self._scheduler = self._start("scheduler", "dask_scheduler", port)
            self._await(self._file.exists, "the scheduler's file")
            self.client = Client(scheduler_file=str(self._file), set_as_default=False)
            self.bring_back(self._members)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            self.client.close()
        self._end()

    @property
    def scheduler_pid(self) -> int:
        """Process id of the scheduler."""
        assert self._scheduler is not None
        return self._scheduler.pid

    def workers(self) -> list[LocalWorker]:
        """List the workers that have registered and not ended."""
        listed = []
        for address, known in workers_of(self.client).items():
            process = self._processes.get(known["name"])
            if process is not None and process.poll() is None:
                listed.append(
                    LocalWorker(
                        name=known["name"], address=address, pid=process.pid, state="running"
                    )
                )
        return listed

    def lose(self, workers: Sequence[str], how: How = "kill", grace_s: float = 5.0) -> None:
        """End workers, by address; after a notice they get SIGTERM at once."""
        victims = [w for w in self.workers() if w.address in workers]
        if how == "notice":
            announce(self.client, [str(w.address) for w in victims], grace_s=grace_s)
        for worker in victims:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL if how == "kill" else signal.SIGTERM)

    def bring_back(self, n: int) -> None:
        """Start ``n`` workers; return when they have registered."""
        names = [f"w{len(self._processes) + k}" for k in range(n)]
        for name in names:
            options = ["--scheduler-file", str(self._file), "--name", name, "--nthreads", "1"]
            options += ["--no-nanny", "--local-directory", str(self._folder)]
            host = 1 + len(self._processes) % max(1, len(self._hosts) - 1)
            self._processes[name] = self._start(name, "dask_worker", options, host)
        started = [self._processes[name] for name in names]

        def are_here() -> bool:
            here = {worker.name for worker in self.workers()}
            alive = [p for p in started if p.poll() is None]
            return here >= {n for n in names if self._processes[n] in alive}

        self._await(are_here, f"{n} workers")

    def scale(self, n: int) -> None:
        """Start or end workers until there are ``n``."""
        here = self.workers()
        self.bring_back(max(0, n - len(here)))
        self.lose([str(w.address) for w in here[n:]], "terminate")

    def jump_clock(self, rng: random.Random, workers: Sequence[LocalWorker]) -> Undo:
        """Let the wall clock of a worker or of the scheduler jump, by up to a day."""
        file = self._clock_of(rng.choice(["scheduler", *(w.name for w in workers)]))
        wall_clock.set_offset(file, rng.uniform(-_JUMP_S_MAX, _JUMP_S_MAX))
        return functools.partial(wall_clock.set_offset, file, 0.0)

    def _clock_of(self, name: str) -> Path:
        return self._folder / f"{name}.clock"

    def _start(
        self, name: str, module: str, options: list[str], host: int = 0
    ) -> subprocess.Popen[bytes]:
        clock = self._clock_of(name)
        # "ip netns exec" becomes the process that it starts: its id is that process's.
        enters = ["ip", "netns", "exec", self._hosts[host]] if self._hosts else []
        where = namespaces.address(host) if self._hosts else "127.0.0.1"
        wall_clock.set_offset(clock, 0.0)
        with open(self._folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                [
                    *(*enters, sys.executable, "-m", wall_clock.__name__, str(clock)),
                    f"distributed.cli.{module}",
                    *("--host", where, "--no-dashboard", *options),
                ],
                cwd=self._folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "TMPDIR": str(self._folder)},
            )

    def _await(self, is_so: Callable[[], bool], what: str) -> None:
        scheduler = self._scheduler
        assert scheduler is not None

        def is_decided() -> bool:
            return is_so() or scheduler.poll() is not None

        if not until(is_decided, wait_s=_START_S_MAX, every_s=0.05) or not is_so():
            raise JobFailedError(f"{what} did not come; the logs are in {self._folder}")

    def _end(self) -> None:
        """Kill all processes, with their children."""
        every = [*self._processes.values()]
        every += [] if self._scheduler is None else [self._scheduler]
        for process in every:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    # It removes the semaphores of the others, and ends.
                    if not any("resource_tracker" in word for word in child.cmdline()):
                        child.kill()
            process.kill()
        for process in every:
            process.wait()
