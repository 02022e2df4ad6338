"""An in-process network for tests: ordered links, gates, kills, pauses, one seed.

There is no time here: that is in ``elasticml.sim``. A frame is delivered when a task waits for it.
The seed decides which link delivers next, so the same seed gives the same interleaving and another
seed a different one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.collective.frames import HEADER_BYTES, Frame, Header, Kind, decode, unpack
from elasticml.collective.shared_memory import SlotPool
from elasticml.collective.shared_memory_link import SharedLink
from elasticml.collective.transport import (
    Allocate,
    Link,
    LinkClosedError,
    OnLink,
    payload_buffer,
)
from elasticml.errors import LocalProtocolError

# Parts of the in-process network: frames in flight, channels, gates, and the ends of a link.

#: Frames in flight in one direction of a link before ``send`` blocks.
IN_FLIGHT_MAX: Final = 64

#: Whether a gate matches a frame, by its header and prefix.
Where = Callable[[Header, Mapping[str, Any]], bool]


@dataclass(slots=True, eq=False)
class Parcel:
    """A frame in flight; a copy, so that the sender may reuse the payload."""

    header: Header
    prefix: bytes
    payload: bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the whole frame."""
        return HEADER_BYTES + len(self.prefix) + len(self.payload)


@dataclass(slots=True, eq=False)
class Channel:
    """One direction of a link."""

    source: str
    target: str
    parcels: deque[Parcel] = field(default_factory=deque)
    #: The futures on which the receiving and the sending task wait.
    receiver: asyncio.Future[Parcel] | None = None
    sender: asyncio.Future[None] | None = None
    #: Closed for sending; frames in flight may still arrive.
    is_cut: bool = False

    def cut(self, n_kept: int) -> int:
        """Close the channel and drop all but its first frames; return the number dropped."""
        self.is_cut = True
        n_dropped = len(self.parcels) - n_kept
        for _ in range(n_dropped):
            self.parcels.pop()
        self.wake_sender()
        return n_dropped

    def wake_sender(self) -> None:
        """Wake the sender to check for room again."""
        if self.sender is not None and not self.sender.done():
            self.sender.set_result(None)

    def fail_receiver(self) -> None:
        """Raise LinkClosedError in the receiver."""
        if self.receiver is not None and not self.receiver.done():
            self.receiver.set_exception(LinkClosedError(f"{self.source} closed the link"))


class Gate:
    """Holds back matching frames at the end of their link until ``release`` is called."""

    def __init__(
        self, matches: Callable[[Channel, Parcel], bool], poke: Callable[[], None]
    ) -> None:
        #: Set when the first frame reaches the gate.
        self.reached = asyncio.Event()
        self.is_released = False
        self._matches = matches
        self._poke = poke

    def release(self) -> None:
        """Let the waiting frames and all later ones pass."""
        self.is_released = True
        self._poke()

    def stops(self, channel: Channel, parcel: Parcel) -> bool:
        """Whether the gate holds this frame back."""
        return not self.is_released and self._matches(channel, parcel)


def matching(
    kind: Kind | None,
    exchange: int | None,
    source: str | None,
    target: str | None,
    where: Where | None,
) -> Callable[[Channel, Parcel], bool]:
    """Return the predicate of a gate: all given criteria must match."""

    def matches(channel: Channel, parcel: Parcel) -> bool:
        header = parcel.header
        return (
            (kind is None or header.kind is kind)
            and (exchange is None or header.exchange == exchange)
            and (source is None or channel.source == source)
            and (target is None or channel.target == target)
            and (where is None or where(header, decode(header, parcel.prefix, None).prefix))
        )

    return matches


