"""The container manager: what it reports, requests and releases."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from elasticml.clusters.yarn import container_manager as manager_module
from elasticml.clusters.yarn.container_allocator import ContainerAllocator
from elasticml.clusters.yarn.container_context import STARTUP_KEY
from elasticml.clusters.yarn.container_manager import ContainerManager
from elasticml.clusters.yarn.notice_parser import AgentNotice, AgentSeen
from elasticml.clusters.yarn.yarn_client import ServiceContainer
from elasticml.protocol.notices import (
    ContainerEnded,
    ContainerMarked,
    MarkLifted,
    NodeChanged,
    Notice,
)
from elasticml.runtime.preemption_board import PREEMPTION_EXTENSION, PreemptionBoard
from tests.fake_yarn import FakeApplication

OWN = "container_1795287234947_0002_01_000002"


class Scheduler:
    """The part of Dask's scheduler that the manager uses."""

    address = "tls://10.0.0.1:1"

    def __init__(self) -> None:
        self.workers: dict[str, Any] = {}
        self.board = PreemptionBoard()
        self.extensions: dict[str, Any] = {PREEMPTION_EXTENSION: self.board}
        self.retired: list[str] = []
        self.noticed: list[str] = []
        self.removed: list[str] = []

    def rpc(self, address: str) -> Any:
        async def em_notice(**arguments: Any) -> None:
            assert address not in self.retired
            self.noticed.append(address)

        return SimpleNamespace(em_notice=em_notice)

    async def retire_workers(self, workers: list[str], **options: Any) -> None:
        self.retired += workers

    async def remove_worker(self, address: str, **options: Any) -> None:
        self.removed.append(address)
        del self.workers[address]


class World:
    """A manager with its scheduler and application, and its posted notices."""

    def __init__(self, n: int, registered: int | None = None, **limits: int) -> None:
        self.scheduler = Scheduler()
        self.app = FakeApplication(n)
        self.manager = ContainerManager(
            self.scheduler,
            self.app,
            ContainerAllocator(**limits),
            container=OWN,
        )
        self.posted: list[Notice] = []
        self.board = self.scheduler.board
        self.board.subscribe(self.posted.append)
        asyncio.run(self.manager._poll())
        for instance in range(n if registered is None else registered):
            self.register(instance)

    def register(self, instance: int) -> None:
        container = f"container_{instance + 2}"
        node = f"node-{instance % 2}:45454"
        self.scheduler.workers[address(instance)] = SimpleNamespace(
            name=f"dask.worker_{instance}",
            extra={STARTUP_KEY: {"container": container, "node": node}},
        )
        self.manager.add_worker(self.scheduler, address(instance))

    def tell(self, *notices: AgentNotice) -> None:
        async def act() -> None:
            for notice in notices:
                await self.manager._handle(notice)

        asyncio.run(act())

    def poll(self) -> None:
        asyncio.run(self.manager._poll())


def address(instance: int) -> str:
    return f"tls://10.0.0.2:{1000 + instance}"


def marked(container: str, strict: bool = False) -> ContainerMarked:
    return ContainerMarked(container=container, grace_s=5.0, life_s=20.0, negotiable=not strict)


def exited(container: str, reason: Any, status: int, message: str = "") -> ContainerEnded:
    return ContainerEnded(container=container, reason=reason, status=status, message=message)


def posted_mark(container: str, address: str, **more: Any) -> ContainerMarked:
    return replace(marked(container), address=address, cause=f"reclaim {address}", **more)


def lifted(container: str, address: str) -> MarkLifted:
    return MarkLifted(container=container, address=address, cause=f"restored {address}")


def test_a_mark_on_a_worker_is_posted_by_its_address():
    world = World(2)
    world.tell(marked("container_3"))
    assert world.posted == [posted_mark("container_3", address(1))]


def test_a_strict_mark_cannot_be_negotiated():
    world = World(1)
    world.tell(marked("container_2", strict=True))
    assert world.posted == [posted_mark("container_2", address(0), negotiable=False)]


def test_a_mark_on_the_schedulers_own_container_is_essential():
    world = World(1)
    world.tell(marked(OWN))
    assert world.posted == [posted_mark(OWN, world.scheduler.address, essential=True)]


