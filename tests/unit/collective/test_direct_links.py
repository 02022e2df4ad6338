"""Links without tasks: the poster of a frame sends it, a read callback handles it."""

from __future__ import annotations

import asyncio
import gc
import weakref

import numpy as np
import pytest

from elasticml.collective.frames import Frame, Kind
from elasticml.collective.shared_memory import SlotPool
from elasticml.collective.shared_memory_link import SharedLink
from elasticml.collective.transport import LinkClosedError
from elasticml.runtime.peer import Peer
from tests.socket_pair import socket_line

pytestmark = pytest.mark.asyncio

LONG = 4 * 2**20


def fresh(header, prefix) -> memoryview:
    return np.empty(header.payload_bytes // 8).data.cast("B")


def framed(exchange: int, nbytes: int = 0) -> Frame:
    payload = memoryview(np.full(nbytes // 8, float(exchange))) if nbytes else None
    return Frame(kind=Kind.PARTIAL, exchange=exchange, prefix={"n": exchange}, payload=payload)


def shared_line() -> list[SharedLink]:
    """Both ends of a link with shared memory."""
    return [SharedLink(end, SlotPool()) for end in socket_line()]


@pytest.mark.parametrize("line", [socket_line, shared_line])
@pytest.mark.parametrize("who", ["this end", "the other end", "a cancelled task"])
async def test_nothing_of_a_peer_is_left_when_its_link_has_closed(line, who):
    """Its callbacks are those of a job's driver, which stayed until a garbage collection."""
    arrived = asyncio.Event()
    peers = [Peer(end, fresh, lambda *_: arrived.set(), lambda *_: None) for end in line()]
    tasks = [asyncio.create_task(peer.run()) for peer in peers]
    await asyncio.sleep(0)
    peers[1].send(framed(1, 8000))
    await arrived.wait()
    left = [weakref.ref(peer) for peer in peers]
    gc.disable()
    try:
        match who:
            case "this end":
                peers[0].close()
            case "the other end":
                peers[1].close()
            case _:
                tasks[0].cancel()
        await asyncio.wait(tasks)
        await asyncio.sleep(0)  # their writers end
        # A task that was cancelled keeps its error, and with it the frames of the traceback.
        del peers, tasks
        assert [ref() for ref in left] == [None, None]
    finally:
        gc.enable()


async def test_frame_read_ahead_is_received_although_the_other_end_has_closed():
    near, far = socket_line()
    for k in range(2):
        await near.send(framed(k))
    near.close()
    assert (await far.receive(fresh)).prefix == {"n": 0}
    for _ in range(20):
        await asyncio.sleep(0)  # the loop sees the end of the stream behind the second frame
    assert (await far.receive(fresh)).prefix == {"n": 1}
    with pytest.raises(LinkClosedError):
        await far.receive(fresh)


async def test_no_frame_is_handled_after_the_handler_has_closed_the_link():
    near, far = socket_line()
    received = []

    def close(frame: Frame) -> None:
        received.append(frame.exchange)
        far.close()

    for exchange in range(3):
        await near.send(framed(exchange))
    with pytest.raises(LinkClosedError):
        await far.serve(fresh, close)
    assert received == [0]
    near.close()


async def test_peer_that_vanishes_while_the_kernel_buffer_is_full_is_reported_once():
    (near, far), reasons = socket_line(), []
    peer = Peer(near, fresh, lambda *_: None, lambda _, reason: reasons.append(reason))
    running = asyncio.create_task(peer.run())
    await asyncio.sleep(0)
    peer.send(framed(1, LONG))
    peer.send(framed(2))
    far.close()
    await running
    peer.send(framed(3))
    assert reasons == ["closed"]
    assert near.closed.is_set()
