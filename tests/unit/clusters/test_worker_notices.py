"""What a worker's sources say reaches the scheduler as a mark; one worker polls for many."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from elasticml.clusters.stop_notices import StopNotice
from elasticml.clusters.worker_notices import WorkerNotices, sources_of
from elasticml.runtime.notice_service import NoticeService
from elasticml.runtime.preemption_board import PreemptionBoard


class Cluster:
    """Workers in this process whose calls reach a notice service."""

    def __init__(self, *names):
        addresses = {f"tcp://{name}:1": name for name in names}
        self.board = PreemptionBoard(lambda: 0.0)
        workers = {a: SimpleNamespace(name=n, host=n) for a, n in addresses.items()}
        self.connected = workers
        self.service = NoticeService(SimpleNamespace(workers=workers), self.board)
        self.scheduler = SimpleNamespace(**self.service.handlers)
        self.workers = {name: self._worker(address) for address, name in addresses.items()}

    def _worker(self, address):
        plugins = {"elasticml-member": None}
        return SimpleNamespace(address=address, scheduler=self.scheduler, plugins=plugins)

    def marks(self):
        return [(m.address, m.reason) for m in self.board.live()]


class Source:
    """A source of an allocation, which counts its polls."""

    name = "slurm"
    every_s = 3600.0
    allocation = "slurm 7"

    def __init__(self):
        self.notice = None
        self.polls = 0

    def poll(self, now_s):
        self.polls += 1
        return self.notice


def ending(after_s, reason="preempted"):
    return StopNotice(deadline_s=time.time() + after_s, reason=reason, source="slurm")


@pytest.mark.asyncio
async def test_an_end_is_posted_and_a_withdrawn_one_lifted():
    cluster = Cluster("a")
    notices = WorkerNotices(cluster.workers["a"], [])
    assert await notices.post(ending(30, "maintenance"))
    assert cluster.marks() == [("tcp://a:1", "maintenance")]
    assert await notices.withdraw(ending(30))
    assert cluster.marks() == []


@pytest.mark.asyncio
async def test_one_worker_of_an_allocation_polls_for_all_of_them():
    cluster = Cluster("a", "b", "c")
    source = Source()
    everyone = [WorkerNotices(worker, [source]) for worker in cluster.workers.values()]
    assert [await notices.ask(source) for notices in everyone] == [None] * 3
    assert source.polls == 1
    source.notice = ending(30)
    pauses = [asyncio.ensure_future(n.pause(source, 60.0)) for n in everyone[1:]]
    await asyncio.sleep(0)
    assert await everyone[0].ask(source) == source.notice
    async with asyncio.timeout(10):
        await asyncio.gather(*pauses)  # the others need not wait for their next turn
    assert [await notices.ask(source) for notices in everyone[1:]] == [source.notice] * 2
    assert source.polls == 2


@pytest.mark.asyncio
async def test_the_next_worker_polls_as_soon_as_the_first_is_gone():
    cluster = Cluster("a", "b")
    source = Source()
    first, second = (WorkerNotices(worker, [source]) for worker in cluster.workers.values())
    for notices in (first, second):
        await notices.ask(source)
    pause = asyncio.ensure_future(second.pause(source, 60.0))
    await asyncio.sleep(0)
    cluster.connected.pop("tcp://a:1")
    cluster.service.removed("tcp://a:1")
    async with asyncio.timeout(10):
        await pause
    await second.ask(source)
    assert source.polls == 2


def test_sources_come_from_the_environment_and_from_the_lifetime():
    job = {"SLURM_JOB_ID": "7"}
    names = [source.name for source in sources_of("auto", job, None, 600.0)]
    assert names[0] == "slurm"
    assert names[-1] == "lifetime"
    assert [source.name for source in sources_of("aws, gce", {}, None, None)] == ["aws", "gce"]
    assert sources_of("none", job, None, None) == []
