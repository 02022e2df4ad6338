"""Parts of the in-process network: frames in flight, channels, gates, and the ends of a link."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from elasticml.collective.frames import HEADER_BYTES, Frame, Header, Kind, decode, unpack
from elasticml.collective.transport import Allocate, LinkClosedError, payload_buffer
from elasticml.errors import LocalProtocolError

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
    is_due: bool = True

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


class Network(Protocol):
    """The part of the network that its links use."""

    def post(self, channel: Channel, parcel: Parcel) -> None:
        """Accept a frame from its sender."""
        ...

    def poke(self) -> None:
        """Schedule the next delivery."""
        ...

    def cut(self, link: MemoryLink) -> None:
        """Close a link from one end."""
        ...


class MemoryLink:
    """One end of a link; see ``transport.Link``."""

    def __init__(
        self,
        network: Network,
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
        self._network.post(channel, parcel)
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
