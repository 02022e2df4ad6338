"""The container manager between a fake ResourceManager and a scheduler: what it says and does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import pytest

from elasticml.clusters.yarn import container_manager as manager_module
from elasticml.clusters.yarn.container_allocator import ContainerAllocator
from elasticml.clusters.yarn.container_context import STARTUP_KEY
from elasticml.clusters.yarn.container_manager import ContainerManager
from elasticml.clusters.yarn.yarn_client import ServiceContainer
from elasticml.protocol.notices import ContainerEnded, MarkLifted, Notice
from elasticml.runtime.preemption_board import PREEMPTION_EXTENSION, PreemptionBoard
from tests.fake_yarn import WAIT_S, FakeApplication

pytestmark = pytest.mark.asyncio

OWN = "container_1795287234947_0002_01_000002"
MASTER = "container_1795287234947_0002_01_000001"
#: The first container after a restart of the ResourceManager.
FIRST = "container_e01_1795287234947_0002_01_000001"
PREEMPTED = "Container preempted by scheduler"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Poll the containers often."""
    monkeypatch.setattr(manager_module, "LOOK_S", 0.02)


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

    def __init__(self, n: int, registered: int | None = None, own: str = OWN, **limits: int):
        self.scheduler = Scheduler()
        self.app = FakeApplication(n)
        self.agent = self.app.agent
        self.board = self.scheduler.board
        self.manager = ContainerManager(
            self.scheduler, self.app, ContainerAllocator(**limits), container=own
        )
        self._notices: list[Notice] = []
        self._registered = n if registered is None else registered

    async def __aenter__(self) -> Self:
        self.board.subscribe(self._notices.append)
        self.scheduler.add_plugin = lambda plugin: None
        await self.manager.start()
        await asyncio.to_thread(self.app.store.watched.get, timeout=WAIT_S)
        await self.polled()
        for instance in range(self._registered):
            self.register(instance)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.manager.close()

    def register(self, instance: int, container: str = "") -> None:
        container = container or f"container_{instance + 2}"
        startup = {"container": container, "node": f"node-{instance % 2}:45454"}
        self.scheduler.workers[address(instance)] = SimpleNamespace(
            name=f"dask.worker_{instance}", extra={STARTUP_KEY: startup}
        )
        self.manager.add_worker(self.scheduler, address(instance))

    def mark(self, container: str, strict: bool = False) -> None:
        self.agent.mark((container, time.time(), 1), strict=strict)

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not is_so():
                await asyncio.sleep(0.005)

    async def handled(self) -> list[Notice]:
        """Wait until the agent's documents have been handled; return what was posted."""
        self.agent.change("last:1", "RUNNING")
        await self.until(lambda: any(getattr(n, "node", "") == "last:1" for n in self._notices))
        return [n for n in self._notices if getattr(n, "node", "") != "last:1"]

    async def polled(self) -> None:
        """Wait until the containers have been polled and what was due has been done."""
        looks = self.app.looks
        await self.until(lambda: self.app.looks >= looks + 2)

    def states(self) -> list[str]:
        return [container.state for container in self.app.listed]


def address(instance: int) -> str:
    return f"tls://10.0.0.2:{1000 + instance}"


def helper(service: str, container: str) -> ServiceContainer:
    return ServiceContainer(
        name=f"{service}_1", service=service, instance=1, state="running", container=container
    )


LATER = helper("dask.worker", FIRST)


@pytest.mark.parametrize(
    ("container", "strict", "listed", "own", "posted"),
    [
        ("container_2", False, None, OWN, [(address(0), True, False)]),
        ("container_2", True, None, OWN, [(address(0), False, False)]),
        # The scheduler, the master and other services are essential.
        (OWN, False, None, OWN, [("tls://10.0.0.1:1", True, True)]),
        (MASTER, False, None, OWN, [(MASTER, True, True)]),
        ("container_9", False, helper("helper", "container_9"), OWN, [("container_9", True, True)]),
        # A worker that has not registered: its mark waits, and it is not taken for the master.
        (FIRST, False, LATER, OWN, []),
        (FIRST, False, LATER, OWN.replace("container", "container_e01"), []),
        # YARN takes back containers that it has granted before skein has heard of them. A member
        # released for one would be gone for good.
        ("container_99", False, None, OWN, []),
    ],
)
async def test_a_mark_is_posted_with_who_is_marked(container, strict, listed, own, posted):
    async with World(1, own=own) as world:
        world.app.listed += [listed] if listed else []
        world.mark(container, strict)
        marks = await world.handled()
        assert [(m.address, m.negotiable, m.essential) for m in marks] == posted
        if listed is LATER:
            world.register(1, FIRST)
            assert [m.address for m in world.board.live()] == [address(1)]


