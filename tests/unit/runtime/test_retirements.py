"""Retirements: jobs leave workers before Dask's method runs, by address and by name."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import dask
import pytest

from elasticml.control.driver_settings import DriverSettings
from elasticml.control.job_state import JobState
from elasticml.protocol.events import Arrived
from elasticml.protocol.notices import ContainerMarked, MarkLifted, Notice
from elasticml.runtime.preemption_board import PreemptionBoard
from elasticml.runtime.retirements import RETIRE_TIMEOUT_KEY, Retirements

pytestmark = pytest.mark.asyncio


class Scheduler:
    """The part of Dask's scheduler that is replaced; ``pinned`` workers cannot be retired."""

    def __init__(self, n: int) -> None:
        self.workers = {f"tcp://w{k}": SimpleNamespace(name=k) for k in range(n)}
        self.calls: list[dict[str, Any]] = []
        self.pinned: set[str] = set()
        self.handlers: dict[str, Any] = {"retire_workers": self.retire_workers}

    def workers_to_close(self, n: int = 1) -> list[str]:
        return list(self.workers)[:n]

    async def retire_workers(self, workers: Any = None, **options: Any) -> dict[str, Any]:
        if options.get("names") is not None:
            raise TypeError("names and workers are mutually exclusive")
        self.calls.append({"workers": workers, **options})
        retired = [address for address in workers if address not in self.pinned]
        return {address: self.workers.pop(address) for address in retired}


class Scene:
    """Retirements of workers of which the first few have a member of a job."""

    def __init__(self, n_workers: int, n_members: int) -> None:
        self.scheduler = Scheduler(n_workers)
        self.state = JobState(DriverSettings(), stage="training")
        self.posted: list[Notice] = []
        for slot in range(n_members):
            event = Arrived(
                arrival=0, address=f"tcp://w{slot}", host="h", pid=slot, threads=1, slot=slot
            )
            self.state.membership.enter(self.state.membership.admit(event), "active")
        board = PreemptionBoard()
        board.subscribe(self.posted.append)
        scheduler: Any = self.scheduler
        self.looks = 0
        self.retirements = Retirements(scheduler, board, self.states)

    def states(self) -> list[JobState]:
        self.looks += 1
        return [self.state]

    async def looked(self) -> None:
        """Wait until the retirement has looked at the jobs again, and found them unchanged."""
        until = self.looks + 3
        async with asyncio.timeout(60.0):
            while self.looks < until:
                await asyncio.sleep(0)

    def leave(self, slot: int) -> None:
        record = self.state.membership.at(f"tcp://w{slot}")
        assert record is not None
        self.state.membership.remove(record.id)

    def retire(self, *args: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self.scheduler.handlers["retire_workers"](*args, **options))

    def marks(self) -> list[tuple[str, str]]:
        return [
            (type(notice).__name__, notice.address)
            for notice in self.posted
            if isinstance(notice, (ContainerMarked, MarkLifted))
        ]


@pytest.mark.parametrize(
    "call",
    [
        {"workers": ["tcp://w1", "tcp://gone"]},
        {"workers": [1, 7]},  # SpecCluster's names
        {"names": ["1"]},
    ],
)
async def test_workers_are_retired_when_the_jobs_have_left_them(call: dict[str, Any]) -> None:
    scene = Scene(3, 2)
    task = scene.retire(**call, close_workers=True)
    await scene.looked()
    (mark,) = scene.posted
    assert isinstance(mark, ContainerMarked)
    assert (mark.address, mark.grace_s, mark.reason, mark.negotiable, mark.cause) == (
        *("tcp://w1", 60.0, "retired", False),
        "retire tcp://w1",
    )
    assert scene.scheduler.calls == []
    scene.leave(1)
    assert list(await task) == ["tcp://w1"]
    options = {"close_workers": True, "remove": True, "stimulus_id": None}
    assert scene.scheduler.calls == [{"workers": ["tcp://w1"], **options}]


async def test_nothing_is_awaited_that_has_nowhere_to_go() -> None:
    scene = Scene(3, 2)
    await scene.retire(names=[0, 1])  # all members of the job
    await scene.retire(workers=["tcp://w2"])  # no member
    assert [call["workers"] for call in scene.scheduler.calls] == [
        ["tcp://w0", "tcp://w1"],
        ["tcp://w2"],
    ]
    assert await scene.retire(workers=[]) == {}


async def test_workers_of_a_cluster_that_closes_get_no_message_that_may_come_too_late() -> None:
    scene = Scene(3, 2)
    assert await scene.retire(workers=[0, 1, 2]) == {}  # SpecCluster's names of all workers
    assert scene.scheduler.calls == []
    # The jobs know why the workers go, and no mark is lifted.
    assert scene.marks() == [("ContainerMarked", f"tcp://w{k}") for k in range(3)]
    await scene.retire(workers=["tcp://w0", "tcp://w1", "tcp://w2"])  # a user's call
    assert len(scene.scheduler.calls) == 1


async def test_a_job_that_does_not_leave_delays_a_retirement_no_longer_than_configured() -> None:
    scene = Scene(2, 2)
    with dask.config.set({RETIRE_TIMEOUT_KEY: "100ms"}):
        assert list(await scene.retire(workers=["tcp://w0"])) == ["tcp://w0"]


async def test_marks_of_workers_that_dask_cannot_retire_are_lifted_by_the_last_call() -> None:
    scene = Scene(3, 2)
    scene.scheduler.pinned = {"tcp://w0"}
    first, second = scene.retire(workers=["tcp://w0"]), scene.retire(names=[0])
    await scene.looked()
    first.cancel()
    await scene.looked()
    assert scene.marks() == [("ContainerMarked", "tcp://w0")]
    scene.leave(0)
    assert await second == {}
    assert scene.marks()[1:] == [("MarkLifted", "tcp://w0")]