def test_a_mark_on_an_essential_container_ends_with_it():
    master = "container_1795287234947_0002_01_000001"
    world = World(1)
    world.tell(marked(master), exited(master, "preempted", -102))
    assert world.posted == [
        posted_mark(master, master, essential=True),
        lifted(master, master),
    ]


@pytest.mark.parametrize("own", [OWN, OWN.replace("container", "container_e01")])
def test_the_first_container_after_a_restart_of_the_resource_manager_is_a_workers(
    monkeypatch: pytest.MonkeyPatch, own: str
):
    """Its end counted as that of an unplaced one, and the request in its place was withdrawn."""
    first = "container_e01_1795287234947_0002_01_000001"
    world = World(1)
    world.manager._registry.own_container = own
    world.app.listed.append(
        ServiceContainer(
            name="dask.worker_1",
            service="dask.worker",
            instance=1,
            state="running",
            container=first,
        )
    )
    world.tell(marked(first))
    assert world.posted == []  # it waits for the worker to register; an essential one would not
    told: list[str] = []
    monkeypatch.setattr(ContainerAllocator, "ended", lambda self, name, *_: told.append(name) or [])
    monkeypatch.setattr(ContainerAllocator, "unplaced", lambda self: told.append("unplaced"))
    world.tell(exited(first, "released", -100))
    assert told == ["dask.worker_1"]


def test_a_mark_on_a_container_of_another_service_is_essential():
    world = World(1)
    world.app.listed.append(
        ServiceContainer(
            name="helper_0",
            service="helper",
            instance=0,
            state="running",
            container="container_9",
        )
    )
    world.tell(marked("container_9"))
    assert [n.essential for n in world.posted if isinstance(n, ContainerMarked)] == [True]


def test_nothing_is_released_for_an_unknown_container():
    # YARN takes back containers that it has granted before skein has heard of them, and so with
    # requests that were withdrawn too late. A member released for one would be gone for good.
    world = World(2)
    world.tell(marked("container_99"), exited("container_99", "preempted", -102))
    assert world.posted == []
    assert world.board.live() == []


def test_a_mark_that_came_before_skein_knew_the_container_reaches_its_worker():
    world = World(1, registered=0)
    (container,) = world.app.listed
    world.app.listed.clear()
    world.tell(marked("container_2"))
    world.app.listed.append(container)
    world.poll()
    world.register(0)
    assert [type(notice) for notice in world.posted] == [ContainerMarked]
    asyncio.run(world.manager.release([address(0)]))
    assert world.app.killed == ["dask.worker_0"]
    assert world.manager._allocator.count == 1  # it is requested again


def test_a_container_is_released_in_time_without_aborting_its_retirement(monkeypatch):
    # Plain tasks that run on; Dask logs a cancelled retirement as an error.
    monkeypatch.setattr(manager_module, "UNHURRIED_S_MAX", 0.01)
    world = World(2)

    async def release() -> None:
        is_over = asyncio.Event()

        async def retire_workers(workers: list[str], **options: Any) -> None:
            await is_over.wait()
            world.scheduler.retired += workers

        world.scheduler.retire_workers = retire_workers  # type: ignore[method-assign]
        await world.manager.release([address(1)])
        assert world.app.killed == ["dask.worker_1"]
        (leaving,) = world.manager._draining
        is_over.set()
        await leaving

    asyncio.run(release())
    assert world.scheduler.retired == [address(1)]
    assert world.manager._draining == set()


def test_a_check_between_a_release_and_the_kill_changes_nothing(monkeypatch):
    # The containers are checked every second, and retiring a worker takes up to 30 s.
    monkeypatch.setattr(manager_module, "UNHURRIED_S_MAX", 0.05)
    world = World(2, maximum=2)
    world.tell(marked("container_2"))
    world.board.post(MarkLifted(address=address(0)))  # nothing is urgent any more

    async def release() -> None:
        async def retire_workers(workers: list[str], **options: Any) -> None:
            await world.manager._poll()

        world.scheduler.retire_workers = retire_workers  # type: ignore[method-assign]
        await world.manager.release([address(1)])

    asyncio.run(release())
    assert world.app.killed == ["dask.worker_1"]
    assert world.manager._allocator.count == 2  # one exists, one will be requested


