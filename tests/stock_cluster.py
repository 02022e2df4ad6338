"""A cluster from Dask's own command line: `dask scheduler` and `dask worker`, nothing of ours."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import psutil
from distributed import Client

from elasticml.jobs.handle import workers_of
from tests.waiting import until

#: Where workers find the functions of the tests.
ROOT = Path(__file__).resolve().parents[1]
START_S_MAX = 120.0
END_S_MAX = 60.0
#: The processes also end when pytest is killed.
_ENDS_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


def kill_session(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a session, and all others in it; return when none is left.

    The resource trackers of ``multiprocessing`` end by themselves, when they have removed the
    semaphores of the killed ones.
    """

    def is_empty() -> bool:
        left = [one for one in psutil.process_iter() if _is_in(one, process.pid)]
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                if not any("resource_tracker" in word for word in one.cmdline()):
                    one.kill()
        process.poll()
        return not left

    until(is_empty, "processes of a session that was killed", look_s=0.02)
    process.wait()


def _is_in(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False


class StockCluster:
    """The processes of a scheduler and of workers, each in a session of its own.

    Parameters
    ----------
    folder : Path
        For the scheduler's file, and the processes' logs.
    options : sequence of str
        Of ``dask scheduler``.
    """

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._options = options
        self.start_scheduler()

    def start_scheduler(self, port: int = 0) -> None:
        """Start ``dask scheduler``; 0 for any port."""
        file = ["--scheduler-file", str(self.file)]
        self._start("scheduler", ["dask_scheduler", "--port", str(port), *file, *self._options])

    def kill_scheduler(self) -> int:
        """Kill the scheduler as ``kill -9`` does; return its port."""
        port = int(self.address.rpartition(":")[2])
        self.processes["scheduler"].kill()
        self.processes["scheduler"].wait()
        self.file.unlink()
        return port

    @property
    def address(self) -> str:
        """The scheduler's address."""
        self._await_file()
        return str(json.loads(self.file.read_text())["address"])

    def worker(self, name: str, *options: str, environment: dict[str, str] | None = None) -> int:
        """Start ``dask worker``; returns the pid of its process, the nanny's where it has one."""
        self._await_file()
        file = ["--scheduler-file", str(self.file), "--name", name, "--nthreads", "1"]
        return self._start(name, ["dask_worker", *file, *options], environment)

    def client(self) -> Client:
        """Return a client; close it before the cluster."""
        self._await_file()
        return Client(scheduler_file=str(self.file), set_as_default=False)

    def await_workers(self, client: Client, count: int) -> None:
        """Wait until ``count`` workers have registered; fail when a process has ended instead."""
        until_s = time.monotonic() + START_S_MAX
        while len(workers_of(client)) < count:
            for name, process in self.processes.items():
                assert process.poll() is None, self.log(name)
            assert time.monotonic() < until_s, f"{count} workers have not come"
            time.sleep(0.05)

    def pid(self, client: Client, name: str) -> int:
        """Return the pid of the process in which a worker computes."""
        names = {address: worker["name"] for address, worker in workers_of(client).items()}
        return next(pid for at, pid in client.run(os.getpid).items() if names[at] == name)

    def ended(self, name: str) -> int:
        """Wait for a process; returns its exit status."""
        return self.processes[name].wait(END_S_MAX)

    def log(self, name: str) -> str:
        """Return what a process has written."""
        return (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        """Kill what is left, with all children."""
        for process in self.processes.values():
            kill_session(process)

    def _start(
        self, name: str, command: list[str], environment: dict[str, str] | None = None
    ) -> int:
        module, *options = command
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [
                    *_ENDS_WITH_PARENT,
                    *(sys.executable, "-m", f"distributed.cli.{module}"),
                    *("--host", "127.0.0.1", "--no-dashboard", *options),
                ],
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            )
        return self.processes[name].pid

    def _await_file(self) -> None:
        until_s = time.monotonic() + START_S_MAX
        while not self.file.exists():
            assert self.processes["scheduler"].poll() is None, self.log("scheduler")
            assert time.monotonic() < until_s, self.log("scheduler")
            time.sleep(0.05)


@contextlib.contextmanager
def stock_cluster(folder: Path, options: Sequence[str] = ()) -> Generator[StockCluster]:
    """Yield a cluster whose processes end with the block."""
    cluster = StockCluster(folder, options)
    try:
        yield cluster
    finally:
        cluster.close()