class MemoryLink:
    """One end of a link; see ``transport.Link``."""

    def __init__(
        self,
        network: FaultyNetwork,
        outward: Channel,
        inward: Channel,
        hello: Mapping[str, Any],
        piece_bytes: int | None = None,
    ) -> None:
        self.hello = hello
        self.peer = outward.target
        self.piece_bytes = piece_bytes
        self.sent_bytes = 0
        self.received_bytes = 0
        self.is_closed = False
        self.outward = outward
        self.inward = inward
        #: The other end; the network sets it once after creating both.
        self.far = self
        self._network = network

    @property
    def direct(self) -> None:
        """None: sending and receiving need tasks here; see ``transport.Link``."""
        return None

    @property
    def unsent_bytes(self) -> int:
        """Bytes in flight."""
        return sum(parcel.nbytes for parcel in self.outward.parcels)

    async def send(self, frame: Frame) -> None:
        """Send a copy of the frame; blocks while ``IN_FLIGHT_MAX`` frames are in flight.

        Raises
        ------
        LinkClosedError
            When either end is closed.
        LocalProtocolError
            When another task is sending.
        """
        head, payload = frame.encode()
        body = b"" if payload is None else bytes(payload)
        parcel = Parcel(unpack(head[:HEADER_BYTES]), head[HEADER_BYTES:], body)
        channel = self.outward
        if channel.sender is not None:
            raise LocalProtocolError(f"two tasks send on the link to {self.peer}, wanted one")
        while not channel.is_cut and len(channel.parcels) >= IN_FLIGHT_MAX:
            channel.sender = asyncio.get_running_loop().create_future()
            try:
                await channel.sender
            finally:
                channel.sender = None
        if channel.is_cut:
            raise LinkClosedError(f"the link to {self.peer} is closed")
        channel.parcels.append(parcel)
        self._network.poke()
        self.sent_bytes += parcel.nbytes

    async def receive(self, allocate: Allocate) -> Frame:
        """Wait for the next frame and copy its payload into the buffer from ``allocate``.

        Raises
        ------
        LinkClosedError
            When this end is closed, or the other one is and no frame is left.
        LocalProtocolError
            When another task is receiving, or ``allocate`` returned a wrong buffer.
        """
        channel = self.inward
        if channel.receiver is not None:
            raise LocalProtocolError(f"two tasks receive on the link to {self.peer}, wanted one")
        if self.is_closed:
            raise LinkClosedError(f"the link to {self.peer} is closed")
        channel.receiver = asyncio.get_running_loop().create_future()
        self._network.poke()
        try:
            parcel = await channel.receiver
        finally:
            channel.receiver = None
        # The end may have been closed between the frame's arrival and this line.
        if self.is_closed:
            raise LinkClosedError(f"the link to {self.peer} is closed")
        frame = decode(parcel.header, parcel.prefix, None)
        buffer = payload_buffer(allocate, parcel.header, frame.prefix)
        if buffer is not None:
            buffer[:] = parcel.payload
        frame.payload = buffer
        self.received_bytes += parcel.nbytes
        return frame

    def close(self) -> None:
        """Close both ends; a random part of the frames from this end may still arrive."""
        if not self.is_closed:
            self._network.cut(self)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A delivered frame, for comparisons in tests."""

    source: str
    target: str
    kind: Kind
    exchange: int
    piece: int


@dataclass(slots=True, eq=False)
class _Opening:
    """A pending request to open a link."""

    source: str
    target: str
    hello: dict[str, Any]
    opened: asyncio.Future[Link]


class MemoryTransport:
    """One endpoint of the network; see ``transport.Transport``."""

    def __init__(self, network: FaultyNetwork, address: str, pool: SlotPool | None = None) -> None:
        self.address = address
        self.on_link: OnLink | None = None
        #: The slots of this endpoint, on a network whose links share memory.
        self.pool = pool
        self._network = network

    async def connect(self, address: str, hello: Mapping[str, Any]) -> Link:
        """Open a link to ``address``.

        Raises
        ------
        LinkClosedError
            When either endpoint is gone, or the peer does not listen.
        """
        return await self._network.open(self, address, hello)

    def listen(self, on_link: OnLink) -> None:
        """Pass every link that a peer opens from now on to ``on_link``."""
        self.on_link = on_link

    def lendable(self, nbytes: int) -> NDArray[np.float64] | None:
        """Return an array in shared memory; None on a network without it."""
        return None if self.pool is None else self.pool.take(nbytes)

    def close(self) -> None:
        """Stop listening, close all links and free the address."""
        self._network.leave(self)


class FaultyNetwork:
    """Links between named endpoints in one process, with fault injection.

    Parameters
    ----------
    seed : int
        Decides which link delivers next, and how many frames of a killed peer still arrive.
    shared : bool
        Pass vectors of any length in shared memory, as between processes of one host: the links are
        ``SharedLink``s, and each endpoint has its own slots.
    piece_bytes : int, optional
        Split vectors of at least twice this length into pieces, as between hosts.
    """

    def __init__(
        self, seed: int = 0, *, shared: bool = False, piece_bytes: int | None = None
    ) -> None:
        #: Every frame that arrived, in order.
        self.deliveries: list[Delivery] = []
        #: Frames lost because of a kill or a close.
        self.n_dropped = 0
        self._rng = np.random.default_rng(seed)
        self._is_shared = shared
        self._piece_bytes = piece_bytes
        self._endpoints: dict[str, MemoryTransport] = {}
        #: Both ends of each link, until both are closed.
        self._ends: list[MemoryLink] = []
        self._openings: list[_Opening] = []
        self._gates: list[Gate] = []
        self._paused: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_poked = False

    def endpoint(self, address: str) -> MemoryTransport:
        """Return the endpoint at ``address``; after a kill, a new one."""
        if address not in self._endpoints:
            pool = SlotPool(bytes_min=8) if self._is_shared else None
            self._endpoints[address] = MemoryTransport(self, address, pool)
        return self._endpoints[address]

    def gate(
        self,
        *,
        kind: Kind | None = None,
        exchange: int | None = None,
        source: str | None = None,
        target: str | None = None,
        where: Where | None = None,
    ) -> Gate:
        """Hold back the frames that match all given criteria, and those behind them on the link."""
        gate = Gate(matching(kind, exchange, source, target, where), self.poke)
        self._gates.append(gate)
        return gate

    def kill(self, address: str) -> None:
        """Remove an endpoint, as ``kill -9`` does.

        Its links close at both ends at once. A random number of the frames that it had sent still
        arrive, in order, before the peer's ``receive`` raises, but none that a gate holds back.
        """
        self._paused.discard(address)
        if address in self._endpoints:
            self.leave(self._endpoints[address])

    def pause(self, address: str) -> None:
        """Stop an endpoint, as SIGSTOP does: its frames stand still, its links remain open."""
        self._paused.add(address)

    def resume(self, address: str) -> None:
        """Continue a paused endpoint."""
        self._paused.discard(address)
        self.poke()

    # The methods below are for links and transports, not for tests.

    def leave(self, transport: MemoryTransport) -> None:
        """Remove an endpoint and close its links."""
        address = transport.address
        if self._endpoints.get(address) is not transport:
            return
        del self._endpoints[address]
        for link in [end for end in self._ends if end.outward.source == address]:
            link.close()
        for opening in [o for o in self._openings if address in (o.source, o.target)]:
            self._refuse(opening, f"{address} is gone")
        if transport.pool is not None:
            transport.pool.close()

    def cut(self, link: MemoryLink) -> None:
        """Close a link from one end; frames from the other end are lost."""
        link.is_closed = True
        self.n_dropped += link.inward.cut(n_kept=0)
        link.inward.fail_receiver()
        if not link.outward.is_cut:
            n_free = 0
            for parcel in link.outward.parcels:
                if self._gates_holding(link.outward, parcel):
                    break
                n_free += 1
            self.n_dropped += link.outward.cut(n_kept=int(self._rng.integers(n_free + 1)))
        self.poke()

    async def open(self, source: MemoryTransport, address: str, hello: Mapping[str, Any]) -> Link:
        """Request a link and wait for the answer; raises as ``MemoryTransport.connect``."""
        if self._endpoints.get(source.address) is not source:
            raise LinkClosedError(f"{source.address} is gone")
        if address not in self._endpoints:
            raise LinkClosedError(f"no endpoint at {address}")
        opened: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        # Restrict the greeting to JSON types, as on a real link.
        copied: dict[str, Any] = json.loads(json.dumps(dict(hello)))
        opening = _Opening(source.address, address, copied, opened)
        self._openings.append(opening)
        self.poke()
        return await opened

    def poke(self) -> None:
        """Schedule the next delivery."""
        if not self._is_poked:
            self._is_poked = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        """Deliver one frame, new link or loss, drawn from all that are ready."""
        self._is_poked = False
        self._ends = [end for end in self._ends if not (end.is_closed and end.far.is_closed)]
        ready: list[Channel | _Opening] = [
            end.outward for end in self._ends if self._is_ready(end.outward)
        ]
        ready += [o for o in self._openings if not self._paused & {o.source, o.target}]
        if not ready:
            return
        chosen = ready[int(self._rng.integers(len(ready)))]
        if isinstance(chosen, _Opening):
            self._establish(chosen)
        else:
            self._deliver(chosen)
        self.poke()

    def _is_ready(self, channel: Channel) -> bool:
        if self._paused & {channel.source, channel.target}:
            return False
        is_awaited = channel.receiver is not None and not channel.receiver.done()
        if not channel.parcels:
            return channel.is_cut and is_awaited
        gates = self._gates_holding(channel, channel.parcels[0])
        for gate in gates:
            gate.reached.set()
        return is_awaited and not gates

    def _gates_holding(self, channel: Channel, parcel: Parcel) -> list[Gate]:
        return [gate for gate in self._gates if gate.stops(channel, parcel)]

    def _deliver(self, channel: Channel) -> None:
        """Deliver the next frame to the receiver, or the end of the channel."""
        if not channel.parcels:
            channel.fail_receiver()
            return
        parcel = channel.parcels.popleft()
        assert channel.receiver is not None
        channel.receiver.set_result(parcel)
        channel.wake_sender()
        self.deliveries.append(
            Delivery(
                source=channel.source,
                target=channel.target,
                kind=parcel.header.kind,
                exchange=parcel.header.exchange,
                piece=parcel.header.piece,
            )
        )

    def _establish(self, opening: _Opening) -> None:
        listener = self._endpoints[opening.target].on_link
        if listener is None:
            self._refuse(opening, f"no listener at {opening.target}")
            return
        self._openings.remove(opening)
        there = Channel(opening.source, opening.target)
        back = Channel(opening.target, opening.source)
        near = MemoryLink(self, there, back, opening.hello, self._piece_bytes)
        far = MemoryLink(self, back, there, opening.hello, self._piece_bytes)
        near.far, far.far = far, near
        self._ends += [near, far]
        opener, acceptor = (self._with_sharing(end, end.outward.source) for end in (near, far))
        task = asyncio.get_running_loop().create_task(_serve(listener, acceptor))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if opening.opened.done():
            # The opener has given up; the listener sees a link that closes at once.
            near.close()
        else:
            opening.opened.set_result(opener)

    def _with_sharing(self, link: MemoryLink, address: str) -> Link:
        """Wrap one end of a link in a SharedLink, if the network shares memory."""
        pool = self._endpoints[address].pool
        return link if pool is None else SharedLink(link, pool)

    def _refuse(self, opening: _Opening, reason: str) -> None:
        if opening in self._openings:
            self._openings.remove(opening)
            if not opening.opened.done():
                opening.opened.set_exception(LinkClosedError(reason))


async def _serve(on_link: OnLink, link: Link) -> None:
    """Pass a link to the listener, and close it if the listener raises."""
    try:
        await on_link(link)
    except Exception:
        logger.exception("the listener for the link from %s failed", link.peer)
        link.close()
