"""``dask scheduler`` and ``dask worker`` processes, started as a user does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import psutil
from distributed import Client

from elasticml.clusters.local.cluster import LocalWorker
from elasticml.clusters.polling import until
from elasticml.errors import JobFailedError
from elasticml.jobs.handle import workers_of
from tests.play import namespaces, wall_clock

#: For a process to start, or to end after SIGKILL.
_WAIT_S_MAX: Final = 120.0
#: Where the programs find the modules of the tests.
_ROOT: Final = Path(__file__).resolve().parents[2]


def kill_session(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a session, and all others in it; return when none is left.

    The resource trackers of ``multiprocessing`` end by themselves, when they have removed the
    semaphores of the killed ones.

    Raises
    ------
    JobFailedError
        When processes are left after a while.
    """

    def is_empty() -> bool:
        left = [one for one in psutil.process_iter() if _is_in(one, process.pid)]
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                if not any("resource_tracker" in word for word in one.cmdline()):
                    one.kill()
        process.poll()
        return not left

    if not until(is_empty, wait_s=_WAIT_S_MAX, every_s=0.02):
        raise JobFailedError(f"processes of session {process.pid} are left after SIGKILL")
    process.wait()


def _is_in(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False


class StockProcesses:
    """``dask scheduler`` and ``dask worker`` processes, each in a session of its own.

    Parameters
    ----------
    folder : Path
        For the scheduler's file and the logs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: The scheduler writes its address here.
        self.file = folder / "scheduler.json"
        #: By name; one is ``"scheduler"``.
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def scheduler_pid(self) -> int:
        """Process id of the scheduler."""
        return self.processes["scheduler"].pid

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a process whose output goes to a log of its name."""
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    def log(self, name: str) -> str:
        """Return what a process has written."""
        return (self.folder / f"{name}.log").read_text()

    def wait_for(
        self, is_so: Callable[[], bool], what: str, needed: Iterable[str] = ("scheduler",)
    ) -> None:
        """Wait until a condition holds.

        Raises
        ------
        JobFailedError
            When a process that it needs ends before, or after a while.
        """
        ended: list[str] = []

        def is_decided() -> bool:
            ended[:] = [name for name in needed if self.processes[name].poll() is not None]
            return is_so() or bool(ended)

        if not until(is_decided, wait_s=_WAIT_S_MAX, every_s=0.05) or not is_so():
            raise JobFailedError(
                f"{what} did not come; ended: {', '.join(ended) or 'no process'}; the logs are in "
                f"{self.folder}"
            )

    def close(self) -> None:
        """Kill all processes, with their children."""
        for process in self.processes.values():
            kill_session(process)


class StockWorkers(StockProcesses):
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
    directory : Path, optional
        For the files of the processes; by default the folder.
    """

    client: Client

    def __init__(
        self,
        folder: Path,
        members: int,
        hosts: Sequence[str] = (),
        directory: Path | None = None,
    ) -> None:
        super().__init__(folder)
        self._members, self._hosts, self._directory = members, hosts, directory or folder

    def __enter__(self) -> Self:
        self.file.unlink(missing_ok=True)  # of a scheduler that was killed
        try:
            port = ["--port", "0", "--scheduler-file", str(self.file)]
            self._start("scheduler", "dask_scheduler", port)
            self.wait_for(self.file.exists, "the scheduler's file")
            self.client = Client(scheduler_file=str(self.file), set_as_default=False)
            self.bring_back(self._members)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            self.client.close()
        self.close()

    def workers(self) -> list[LocalWorker]:
        """List the workers that have registered and not ended."""
        listed = []
        for address, known in workers_of(self.client).items():
            process = self.processes.get(known["name"])
            if process is not None and process.poll() is None:
                listed.append(
                    LocalWorker(
                        name=known["name"], address=address, pid=process.pid, state="running"
                    )
                )
        return listed

    def bring_back(self, n: int) -> None:
        """Start ``n`` workers; return when they have registered."""
        number = len(self.processes) - 1
        names = [f"w{number + k}" for k in range(n)]
        for k, name in enumerate(names, start=number):
            options = ["--scheduler-file", str(self.file), "--name", name, "--nthreads", "1"]
            options += ["--no-nanny", "--local-directory", str(self._directory)]
            self._start(name, "dask_worker", options, 1 + k % max(1, len(self._hosts) - 1))

        def are_here() -> bool:
            here = {worker.name for worker in self.workers()}
            return here >= {name for name in names if self.processes[name].poll() is None}

        self.wait_for(are_here, f"{n} workers")

    def set_clock(self, name: str, offset_s: float) -> None:
        """Let the wall clock of a worker, or of ``"scheduler"``, be ahead by seconds."""
        wall_clock.set_offset(self._clock_of(name), offset_s)

    def _clock_of(self, name: str) -> Path:
        return self.folder / f"{name}.clock"

    def _start(self, name: str, module: str, options: list[str], host: int = 0) -> None:
        clock = self._clock_of(name)
        # "ip netns exec" becomes the process that it starts: its id is that process's.
        enters = ["ip", "netns", "exec", self._hosts[host]] if self._hosts else []
        where = namespaces.address(host) if self._hosts else "127.0.0.1"
        wall_clock.set_offset(clock, 0.0)
        command = [*enters, sys.executable, "-m", wall_clock.__name__, str(clock)]
        command += [f"distributed.cli.{module}", "--host", where, "--no-dashboard", *options]
        self.start(name, command, {"TMPDIR": str(self._directory), "PYTHONPATH": str(_ROOT)})