def test_nothing_is_released_for_a_strict_mark():
    world = World(2)
    world.tell(marked("container_2", strict=True))
    world.board.post(MarkLifted(container="container_2"))
    asyncio.run(world.manager.release([address(1)]))
    assert world.manager._allocator.count == 1  # it was retired, and no replacement is requested


def test_a_mark_is_kept_for_a_worker_that_registers_later():
    world = World(1, registered=0)
    world.tell(marked("container_2"))
    assert world.posted == []
    world.register(0)
    [mark] = world.posted
    assert isinstance(mark, ContainerMarked)
    assert mark.address == address(0)
    assert 0.0 <= mark.grace_s <= 5.0


def test_a_mark_on_an_unregistered_worker_does_not_add_a_replacement():
    # A policy released another container meanwhile: one container too many was requested.
    world = World(2, registered=1)
    world.tell(marked("container_3"))
    asyncio.run(world.manager.release([address(0)]))
    assert world.manager._allocator.count == 1


def test_the_end_of_a_container_is_reported_once_with_its_reason():
    world = World(2)
    over = exited("container_3", "preempted", -102, "Container preempted by scheduler")
    world.app.set("dask.worker_1", "failed", "Container preempted by scheduler")
    world.tell(AgentSeen(heartbeat_ms=1000), over, over)
    world.poll()
    assert world.posted == [
        ContainerEnded(
            cause="ended container_3",
            address=address(1),
            container="container_3",
            reason="preempted",
            status=-102,
            message="Container preempted by scheduler",
        )
    ]


@pytest.mark.parametrize(
    ("state", "message", "reason"),
    [
        ("failed", "Container preempted by scheduler", "preempted"),
        ("failed", "Container released on a *lost* node", "node"),
        ("failed", "Container killed for exceeding physical memory limits", "memory"),
        ("failed", "Container failed during execution, see logs for more information.", "exit"),
        ("killed", "Killed by user request.", "released"),
    ],
)
def test_without_an_agent_ends_are_read_from_skeins_reports(state: str, message: str, reason: str):
    world = World(2)
    world.app.set("dask.worker_0", state, message)
    world.poll()
    world.poll()
    assert [(n.address, n.reason) for n in world.posted if isinstance(n, ContainerEnded)] == [
        (address(0), reason)
    ]


def test_workers_of_a_lost_node_are_reported_and_removed():
    world = World(4)
    world.tell(NodeChanged(node="node-1:45454", state="lost"))
    lost = (address(1), address(3))
    node = "node-1:45454"
    assert world.posted == [
        NodeChanged(cause=f"node {node}", node=node, state="lost", addresses=lost)
    ]
    assert world.scheduler.removed == list(lost)


def test_workers_of_a_decommissioned_node_stay_until_it_stops():
    world = World(2)
    node = "node-0:45454"
    change = NodeChanged(node=node, state="decommissioning", grace_s=9.0)
    world.tell(change)
    assert world.posted == [replace(change, cause=f"node {node}", addresses=(address(0),))]
    assert world.scheduler.removed == []


def test_a_job_gets_containers_up_to_the_maximum():
    world = World(2, maximum=3)
    assert asyncio.run(world.manager.request(4)) == 1
    assert [c.state for c in world.app.listed] == ["running", "running", "requested"]


def test_a_released_worker_is_retired_and_its_container_released():
    world = World(3)
    asyncio.run(world.manager.release([address(1), "tls://10.9.9.9:1"]))
    assert (world.scheduler.noticed, world.scheduler.retired) == ([address(1)], [address(1)])
    assert world.app.killed == ["dask.worker_1"]


def test_an_application_whose_workers_cannot_start_ends_with_one_line():
    world = World(3, registered=0)
    line = "worker_class: cannot import 'mine.Worker'"
    world.app.store.values["elasticml.word.dask.worker_2"] = line.encode()
    world.tell(*(exited(f"container_{i}", "exit", 2, "Exit code: 2") for i in (2, 3, 4)))
    assert world.app.ended == (
        "FAILED",
        "3 worker containers in a row ended before they registered (exit, status 2): "
        f"{line}; fix that and submit again",
    )
