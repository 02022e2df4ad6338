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
from elasticml.errors import LocalProtocolError
from elasticml.runtime.peer import Peer
from tests.socket_pair import socket_line

pytestmark = pytest.mark.asyncio

LONG = 4 * 2**20


def fresh(header, prefix) -> memoryview:
    return np.empty(header.payload_bytes // 8).data.cast("B")


def framed(exchange: int, nbytes: int = 0) -> Frame:
    payload = memoryview(np.full(nbytes // 8, float(exchange))) if nbytes else None
    return Frame(kind=Kind.PARTIAL, exchange=exchange, prefix={"n": exchange}, payload=payload)


class ServedPeer:
    """A peer, the frames that it received, and how it ended."""

    def __init__(self, link, wanted: int = 1) -> None:
        self.frames: list[tuple[int, int]] = []
        self.reasons: list[str] = []
        self.complete = asyncio.Event()
        self._wanted = wanted
        self.peer = Peer(
            link, fresh, self._on_frame, lambda peer, reason: self.reasons.append(reason)
        )
        self.running = asyncio.create_task(self.peer.run())

    def _on_frame(self, peer: Peer, frame: Frame) -> None:
        nbytes = 0
        if frame.payload is not None:
            vector = np.frombuffer(frame.payload)
            assert np.all(vector == frame.exchange)
            nbytes = vector.nbytes
        self.frames.append((frame.exchange, nbytes))
        if len(self.frames) == self._wanted:
            self.complete.set()


def shared_line():
    """Both ends of a link with shared memory, and their pools."""
    pools = SlotPool(), SlotPool()
    return [SharedLink(e, p) for e, p in zip(socket_line(), pools, strict=True)], pools


def in_slot(pool: SlotPool, exchange: int, nbytes: int) -> Frame:
    vector = pool.take(nbytes)
    vector[:] = exchange
    return Frame(
        kind=Kind.PARTIAL, exchange=exchange, prefix={"n": exchange}, payload=memoryview(vector)
    )


@pytest.mark.parametrize("line", [socket_line, lambda: shared_line()[0]])
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


async def test_frames_beyond_the_kernels_buffer_follow_in_order():
    near, far = socket_line()
    here, there = ServedPeer(near), ServedPeer(far, wanted=6)
    await asyncio.sleep(0)
    sizes = [0, LONG, 80, LONG, 0, 8]
    for exchange, nbytes in enumerate(sizes):
        here.peer.send(framed(exchange, nbytes))
    assert not here.peer.is_idle
    await there.complete.wait()
    assert there.frames == list(enumerate(sizes))
    here.peer.close()
    there.peer.close()


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
    near, far = socket_line()
    here = ServedPeer(near)
    await asyncio.sleep(0)
    here.peer.send(framed(1, LONG))
    here.peer.send(framed(2))
    far.close()
    await here.running
    here.peer.send(framed(3))
    assert here.reasons == ["closed"]
    assert near.closed.is_set()


async def test_second_task_on_one_end_is_a_local_protocol_error():
    near, far = socket_line()
    serving = asyncio.create_task(far.serve(fresh, lambda frame: None))
    await asyncio.sleep(0)
    with pytest.raises(LocalProtocolError, match="two tasks receive"):
        await far.receive(fresh)
    assert far.start(framed(1, LONG)) is not None
    with pytest.raises(LocalProtocolError, match="two tasks send"):
        far.start(framed(2))
    near.close()
    with pytest.raises(LinkClosedError):
        await serving


async def test_vectors_in_slots_are_lent_and_returned_without_a_task():
    (near, far), (pool, _) = shared_line()
    assert near.direct is near
    here, there = ServedPeer(near), ServedPeer(far)
    await asyncio.sleep(0)
    frame = in_slot(pool, 1, 2**16)
    place = frame.payload.obj.ctypes.data
    here.peer.send(frame)
    del frame
    await there.complete.wait()
    assert there.frames == [(1, 2**16)]
    assert far.borrowed_bytes == 2**16
    # The return travels with the next frame to that peer, whatever it is.
    there.peer.send(framed(7))
    await here.complete.wait()
    assert pool.take(2**16).ctypes.data == place
    here.peer.close()
    there.peer.close()
