"""The contract of links, whatever carries them: frames, buffers, and the ends of links."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from distributed import Scheduler, Worker
from distributed.security import Security

from elasticml.collective.comm_link import MessageChannel, StreamChannel
from elasticml.collective.dask_transport import transport_of
from elasticml.collective.frames import Frame, Header, Kind
from elasticml.collective.shared_memory import SlotPool
from elasticml.collective.shared_memory_link import SharedLink
from elasticml.collective.socket_link import SocketLink
from elasticml.collective.transport import Link, LinkClosedError
from elasticml.errors import LocalProtocolError
from tests.socket_pair import SocketTransport

pytestmark = pytest.mark.asyncio

#: How a link is opened and what results: scheme, configured choice, kind of link.
WAYS = {
    "pair-socket": ("pair", "stream", SocketLink),
    "pair-shm": ("pair", "shm", SharedLink),
    "tcp-socket": ("tcp", "stream", SocketLink),
    "tcp-shm": ("tcp", "auto", SharedLink),
    "tls-shm": ("tls", "shm", SharedLink),
    "tls-stream": ("tls", "stream", StreamChannel),
    "tcp-comm": ("tcp", "comm", MessageChannel),
    "inproc-comm": ("inproc", "auto", MessageChannel),
}


def over(*ways: str) -> pytest.MarkDecorator:
    """Run a test over these ways, or over all."""
    ids = ways or tuple(WAYS)
    return pytest.mark.parametrize(
        ("scheme", "choice", "kind"), [WAYS[name] for name in ids], ids=ids
    )


@dataclass(frozen=True, slots=True)
class Servers:
    """A scheduler and two workers of one process."""

    scheduler: Scheduler
    workers: list[Worker]


@contextlib.asynccontextmanager
async def servers(scheme: str = "tcp") -> AsyncIterator[Servers]:
    """Start a scheduler and two workers over the given scheme, and stop them."""
    security = Security.temporary() if scheme == "tls" else Security()
    place = {"protocol": scheme, **({} if scheme == "inproc" else {"host": "127.0.0.1"})}
    common: dict[str, Any] = {"dashboard": False, "security": security, **place}
    async with contextlib.AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(
            Scheduler(port=0, dashboard_address=None, **common)
        )
        workers = [
            await stack.enter_async_context(Worker(scheduler.address, nthreads=1, **common))
            for _ in range(2)
        ]
        yield Servers(scheduler, workers)


@contextlib.asynccontextmanager
async def transports(scheme: str, choice: str) -> AsyncIterator[tuple[Any, Any]]:
    """Yield two transports that reach each other."""
    if scheme == "pair":
        network: dict[str, SocketTransport] = {}
        pools = [SlotPool(bytes_min=8) if choice == "shm" else None for _ in "ab"]
        yield tuple(SocketTransport(*ends) for ends in zip("ab", [network] * 2, pools, strict=True))
        return
    async with servers(scheme) as there:
        yield transport_of(there.workers[0]), transport_of(there.scheduler)


async def opened(near: Any, far: Any, **hello: Any) -> tuple[Any, Any]:
    """Open a link from one transport to another; return both its ends."""
    accepted: asyncio.Future[Link] = asyncio.get_running_loop().create_future()

    async def on_link(link: Link) -> None:
        accepted.set_result(link)

    far.listen(on_link)
    return await near.connect(far.address, hello), await accepted


async def pair(there: Servers, choice: str = "stream") -> tuple[Any, Any]:
    """Open a link from the first worker to the scheduler; return both its ends."""
    ends = transport_of(there.workers[0]), transport_of(there.scheduler)
    return await opened(*ends, job="j", member="1.0", transport=choice)


def fresh(header: Header, prefix: Mapping[str, Any]) -> memoryview:
    """Allocate a payload."""
    return memoryview(bytearray(header.payload_bytes))


def control(**prefix: Any) -> Frame:
    """Make a frame without a payload."""
    return Frame(kind=Kind.CONTROL, prefix=prefix)


def framed(exchange: int, vector: Any) -> Frame:
    """Make a frame of a vector."""
    prefix = {"size": vector.size}
    return Frame(kind=Kind.PARTIAL, exchange=exchange, prefix=prefix, payload=memoryview(vector))


@over()
async def test_frames_of_any_size_arrive_whole_and_in_order(scheme, choice, kind) -> None:
    rng = np.random.default_rng(0)
    vectors = [rng.random(n) for n in (1, 1_000, 47_028, 1_000_000)]
    async with transports(scheme, choice) as (here, there):
        ends = await opened(here, there, job="j", member="1.0", transport=choice)
        assert [type(getattr(link, "channel", link)) for link in ends] == [kind, kind]
        assert ends[0].hello == ends[1].hello == {"job": "j", "member": "1.0", "transport": choice}
        assert ends[0].peer == there.address
        for up, down in (ends, ends[::-1]):
            buffers = [np.zeros(vector.size) for vector in vectors]
            into = iter(buffers)

            def allocate(header: Header, prefix: Any, into: Any = into) -> memoryview:
                return memoryview(next(into))

            async def send(up: Any = up) -> None:
                for exchange, vector in enumerate(vectors):
                    buffer = vector.copy()
                    await up.send(framed(exchange, buffer))
                    # The sender may reuse its buffer as soon as send returns.
                    buffer[:] = -1
                await up.send(control())

            sending = asyncio.create_task(send())
            for exchange, (vector, buffer) in enumerate(zip(vectors, buffers, strict=True)):
                frame = await down.receive(allocate)
                assert (frame.kind, frame.exchange) == (Kind.PARTIAL, exchange)
                assert frame.prefix == {"size": vector.size}
                assert frame.payload.obj is buffer
                np.testing.assert_array_equal(buffer, vector)
            last = await down.receive(allocate)
            assert (last.prefix, last.payload) == ({}, None)
            await sending
            assert up.sent_bytes == down.received_bytes > 8 * 1_048_029


@over()
async def test_frames_sent_as_soon_as_the_link_is_open_arrive(scheme, choice, kind) -> None:
    async def on_link(link: Any) -> None:
        await link.send(control(member=link.hello["member"]))
        await link.send(await link.receive(fresh))

    async with transports(scheme, choice) as (here, there):
        there.listen(on_link)
        for member in range(5):
            link = await here.connect(there.address, {"member": member, "transport": choice})
            await link.send(control(echo=member))
            assert (await link.receive(fresh)).prefix == {"member": member}
            assert (await link.receive(fresh)).prefix == {"echo": member}
            link.close()


@pytest.mark.parametrize("closer", ["opener", "accepter", "transport"])
@over()
async def test_an_end_of_a_link_ends_waiting_calls_at_both_ends(
    scheme, choice, kind, closer
) -> None:
    async with transports(scheme, choice) as (here, there):
        near, far = await opened(here, there, transport=choice)
        waiting = [asyncio.create_task(link.receive(fresh)) for link in (near, far)]
        await asyncio.sleep(0)
        {"opener": near, "accepter": far, "transport": here}[closer].close()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [LinkClosedError, LinkClosedError]
        for link in (near, far):
            assert link.closed.is_set()
            with pytest.raises(LinkClosedError):
                await link.send(control())
            with pytest.raises(LinkClosedError):
                await link.receive(fresh)


@over()
async def test_a_buffer_of_the_wrong_size_is_a_local_protocol_error(scheme, choice, kind) -> None:
    async with transports(scheme, choice) as (here, there):
        near, far = await opened(here, there, transport=choice)
        await near.send(framed(0, np.zeros(1)))
        with pytest.raises(LocalProtocolError, match="8 bytes"):
            await far.receive(lambda header, prefix: memoryview(bytearray(9)))
        assert far.closed.is_set()


@over()
async def test_a_cancelled_receive_closes_the_link(scheme, choice, kind) -> None:
    async with transports(scheme, choice) as (here, there):
        near, far = await opened(here, there, transport=choice)
        waiting = asyncio.create_task(far.receive(fresh))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(LinkClosedError):
            await near.receive(fresh)


@over("pair-socket", "tcp-socket", "tcp-shm", "tls-shm", "tls-stream")
async def test_a_sender_that_waits_for_room_learns_of_a_lost_peer(scheme, choice, kind) -> None:
    async with transports(scheme, choice) as (here, there):
        near, far = await opened(here, there, transport=choice)
        sender = asyncio.create_task(near.send(framed(1, np.zeros(8 * 2**20))))
        # The other side does not read; the kernel's buffers take less than that.
        await asyncio.sleep(0)
        assert not sender.done()
        far.close()
        with pytest.raises(LinkClosedError):
            await sender


@over("tcp-socket", "tls-stream", "inproc-comm")
async def test_a_listener_that_fails_loses_its_link(scheme, choice, kind) -> None:
    async def on_link(link: Any) -> None:
        raise RuntimeError("a fault of the listener")

    async with transports(scheme, choice) as (here, there):
        there.listen(on_link)
        link = await here.connect(there.address, {"job": "j", "transport": choice})
        with pytest.raises(LinkClosedError):
            await link.receive(fresh)
