"""A cluster from Dask's own command line, with nothing of ours, and a job that runs on it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

import elasticml as em
from elasticml.jobs.handle import workers_of
from tests.play.stock_workers import StockProcesses
from tests.waiting import until

Record = dict[str, Any]

#: Where workers find the functions of the tests.
ROOT = Path(__file__).resolve().parents[1]
END_S_MAX = 60.0
#: Starts a command that may mount file systems which no other process sees.
UNSHARE = ("unshare", "--mount", "--map-root-user")
#: The processes also end when pytest is killed.
_ENDS_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


class StockCluster(StockProcesses):
    """The processes of a scheduler and of workers, each in a session of its own.

    Parameters
    ----------
    folder : Path
        For the scheduler's file, and the processes' logs.
    python : Path, optional
        The Python of all processes, which then do not find elasticml here.
    """

    def __init__(self, folder: Path, python: Path | None = None) -> None:
        super().__init__(folder)
        self._python = sys.executable if python is None else str(python)
        here = {"PYTHONPATH": str(ROOT)}
        self._environment = here if python is None else {"PYTHONSAFEPATH": "1"}
        options = ["--port", "0", "--scheduler-file", str(self.file)]
        self._start("scheduler", ["dask_scheduler", *options])

    def kill_scheduler(self) -> None:
        """Kill the scheduler as ``kill -9`` does."""
        self.processes["scheduler"].kill()
        self.processes["scheduler"].wait()

    @property
    def address(self) -> str:
        """The scheduler's address."""
        self._await_file()
        return str(json.loads(self.file.read_text())["address"])

    def worker(
        self,
        name: str,
        *options: str,
        environment: dict[str, str] | None = None,
        hidden: Path | None = None,
    ) -> int:
        """Start ``dask worker``; returns the pid of its process, the nanny's where it has one.

        A folder that is ``hidden`` is empty for it, as on a host that does not share it; this needs
        ``unshare`` and its permission.
        """
        self._await_file()
        file = ["--scheduler-file", str(self.file), "--name", name, "--nthreads", "1"]
        self._start(name, ["dask_worker", *file, *options], environment, hidden)
        return self.processes[name].pid

    def client(self, **settings: Any) -> Client:
        """Return a client; close it before the cluster."""
        self._await_file()
        return Client(scheduler_file=str(self.file), set_as_default=False, **settings)

    def await_workers(self, client: Client, count: int) -> None:
        """Wait until ``count`` workers have registered; fail when a process has ended instead."""
        self.wait_for(lambda: len(workers_of(client)) >= count, f"{count} workers", self.processes)

    def pid(self, client: Client, name: str) -> int:
        """Return the pid of the process in which a worker computes."""
        names = {address: worker["name"] for address, worker in workers_of(client).items()}
        return next(pid for at, pid in client.run(os.getpid).items() if names[at] == name)

    def ended(self, name: str) -> int:
        """Wait for a process; returns its exit status."""
        return self.processes[name].wait(END_S_MAX)

    def _start(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str] | None = None,
        hidden: Path | None = None,
    ) -> None:
        module, *options = command
        mount = f'mount -t tmpfs none "{hidden}" && exec "$@"'
        within = [] if hidden is None else [*UNSHARE, "sh", "-c", mount, "sh"]
        dask = [self._python, "-m", f"distributed.cli.{module}", "--host", "127.0.0.1"]
        self.start(
            name,
            [*_ENDS_WITH_PARENT, *within, *dask, "--no-dashboard", *options],
            {**self._environment, **(environment or {})},
        )

    def _await_file(self) -> None:
        # The scheduler makes the file before it writes it.
        self.wait_for(
            lambda: self.file.exists() and self.file.read_text().rstrip().endswith("}"),
            "the scheduler's file",
        )


@contextlib.contextmanager
def stock_cluster(folder: Path, python: Path | None = None) -> Generator[StockCluster]:
    """Yield a cluster whose processes end with the block."""
    cluster = StockCluster(folder, python)
    try:
        yield cluster
    finally:
        cluster.close()


_rng = np.random.default_rng(3)
# Noise, nearly without a penalty: the gap does not become zero before the story is over.
DATA = em.from_arrays(_rng.normal(size=(600, 12)), np.sign(_rng.normal(size=600)))


def endless(**changes: Any) -> em.Job:
    """Return a job that goes on until it is cancelled."""
    settings = {"stop": em.Stop(rounds=10_000_000), "chunk_size": 2048, **changes}
    algorithm = em.CoCoA(loss="hinge", l2=1e-9, intercept=False, tolerance=0.0, scale="none")
    return em.Job(algorithm, DATA, **settings)


class Course:
    """A job's story while its cluster changes.

    Parameters
    ----------
    handle : Handle
    """

    def __init__(self, handle: em.Handle) -> None:
        self.handle = handle
        self.records: list[Record] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(em.errors.JobFailedError):  # a test that fails closes the cluster
            self.records.extend(self.handle)

    def of(self, event: str, since: int = 0) -> list[Record]:
        """Return the records of an event, after the first ``since`` of all."""
        return [record for record in self.records[since:] if record["event"] == event]

    def losses(self) -> list[Record]:
        """Return the losses of members that have worked."""
        active = {record["member"] for record in self.of("MemberActive")}
        return [record for record in self.of("MemberLost") if record["member"] in active]

    def members(self) -> int:
        """Return the number of members that work."""
        return len(self.of("MemberActive")) - len(self.losses())

    def await_members(self, count: int) -> None:
        """Wait until this number of members work, and rounds go on."""
        until(lambda: self.members() == count, lambda: f"{count}: {self.records[-5:]}")
        rounds = len(self.of("RoundEnded"))
        until(lambda: len(self.of("RoundEnded")) > rounds + 2, "rounds go on")

    def step(self, act: Callable[[], Any], event: str) -> list[Record]:
        """Do something, wait for an event and three rounds; return the records since."""
        since = len(self.records)
        act()
        until(lambda: self.of(event, since), lambda: f"{event}: {self.records[-5:]}")
        rounds = len(self.of("RoundEnded"))
        until(lambda: len(self.of("RoundEnded")) > rounds + 2, "rounds go on")
        return self.records[since:]

    def drain(self, act: Callable[[], Any], reason: str) -> list[Record]:
        """Do something for which a member leaves, with notice and without a chunk."""
        story = self.step(act, "MemberLost")
        found = {record["event"]: record for record in reversed(story)}
        assert found["MemberNoticed"]["reason"] == reason
        assert (found["MemberLost"]["chunks"], found["MemberLost"]["reason"]) == (0, reason)
        assert "ChunksAbsent" not in found
        return story

    def end(self) -> None:
        """Cancel the job, and wait for its end."""
        self.handle.cancel()
        self._thread.join()
