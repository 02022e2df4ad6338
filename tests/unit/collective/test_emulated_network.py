"""An emulated slower network: frames leave at a rate and arrive after a latency."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from elasticml.collective.emulated_network import SLACK_S, limited
from elasticml.collective.frames import Frame, Kind
from elasticml.collective.transport import LinkClosedError
from tests.socket_pair import SocketTransport


class ManualClock:
    """Time that passes only while a task waits for it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    async def pause(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


def frame(nbytes: int) -> Frame:
    return Frame(kind=Kind.MAIL, prefix={}, payload=np.ones(nbytes // 8).data.cast("B"))


def allocate(header, prefix):
    return np.empty(header.payload_bytes // 8).data.cast("B")


async def linked(rates, clock):
    """Open a limited link; return both its ends."""
    network: dict[str, SocketTransport] = {}
    far = asyncio.get_running_loop().create_future()
    there = SocketTransport("b", network)

    async def on_link(link):
        far.set_result(link)

    there.listen(on_link)
    transport = limited(SocketTransport("a", network), rates, clock, clock.pause)
    return await transport.connect("b", {"job": "j"}), await far, transport


def test_frames_leave_one_after_the_other_at_the_rate():
    async def run():
        clock = ManualClock()
        link, _, _ = await linked({"bandwidth": 1e6}, clock)
        for _ in range(4):
            await link.send(frame(100_000 - 32))
        return clock.now_s

    assert asyncio.run(run()) == pytest.approx(100.4 - SLACK_S)


def test_all_links_of_a_process_share_its_uplink():
    async def run():
        clock = ManualClock()
        network: dict[str, SocketTransport] = {}
        links = []

        async def on_link(link):
            pass

        transport = limited(SocketTransport("a", network), {"bandwidth": 1e6}, clock, clock.pause)
        for address in ("b", "c"):
            SocketTransport(address, network).listen(on_link)
            links.append(await transport.connect(address, {"job": "j"}))
        await asyncio.gather(*(link.send(frame(100_000 - 32)) for link in links))
        return clock.now_s

    assert asyncio.run(run()) == pytest.approx(100.2 - SLACK_S)


def test_a_frame_arrives_unchanged_and_later_even_if_its_memory_is_overwritten():
    async def run():
        clock = ManualClock()
        link, far, _ = await linked({"bandwidth": 1e6, "latency_s": 0.5}, clock)
        array = np.arange(1000.0)
        await link.send(Frame(kind=Kind.MAIL, prefix={"a": 1}, payload=array.data.cast("B")))
        left_s = clock.now_s
        array[:] = -1.0
        received = await far.receive(allocate)
        return clock.now_s - left_s, np.frombuffer(received.payload), received.prefix

    seconds, actual, prefix = asyncio.run(run())
    assert seconds == pytest.approx(0.5)
    assert np.array_equal(actual, np.arange(1000.0))
    assert prefix == {"a": 1}


def test_queued_bytes_are_counted_and_a_closed_link_reports_them():
    async def run():
        clock = ManualClock()
        link, _, _ = await linked({"bandwidth": 1e6}, clock)
        sending = asyncio.ensure_future(link.send(frame(100_000 - 32)))
        held = asyncio.Event()

        async def never(seconds):
            held.set()
            await asyncio.sleep(3600)

        link._uplink.pause = never
        await held.wait()
        unsent = [link.unsent_bytes]
        clock.now_s += 0.05
        unsent.append(link.unsent_bytes)
        sending.cancel()
        link.close()
        with pytest.raises(LinkClosedError):
            await link.send(frame(8))
        return unsent

    in_time = round(1e6 * SLACK_S)
    assert asyncio.run(run()) == [100_000 - in_time, 50_000 - in_time]


def test_a_job_without_rates_keeps_its_transport():
    transport = SocketTransport("a", {})
    assert limited(transport, {"bandwidth": None, "latency_s": 0.0}, ManualClock()) is transport
