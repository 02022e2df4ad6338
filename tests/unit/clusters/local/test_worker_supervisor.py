"""The supervisor of a local cluster signals the worker that currently has an address."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticml.clusters.local.launchers import Process
from elasticml.clusters.local.process_options import ClusterOptions, WorkerOptions
from elasticml.clusters.local.worker_supervisor import WorkerSupervisor

ADDRESS = "tcp://127.0.0.1:40001"


class Scheduler:
    """The part of Dask's scheduler that the supervisor uses."""

    address = "tcp://127.0.0.1:1"

    def __init__(self) -> None:
        self.workers: dict[str, Any] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def rpc(self, address: str) -> Any:
        async def call(**arguments: Any) -> None:
            self.calls.append((address, arguments))

        return SimpleNamespace(em_notice=call, em_slow=call)


class EndingProcess(Process):
    """A fake process that ends at its first signal."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.signals: list[int] = []

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        self.ended.set()


class Launcher:
    """Starts workers that register at once, all at the same address."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.keeper: WorkerSupervisor | None = None
        self.started: list[EndingProcess] = []
        self._scheduler = scheduler

    async def start(self, options: WorkerOptions, lifeline: int) -> Process:
        assert self.keeper is not None
        self.started.append(EndingProcess(pid=len(self.started)))
        self._scheduler.workers[ADDRESS] = SimpleNamespace(name=options.name)
        self.keeper.add_worker(self._scheduler, ADDRESS)
        return self.started[-1]

    async def close(self) -> None:
        return None


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    scheduler = Scheduler()
    launcher = Launcher(scheduler)
    options = ClusterOptions(
        name="test",
        workers=1,
        workers_max=3,
        threads=1,
        memory_limit=None,
        keep=False,
        grace_s=1.0,
        dashboard_address=None,
        start_timeout_s=1.0,
        log_dir=str(tmp_path),
        scratch_dir=str(tmp_path),
        own_dir=str(tmp_path),
    )
    launcher.keeper = WorkerSupervisor(scheduler, launcher, options, memory_limit=2**30)
    return launcher


@pytest.mark.asyncio
async def test_a_worker_that_got_the_port_of_a_former_one_can_be_lost(launcher: Launcher) -> None:
    # worker-0 registers at an address and is killed; worker-1 registers at the same one, because
    # the kernel reuses ports; the loss of that address must reach worker-1. The supervisor sent it
    # to worker-0, which had long ended.
    keeper = launcher.keeper
    assert keeper is not None
    for _ in range(2):
        await keeper.bring_back(1)
        await keeper.lose([ADDRESS], "kill", 0.0)
    assert [process.signals for process in launcher.started] == [[signal.SIGKILL]] * 2
    assert keeper.status() == []
