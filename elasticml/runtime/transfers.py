"""Chunks from member to member: one link per pair, one contiguous buffer per chunk, no pickle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from elasticml.collective.frames import Frame, Header, Kind
from elasticml.collective.transport import Link, LinkClosedError, Transport
from elasticml.control import events as ev
from elasticml.control.commands import GiveChunks
from elasticml.data.chunk import Chunk
from elasticml.runtime.chunk_store import ChunkStore
from elasticml.terms import ChunkId, MemberId, chunk_id, member_id


def aligned(nbytes: int) -> memoryview:
    """Allocate a buffer whose first byte lies on a 64-byte line, as chunk bodies want it."""
    raw = np.empty(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes].data


def allocate_aligned(header: Header, prefix: Mapping[str, Any]) -> memoryview:
    """Allocate the buffer of a received chunk."""
    return aligned(header.payload_bytes)


class Transfers:
    """Sends and receives chunks for one member."""

    def __init__(
        self,
        me: MemberId,
        job: str,
        store: ChunkStore,
        transport: Transport,
        clock: Callable[[], float],
        report: Callable[[ev.Event], None],
    ) -> None:
        self._me = me
        self._job = job
        self._store = store
        self._transport = transport
        self._clock = clock
        self._report = report
        self._links: dict[MemberId, Link] = {}
        self._locks: dict[MemberId, asyncio.Lock] = {}
        self._received: list[Link] = []
        self.sent_bytes = 0

    async def give(self, order: GiveChunks) -> None:
        """Send the chunks of an order: state first, so that it is safe when the rest is not."""
        lock = self._locks.setdefault(order.target, asyncio.Lock())
        try:
            async with lock:
                link = await self._link(order)
                for id in order.chunks:
                    chunk = self._store.chunks[id]
                    state = chunk.encode_state() if chunk.state else None
                    prefix = {"chunk": str(id), "part": "state"}
                    if state is not None:
                        await link.send(Frame(kind=Kind.CHUNK, prefix=prefix, payload=state))
                for id in order.chunks:
                    chunk = self._store.chunks[id]
                    prefix = {"chunk": str(id), "part": "body"}
                    await link.send(Frame(kind=Kind.CHUNK, prefix=prefix, payload=chunk.body))
                done = {"type": "Batch", "chunks": [str(id) for id in order.chunks]}
                await link.send(Frame(kind=Kind.CONTROL, prefix=done))
            self._store.given.update(order.chunks)
            self.sent_bytes += sum(self._store.chunks[id].nbytes for id in order.chunks)
        except (LinkClosedError, KeyError) as error:
            self._links.pop(order.target, None)
            self._report(
                ev.MoveFailed(
                    member=self._me,
                    target=order.target,
                    chunks=order.chunks,
                    reason=f"{type(error).__name__}: {error}",
                )
            )

    async def _link(self, order: GiveChunks) -> Link:
        link = self._links.get(order.target)
        if link is None:
            hello = {
                "job": self._job,
                "kind": "chunks",
                "from": str(self._me),
                "to": str(order.target),
            }
            link = await self._transport.connect(order.address, hello)
            self._links[order.target] = link
        return link

    async def receive(self, link: Link) -> None:
        """Take in what another member sends until the link closes; each batch is reported."""
        source = member_id(link.hello["from"])
        self._received.append(link)
        bodies: dict[ChunkId, Chunk] = {}
        states: dict[ChunkId, memoryview] = {}
        nbytes, began_s = 0, self._clock()
        try:
            while True:
                frame = await link.receive(allocate_aligned)
                if frame.kind == Kind.CHUNK:
                    id = chunk_id(frame.prefix["chunk"])
                    assert frame.payload is not None
                    if not bodies and not states:
                        began_s = self._clock()
                    if frame.prefix["part"] == "state":
                        states[id] = frame.payload
                        continue
                    bodies[id] = Chunk.from_body(id, frame.payload)
                    nbytes += frame.payload.nbytes
                    continue
                self._take_in(source, bodies, states, nbytes, self._clock() - began_s)
                bodies, states, nbytes = {}, {}, 0
        except LinkClosedError:
            # What came whole before the sender went is worth having.
            if bodies:
                self._take_in(source, bodies, states, nbytes, self._clock() - began_s)

    def _take_in(
        self,
        source: MemberId,
        bodies: dict[ChunkId, Chunk],
        states: dict[ChunkId, memoryview],
        nbytes: int,
        seconds: float,
    ) -> None:
        for id, state in states.items():
            if id in bodies:
                bodies[id].decode_state(state)
        self._store.put(bodies.values())
        self._store.given.difference_update(bodies)
        self._report(
            ev.ChunksLoaded(
                member=self._me,
                chunks=tuple(bodies),
                source=source,
                nbytes=nbytes,
                seconds=round(seconds, 6),
            )
        )

    def close(self) -> None:
        """Close all links."""
        for link in [*self._links.values(), *self._received]:
            link.close()
