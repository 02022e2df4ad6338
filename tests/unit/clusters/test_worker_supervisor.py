"""The supervisor of a local cluster signals the worker that has an address now."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from elasticml.clusters.local.launchers import Process
from elasticml.clusters.local.worker_supervisor import WorkerSupervisor

ADDRESS = "tcp://127.0.0.1:40001"
OPTIONS = SimpleNamespace(
    threads=1, grace_s=1.0, start_timeout_s=1.0, log_dir="", scratch_dir="", slowdown={}
)


class EndingProcess(Process):
    """A process that ends at its first signal."""

    number = 0

    def send_signal(self, number: int) -> None:
        self.number = number
        self.ended.set()


@pytest.mark.asyncio
async def test_a_worker_that_got_the_port_of_a_former_one_can_be_lost():
    # The kernel reuses ports. The supervisor looked for the address among those that had ended.
    scheduler, started = SimpleNamespace(address="", workers={}), []

    async def start(options, lifeline):
        started.append(EndingProcess(pid=len(started)))
        scheduler.workers[ADDRESS] = SimpleNamespace(name=options.name)
        supervisor.add_worker(scheduler, ADDRESS)
        return started[-1]

    launcher = SimpleNamespace(start=start)
    supervisor = WorkerSupervisor(scheduler, launcher, OPTIONS, memory_limit=2**30)
    for _ in range(2):
        await supervisor.bring_back(1)
        await supervisor.lose([ADDRESS], "kill", 0.0)
    assert [process.number for process in started] == [signal.SIGKILL] * 2
    assert supervisor.status() == []
