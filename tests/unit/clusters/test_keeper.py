"""Whom the keeper of a local cluster ends: the worker that has an address now."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticml.clusters.keeper import Keeper
from elasticml.clusters.launch import Process
from elasticml.clusters.options import ClusterOptions, WorkerOptions
from elasticml.errors import ConfigError

ADDRESS = "tcp://127.0.0.1:40001"


class Scheduler:
    """The part of Dask's scheduler that the keeper knows."""

    address = "tcp://127.0.0.1:1"

    def __init__(self) -> None:
        self.workers: dict[str, Any] = {}


class EndingProcess(Process):
    """A process that ends at its first signal, and is none."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.signals: list[int] = []

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        self.ended.set()


class Launcher:
    """Starts workers that register at once, all at the same address."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.keeper: Keeper | None = None
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
        threads=1,
        memory_limit=None,
        keep=False,
        grace_s=1.0,
        dashboard_address=None,
        start_method="spawn",
        start_timeout_s=1.0,
        log_dir=str(tmp_path),
        scratch_dir=str(tmp_path),
        own_dir=str(tmp_path),
    )
    launcher.keeper = Keeper(scheduler, launcher, options, memory_limit=2**30)
    return launcher


@pytest.mark.asyncio
async def test_a_worker_that_got_the_port_of_a_former_one_can_be_lost(launcher: Launcher) -> None:
    # worker-0 registers at an address and is killed; worker-1 registers at the same one, as the
    # kernel hands out free ports again; the loss of that address must reach worker-1, which the
    # keeper had taken for worker-0, long gone.
    keeper = launcher.keeper
    assert keeper is not None
    for _ in range(2):
        await keeper.bring_back(1)
        await keeper.lose([ADDRESS], "kill", 0.0)
    assert [process.signals for process in launcher.started] == [[signal.SIGKILL]] * 2
    assert keeper.status() == []


@pytest.mark.asyncio
async def test_a_worker_that_is_gone_is_passed_over_and_an_unknown_one_is_named(
    launcher: Launcher,
) -> None:
    keeper = launcher.keeper
    assert keeper is not None
    await keeper.bring_back(1)
    for _ in range(2):
        await keeper.lose([ADDRESS, "worker-0"], "kill", 0.0)
    assert len(launcher.started) == 1
    with pytest.raises(ConfigError, match="no worker 'worker-7'"):
        await keeper.lose(["worker-7"], "kill", 0.0)