async def test_a_mark_on_an_essential_container_ends_with_it_and_an_unknown_one_leaves_nothing():
    async with World(1) as world:
        world.mark(MASTER)
        world.agent.end(MASTER, -102, PREEMPTED)
        mark, lifted = await world.handled()
        assert (mark.address, lifted.address) == (MASTER, MASTER)
        assert isinstance(lifted, MarkLifted)
        world.agent.end("container_99", -102, PREEMPTED)
        assert len(await world.handled()) == 2
        assert world.board.live() == []


async def test_a_mark_that_came_before_skein_knew_the_container_reaches_its_worker():
    async with World(1, registered=0) as world:
        (container,) = world.app.listed
        world.app.listed.clear()
        world.mark("container_2")
        assert await world.handled() == []
        world.app.listed.append(container)
        await world.polled()
        world.register(0)
        (mark,) = await world.handled()
        assert (mark.address, 0.0 <= mark.grace_s <= 15.0) == (address(0), True)
        await world.manager.release([address(0)])
        assert world.app.killed == ["dask.worker_0"]
        # It is requested again.
        await world.until(lambda: world.states() == ["killed", "requested"])


async def test_a_container_is_released_in_time_without_aborting_its_retirement(monkeypatch):
    # Plain tasks that run on; Dask logs a cancelled retirement as an error.
    monkeypatch.setattr(manager_module, "UNHURRIED_S_MAX", 0.01)
    is_over = asyncio.Event()
    async with World(2) as world:

        async def retire_workers(workers: list[str], **options: Any) -> None:
            await is_over.wait()
            world.scheduler.retired += workers

        world.scheduler.retire_workers = retire_workers  # type: ignore[method-assign]
        await world.manager.release([address(1)])
        assert (world.app.killed, world.scheduler.retired) == (["dask.worker_1"], [])
        is_over.set()
        await world.until(lambda: world.scheduler.retired == [address(1)])


async def test_polls_between_a_release_and_the_kill_change_nothing():
    # The containers are polled every second, and retiring a worker takes up to 30 s.
    async with World(2, maximum=2) as world:
        world.mark("container_2")
        await world.handled()
        world.board.post(MarkLifted(address=address(0)))  # nothing is urgent any more

        async def retire_workers(workers: list[str], **options: Any) -> None:
            await world.polled()

        world.scheduler.retire_workers = retire_workers  # type: ignore[method-assign]
        await world.manager.release([address(1)])
        assert world.app.killed == ["dask.worker_1"]
        await world.until(lambda: world.states() == ["running", "killed", "requested"])


async def test_the_end_of_a_container_is_reported_once_with_its_reason():
    async with World(2) as world:
        world.agent.hello()
        world.agent.end("container_3", -102, PREEMPTED)
        await world.handled()
        world.app.set("dask.worker_1", "failed", PREEMPTED)
        world.agent.end("container_3", -102, PREEMPTED)
        await world.polled()
        assert await world.handled() == [
            ContainerEnded(
                cause="ended container_3",
                address=address(1),
                container="container_3",
                reason="preempted",
                status=-102,
                message=PREEMPTED,
            )
        ]


@pytest.mark.parametrize(
    ("state", "message", "reason"),
    [
        ("failed", PREEMPTED, "preempted"),
        ("failed", "Container failed during execution, see logs for more information.", "exit"),
        ("killed", "Killed by user request.", "released"),
    ],
)
async def test_without_an_agent_ends_are_read_from_skeins_reports(state, message, reason):
    async with World(2) as world:
        world.app.set("dask.worker_0", state, message)
        await world.polled()
        await world.polled()
        ended = [n for n in await world.handled() if isinstance(n, ContainerEnded)]
        assert [(n.address, n.reason) for n in ended] == [(address(0), reason)]


async def test_a_closed_manager_leaves_no_task_that_polls():
    async with World(2):
        assert asyncio.all_tasks() != {asyncio.current_task()}
    assert asyncio.all_tasks() == {asyncio.current_task()}
