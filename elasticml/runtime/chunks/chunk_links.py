"""Transfers of chunks between members: states first, then bodies, each in one contiguous buffer.

There is one link per pair of members and purpose, and all pairs transfer concurrently. Moves, for
which a round waits, and copies, which are made during rounds, have separate links, so that a move
never waits for a copy.

The first frame of an order lists its chunks and those whose bodies follow, and contains all states;
so a move to a member that holds the bodies is a single frame. Each body follows in its own frame
and is received into its final buffer, as it is stored: a compressed body stays compressed. The
member machine decides which parts of a transfer it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from elasticml.collective.frames import (
    Frame,
    Header,
    Kind,
    check_fits,
    check_payload,
    reading_prefix,
)
from elasticml.collective.transport import Link, LinkClosedError, Transport
from elasticml.control import effects as fx
from elasticml.data.chunks.body import aligned_buffer
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.out_of_core import mapped_memory
from elasticml.data.out_of_core.mapped_memory import FileSlab
from elasticml.data.out_of_core.store import release
from elasticml.errors import DataError, RemoteProtocolError, one_line
from elasticml.ids import ChunkId, MemberId, chunk_id, member_id
from elasticml.protocol.commands import CopyChunks, GiveChunks
from elasticml.protocol.events import Event
from elasticml.runtime.chunks.chunk_store import ChunkStore, ReceiveBuffers
from elasticml.runtime.chunks.state_codec import (
    State,
    decode_states,
    encode_states,
    states_bytes,
)


def prepare_to_send(chunk: Chunk) -> None:
    """Load a chunk's stored bytes before they are sent, and verify them once; may block.

    Raises
    ------
    DataError
        When the body is damaged.
    """
    if chunk.is_mapped:
        mapped_memory.fetch(chunk.stored)
    chunk.load()


def sent(chunk: Chunk) -> None:
    """Release the memory of a body that was fetched for sending."""
    if chunk.out_of_core is not None:
        release([chunk])


def received(id: ChunkId, payload: memoryview, *, is_mapped: bool) -> Chunk:
    """Return the chunk in a received payload, which must not be written to afterwards.

    Parameters
    ----------
    is_mapped : bool
        Whether the payload is in a file.

    Raises
    ------
    DataError
        When the payload is not a body.
    """
    chunk = Chunk.from_body(id, payload)
    chunk.is_mapped = is_mapped
    return chunk


@dataclass(slots=True)
class Delivery:
    """The part of an order that has arrived."""

    order: int
    chunks: tuple[ChunkId, ...]
    began_s: float
    #: Chunks whose bodies have not arrived yet.
    missing: set[ChunkId]
    #: Bytes of each body that is sent.
    sizes: dict[ChunkId, int]
    #: Buffers for these bodies.
    slab: ReceiveBuffers | FileSlab
    states: dict[ChunkId, tuple[State, int]] = field(default_factory=dict)
    bodies: dict[ChunkId, Chunk] = field(default_factory=dict)
    nbytes: int = 0
    #: Stores the bodies; set when the machine commands it.
    storing: Awaitable[None] | None = None


class ChunkTransport:
    """Sends and receives chunks for one member.

    Parameters
    ----------
    me : MemberId
    job : str
    store : ChunkStore
    transport : Transport
    clock : callable
        Seconds, monotonic.
    feed : callable
        Passes events to the member machine.
    key : str
        The job's secret, which opens links to its members.
    """

    def __init__(
        self,
        me: MemberId,
        job: str,
        store: ChunkStore,
        transport: Transport,
        clock: Callable[[], float],
        feed: Callable[[Event], None],
        key: str = "",
    ) -> None:
        self._hello = {"job": job, "key": key, "kind": "chunks", "from": str(me)}
        self._store = store
        self._transport = transport
        self._clock = clock
        self._feed = feed
        self._links: dict[tuple[MemberId, str], Link] = {}
        self._locks: dict[tuple[MemberId, str], asyncio.Lock] = {}
        self._received: list[Link] = []
        self.sent_bytes = 0

    # --- sending -------------------------------------------------------------------------

    async def give(self, order: GiveChunks) -> None:
        """Send the chunks of an order, states first: they arrive even if the rest is lost."""
        send = partial(self._send_move, order)
        await self._send(order, "move", send, fx.GiveSent(order=order.order))

    async def copy(self, command: fx.SendCopy) -> None:
        """Send one body to another holder."""
        order = command.order
        send = partial(self._send_copy, order, command.k)
        await self._send(order, "copy", send, fx.CopySent(order=order.order))

    async def _send(
        self,
        order: GiveChunks | CopyChunks,
        purpose: str,
        send: Callable[[Link], Awaitable[None]],
        done: Event,
    ) -> None:
        """Send on the link for a purpose, which is opened first if necessary; feed the outcome.

        No caller awaits a transfer: without a report of its error the move is awaited for ever.
        """
        key = (order.target, purpose)
        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                link = self._links.get(key)
                if link is None:
                    link = self._links[key] = await self._connect(order)
                await send(link)
        except Exception as error:
            broken = self._links.pop(key, None)
            if broken is not None:
                broken.close()  # the receiver may be in the middle of the order
            reason = f"{type(error).__name__}: {one_line(error)}"
            done = fx.SendFailed(
                target=order.target, chunks=order.chunks, order=order.order, reason=reason
            )
        self._feed(done)

    async def _connect(self, order: GiveChunks | CopyChunks) -> Link:
        hello = {**self._hello, "to": str(order.target)}
        return await self._transport.connect(order.address, hello)

    async def _send_move(self, order: GiveChunks, link: Link) -> None:
        chunks = [self._store.chunks[id] for id in order.chunks]
        sent_ids = set(order.bodies)
        directory, payload = encode_states(chunks)
        prefix = {**_prefix(order.order, chunks, sent_ids), "states": directory}
        await link.send(Frame(kind=Kind.CHUNK, prefix=prefix, payload=payload))
        self.sent_bytes += 0 if payload is None else payload.nbytes
        for chunk in chunks:
            if chunk.id in sent_ids:
                await self._send_body(chunk, link)

    async def _send_copy(self, order: CopyChunks, k: int, link: Link) -> None:
        chunks = [self._store.chunks[id] for id in order.chunks]
        if k == 0:
            prefix = _prefix(order.order, chunks, set(order.chunks))
            await link.send(Frame(kind=Kind.CHUNK, prefix=prefix))
        await self._send_body(chunks[k], link)

    async def _send_body(self, chunk: Chunk, link: Link) -> None:
        """Send a body; a thread reads one that is on disk."""
        if not chunk.is_loaded or chunk.out_of_core is not None:
            await asyncio.to_thread(prepare_to_send, chunk)
        # Without a prefix: bodies have the order of the first frame.
        payload = chunk.stored
        await link.send(Frame(kind=Kind.CHUNK, prefix={}, payload=payload))
        self.sent_bytes += payload.nbytes
        sent(chunk)

    # --- receiving -----------------------------------------------------------------------

    async def receive(self, link: Link) -> None:
        """Receive chunks from another member until the link closes."""
        with reading_prefix("the name of a sender"):
            source = member_id(link.hello["from"])
        self._received.append(link)
        delivery: Delivery | None = None
        try:
            while True:
                delivery = await self._receive_first(link)
                if delivery.states:
                    self._feed(fx.MoveArriving(source=source, order=delivery.order))
                await self._receive_bodies(link, delivery)
                await self._take_in(source, delivery)
                delivery = None
        except LinkClosedError as error:
            # Keep what arrived completely before the sender was lost. It may live, and have sent
            # all before the link broke: then it does not report the rest.
            if delivery is not None:
                await self._take_in(source, delivery)
                rest = tuple(id for id in delivery.chunks if id in delivery.missing)
                lost = replace(_arrival(source, delivery), chunks=rest, states=frozenset())
                self._feed(fx.StoreFailed(arrival=lost, error=error))
        except Exception as error:
            if delivery is not None:
                self._feed(fx.StoreFailed(arrival=_arrival(source, delivery), error=error))
            if delivery is None or isinstance(error, RemoteProtocolError):
                raise
            link.close()

    async def _receive_bodies(self, link: Link, delivery: Delivery) -> None:
        slab = delivery.slab
        for id in [id for id in delivery.chunks if id in delivery.missing]:

            def allocate(header: Header, prefix: Mapping[str, Any], id: ChunkId = id) -> memoryview:
                check_payload(header, Kind.CHUNK, delivery.sizes[id])
                return slab.take(header.payload_bytes)

            frame = await link.receive(allocate)
            if frame.payload is None:
                raise RemoteProtocolError(f"{link.peer} sent no body of chunk {id}")
            chunk = received(id, frame.payload, is_mapped=slab.maps(frame.payload))
            delivery.bodies[id] = chunk
            delivery.missing.discard(id)
            delivery.nbytes += frame.payload.nbytes

    async def _receive_first(self, link: Link) -> Delivery:
        frame = await link.receive(_buffer_for_states)
        prefix = frame.prefix
        with reading_prefix("the list of a transfer"):
            ids = tuple(chunk_id(text) for text in prefix["chunks"])
            missing = [ids[k] for k in prefix["bodies"]]
            sizes = dict(zip(missing, prefix["sizes"], strict=True))
            order = prefix["order"]
            numbers = (order, *sizes.values())
            if not all(type(number) is int and number >= 0 for number in numbers):
                raise ValueError("a size or the order is not a whole number of at least 0")
        check_fits(sum(sizes.values()))
        delivery = Delivery(
            order=order,
            chunks=ids,
            began_s=self._clock(),
            missing=set(missing),
            sizes=sizes,
            slab=await self._slab(link, ids, prefix),
        )
        if "states" in prefix:
            states = decode_states(prefix["states"], frame.payload)
            delivery.states = dict(zip(ids, states, strict=True))
            delivery.nbytes = 0 if frame.payload is None else frame.payload.nbytes
        return delivery

    async def _slab(self, link: Link, ids: Sequence[ChunkId], prefix: Mapping[str, Any]) -> Any:
        """Return buffers for bodies; if there is no room, report that and close the link."""
        try:
            return await self._store.slab(prefix["sizes"])
        except DataError as error:
            refused = fx.ChunksArrived(
                source=member_id(link.hello["from"]),
                order=prefix["order"],
                chunks=tuple(ids),
                states=frozenset(ids if "states" in prefix else ()),
            )
            self._feed(fx.StoreFailed(arrival=refused, error=error))
            link.close()
            raise LinkClosedError(f"no room for bodies: {error.message}") from None

    async def _take_in(self, source: MemberId, delivery: Delivery) -> None:
        """Report what has arrived completely, and wait until it is stored."""
        self._feed(_arrival(source, delivery))
        if delivery.storing is not None:
            await delivery.storing

    def store(self, command: fx.StoreChunks) -> None:
        """Store the bodies that have arrived."""
        delivery = command.arrival.content
        assert isinstance(delivery, Delivery)
        delivery.storing = self._keep(command.arrival, delivery)

    async def _keep(self, arrival: fx.ChunksArrived, delivery: Delivery) -> None:
        try:
            await self._store.take(list(delivery.bodies.values()))
        except Exception as error:
            self._feed(fx.StoreFailed(arrival=arrival, error=error))
            return
        seconds = round(self._clock() - delivery.began_s, 6)
        self._feed(fx.ChunksStored(arrival=replace(arrival, seconds=seconds)))

    def set_states(self, command: fx.SetStates) -> None:
        """Set the states that have arrived."""
        delivery = command.arrival.content
        assert isinstance(delivery, Delivery)
        for id in command.chunks:
            self._store.set_state(id, *delivery.states[id])

    def close(self) -> None:
        """Close all links."""
        for link in [*self._links.values(), *self._received]:
            link.close()


def _arrival(source: MemberId, delivery: Delivery) -> fx.ChunksArrived:
    return fx.ChunksArrived(
        source=source,
        order=delivery.order,
        chunks=delivery.chunks,
        missing=frozenset(delivery.missing),
        states=frozenset(delivery.states),
        nbytes=delivery.nbytes,
        content=delivery,
    )


def _buffer_for_states(header: Header, prefix: Mapping[str, Any]) -> memoryview:
    """Return a buffer for the states that a first frame's prefix describes."""
    check_payload(header, Kind.CHUNK, states_bytes(prefix.get("states")))
    return aligned_buffer(header.payload_bytes)


def _prefix(order: int, chunks: Sequence[Chunk], sent_ids: Set[ChunkId]) -> dict[str, Any]:
    """Return an order's chunk ids, and the indices and sizes of the bodies that follow."""
    indices = [k for k, chunk in enumerate(chunks) if chunk.id in sent_ids]
    return {
        "order": order,
        "chunks": [str(chunk.id) for chunk in chunks],
        "bodies": indices,
        "sizes": [chunks[k].nbytes for k in indices],
    }
