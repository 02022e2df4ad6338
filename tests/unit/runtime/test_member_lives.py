"""Successive incarnations of a member on one worker: what each reads, holds, and ends."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from elasticml.algorithms.parallel import Serial
from elasticml.collective.frames import Frame, Kind
from elasticml.collective.transport import LinkClosedError
from elasticml.data.readers.arrays import from_arrays
from elasticml.ids import MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol.codec import encode
from elasticml.runtime.executors import Runner
from elasticml.runtime.member_host import MemberHost
from elasticml.runtime.worker_context import WorkerContext
from elasticml.sim.virtual_links import VirtualTransport
from tests.sim.small_jobs import VirtualJob, toy_job
from tests.socket_pair import SocketTransport
from tests.toy import InlineRunner

pytestmark = pytest.mark.asyncio

ME = MemberId(0, 1)
SPEC = from_arrays(np.ones((10, 1)), np.arange(10.0)).spec()


class GatedRunner(InlineRunner):
    """Runs nothing before it is released."""

    def __init__(self) -> None:
        self.reached, self.released = asyncio.Event(), asyncio.Event()

    async def run(self, function: Callable, *args: object) -> object:
        self.reached.set()
        await self.released.wait()
        return function(*args)


class Network(dict[str, SocketTransport]):
    """A driver and a worker."""

    def __init__(self) -> None:
        for address in ("driver", "w"):
            SocketTransport(address, self)


def environment(network: Network, **changed: Runner) -> WorkerContext:
    runners: dict[str, Runner] = {"compute": InlineRunner(), "reading": InlineRunner(), **changed}
    return WorkerContext(
        transport=network["w"],
        parallel=Serial(),
        clock=lambda: 0.0,
        host="here",
        pid=1,
        threads=1,
        **runners,
    )


async def receive_kind(link, kind: str) -> dict:
    """Wait for a message of this kind from the member."""
    while True:
        frame = await link.receive(lambda header, prefix: pytest.fail("no payload is wanted"))
        if frame.prefix["type"] == kind:
            return dict(frame.prefix)


async def tell(link, order: cmd.Order, **extras: object) -> None:
    await link.send(Frame(kind=Kind.CONTROL, prefix={**encode(order), **extras}))


async def nobody_runs() -> list[str]:
    """Announce a worker to a scheduler without jobs."""
    return []


async def test_a_worker_with_a_notice_starts_no_incarnation_that_would_not_know_of_it():
    network = Network()
    host = MemberHost(environment(network), nobody_runs)
    await host.notice(0.0, "preempted")
    link = await network["driver"].connect("w", {"job": "j", "kind": "driver"})
    with pytest.raises(LinkClosedError):
        await receive_kind(link, "Arrive")
    assert host.agents == {}


async def test_a_worker_that_a_job_leaves_stuck_gives_notice_to_later_jobs_until_it_is_free():
    class StuckRunner(GatedRunner):
        def place(self) -> str:
            return "loop.py:3 in compute"

    async def no_time(seconds: float) -> None:
        await asyncio.sleep(0)

    announced = asyncio.Event()

    async def announce() -> list[str]:
        announced.set()
        return []

    network, compute = Network(), StuckRunner()
    host = MemberHost(replace(environment(network, compute=compute), pause=no_time), announce)
    links = {}
    for job in ("first", "second"):
        hello = {"job": job, "kind": "driver"}
        link = links[job] = await network["driver"].connect("w", hello)
        await receive_kind(link, "Arrive")
        record = {"algorithm": {"name": "tests.toy:ALGORITHM"}}
        welcome = cmd.Welcome(cause="t", member=ME, arrival=1)
        await tell(
            link,
            welcome,
            record=record,
            spec=SPEC,
            n_members=1,
        )
        if job == "first":
            while host.agents[job].collective is None:
                await asyncio.sleep(0)
            host.agents[job].collective.is_computing = True
            await tell(link, cmd.Dismiss(member=ME, reason=cmd.JOB_ENDED, is_final=True))
            await compute.reached.wait()
            while not host.stuck:
                await asyncio.sleep(0)
    noticed = await receive_kind(links["second"], "Noticed")
    wanted = "worker w is stuck in loop.py:3 in compute for job first, which has ended"
    assert noticed["reason"] == wanted
    assert not announced.is_set()
    compute.released.set()
    await asyncio.wait_for(announced.wait(), 60)
    assert host.stuck == ""
    host.close()


async def test_a_closed_member_keeps_no_sums(monkeypatch):
    """They lay in shared memory for as long as anything referred to the incarnation."""
    sums = []

    def lendable(self: VirtualTransport, nbytes: int) -> np.ndarray:
        array = np.empty(nbytes // 8)
        if self.address != "driver":
            sums.append(weakref.ref(array))
        return array

    monkeypatch.setattr(VirtualTransport, "lendable", lendable)
    job = VirtualJob(toy_job(members={"start": 3, "min": 1}))
    job.until(lambda: len(job.rows) > 2)
    gc.disable()
    try:
        assert [ref for ref in sums if ref() is not None]
        for worker in job.world.workers.serving():
            worker.process.enter(worker.agent.close)
        assert [ref for ref in sums if ref() is not None] == []
    finally:
        gc.enable()
        job.close()
