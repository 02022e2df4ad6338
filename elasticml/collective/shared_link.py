"""A link between processes of one host: frames through another link, vectors left where they lie.

The sender writes a vector into a slot once (``shared_slots.py``) and sends where it is, to as many
peers as it likes; the receiver looks at it in place. A frame that says so is sent after the vector
is whole, over an ordered link: a process killed while it writes has announced nothing. Life,
exchange, sequence and length are compared all the same, so that a slot which holds anything else is
an error.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import struct
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.collective.frames import Frame, Header, Kind
from elasticml.collective.shared_slots import POOL_BYTES_MAX, Lease, SlotPool
from elasticml.collective.slot_descriptors import (
    DESCRIPTOR_BYTES,
    HEAD_BYTES,
    WHOSE,
    Descriptor,
    NoSharedMemoryError,
    check_offer,
    content_of,
    fault_of,
    map_slot,
    unpack_descriptor,
)
from elasticml.collective.transport import Allocate, Link, LinkClosedError
from elasticml.errors import RemoteProtocolError

logger = logging.getLogger(__name__)

#: Vectors lent over one link at a time; what is sent beyond that travels through the link.
LOANS_MAX: Final = 16
#: Slots that stay mapped, and their bytes: more than a process has at a time. What is used longest
#: ago goes first, as its owner may have shut it: it is the mapping here that keeps its memory then.
MAPS_MAX: Final = 32
MAPS_BYTES_MAX: Final = POOL_BYTES_MAX
#: In a loan's number when it is given back: a reader further on went without a word.
SPOILT_BIT: Final = 1 << 63
_NUMBER: Final = struct.Struct("<Q")
#: A descriptor and the loan's number.
_PLACE_BYTES: Final = DESCRIPTOR_BYTES + _NUMBER.size


@dataclass(slots=True, eq=False)
class Loan:
    """The lease of an array that lies in a slot of another process."""

    descriptor: bytes
    exchange: int
    number: int
    #: The link over which it was lent.
    link: SharedLink
    is_spoilt: bool = False

    def describe(self, exchange: int) -> bytes | None:
        """See ``Lease``: the next reader opens the owner's slot.

        The owner whose link is closed has shut it perhaps; then a copy travels.
        """
        can_be_opened = self.link.is_open and exchange == self.exchange
        return self.descriptor if can_be_opened else None

    def spoil(self) -> None:
        """See ``Lease``."""
        self.is_spoilt = True

    def dropped(self) -> None:
        """See ``Lease``: the loan is given back with the next frame."""
        self.link.returned.append(self.number | SPOILT_BIT if self.is_spoilt else self.number)


class SharedLink:
    """Frames over another link, payloads in shared memory where they lie in slots.

    See ``transport.Link``. A payload that ``receive`` returns may be read-only and lie in another
    process's memory instead of the buffer that ``allocate`` would have given; it is given back when
    its last view is dropped.

    Parameters
    ----------
    inner : Link
        An ordered link to a process whose slots can be opened here, and the other way round.
    pool : SlotPool
        The slots of this process.
    offer : mapping, optional
        What the peer said of its memory when the link was opened (``SlotPool.offer``).
    """

    def __init__(self, inner: Link, pool: SlotPool, offer: Mapping[str, Any] | None = None) -> None:
        self.hello = inner.hello
        self.peer = inner.peer
        #: On one host nothing is cut.
        self.piece_bytes: int | None = None
        #: Bytes that were lent, and those that were borrowed.
        self.lent_bytes = 0
        self.borrowed_bytes = 0
        self._inner: Any = inner
        self._pool = pool
        self._offer = offer
        self._n_lent = 0
        #: What the peer has of us, by number: an array that is held here is not written to again.
        self._lent: dict[int, tuple[object, Lease]] = {}
        #: Numbers of loans whose last view here is gone; filled from any thread.
        self.returned: deque[int] = deque()
        #: This end has not been closed.
        self.is_open = True
        self._maps: dict[bytes, mmap.mmap] = {}
        self._allocate: Allocate | None = None
        pool.link_opened()

    @property
    def direct(self) -> SharedLink | None:
        """See ``transport.Link``: as the link below."""
        return self if self._inner.direct is not None else None

    @property
    def sent_bytes(self) -> int:
        """Bytes of the frames sent, those of vectors in shared memory included."""
        return int(self._inner.sent_bytes) + self.lent_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the link below has not sent; what is lent need not travel."""
        return int(self._inner.unsent_bytes)

    @property
    def received_bytes(self) -> int:
        """Bytes of the frames received, those of vectors in shared memory included."""
        return int(self._inner.received_bytes) + self.borrowed_bytes

    @property
    def closed(self) -> asyncio.Event:
        """Set when the link is closed, from whichever end."""
        event: asyncio.Event = self._inner.closed
        return event

    async def send(self, frame: Frame) -> None:
        """Send a frame; a payload in a slot is lent, and must not be written to any more.

        Raises
        ------
        LinkClosedError
            When the peer is gone or the link is closed.
        """
        try:
            for told in self._told(frame):
                await self._inner.send(told)
        except LinkClosedError:
            self.close()
            raise

    def start(self, frame: Frame) -> asyncio.Future[None] | None:
        """Begin to send a frame; see ``transport.Direct`` and ``send``."""
        told = self._told(frame)
        try:
            for k, one in enumerate(told):
                rest: asyncio.Future[None] | None = self._inner.direct.start(one)
                if rest is not None:
                    return rest if k + 1 == len(told) else self._after(rest, told[k + 1])
        except LinkClosedError:
            self.close()
            raise
        return None

    def _after(self, rest: asyncio.Future[None], frame: Frame) -> asyncio.Future[None]:
        """Send a frame when the link below has room for it."""

        async def send() -> None:
            await rest
            await self._inner.send(frame)

        sending = asyncio.ensure_future(send())
        # Nobody need wait for it where the link closes.
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        return sending

    def _told(self, frame: Frame) -> list[Frame]:
        """Write down what goes through the link below in place of a frame."""
        lease = self._pool.lease_of(frame.payload)
        place = None
        if lease is not None and len(self._lent) < LOANS_MAX:
            place = lease.describe(frame.exchange)
        back = self._numbers_to_return() if self.returned else b""
        if place is None or lease is None or frame.payload is None:
            if not back:
                return [frame]
            note = Frame(kind=Kind.RETURN, prefix={}, payload=memoryview(back), shared=True)
            return [note, frame]
        self._n_lent += 1
        self._lent[self._n_lent] = (frame.payload.obj, lease)
        raw = place + _NUMBER.pack(self._n_lent) + back
        self.lent_bytes += frame.payload.nbytes
        # A copy but for the payload; ``dataclasses.replace`` takes eight times as long.
        announced = Frame(
            kind=frame.kind,
            exchange=frame.exchange,
            attempt=frame.attempt,
            piece=frame.piece,
            prefix=frame.prefix,
            payload=memoryview(raw),
            shared=True,
        )
        return [announced]

    def _numbers_to_return(self) -> bytes:
        numbers = [self.returned.popleft() for _ in range(len(self.returned))]
        return b"".join(map(_NUMBER.pack, numbers))

    async def receive(self, allocate: Allocate) -> Frame:
        """Wait for the next frame; its payload lies in a buffer from ``allocate``, or in a slot.

        Raises
        ------
        LinkClosedError
            When the peer is gone, its memory with it, or the link is closed.
        RemoteProtocolError
            When what arrives is no frame of ours, or the slot holds something else.
        """
        self._allocate = allocate
        try:
            while True:
                frame: Frame = await self._inner.receive(self._buffer)
                if not frame.shared:
                    return frame
                lent = self._open(frame)
                if lent is not None:
                    return lent
        except (LinkClosedError, RemoteProtocolError):
            self.close()
            raise

    async def serve(self, allocate: Allocate, on_frame: Callable[[Frame], None]) -> None:
        """Hand over every frame as it comes; see ``transport.Direct`` and ``receive``."""
        self._allocate = allocate

        def on_told(frame: Frame) -> None:
            lent = self._open(frame) if frame.shared else frame
            if lent is not None:
                on_frame(lent)

        try:
            await self._inner.direct.serve(self._buffer, on_told)
        except (LinkClosedError, RemoteProtocolError):
            self.close()
            raise

    def _buffer(self, header: Header, prefix: Mapping[str, Any]) -> memoryview:
        assert self._allocate is not None
        if header.shared:
            return memoryview(bytearray(header.payload_bytes))
        return self._allocate(header, prefix)

    def _open(self, frame: Frame) -> Frame | None:
        """Take back what is given back; look at what is lent. None where nothing is."""
        raw = b"" if frame.payload is None else bytes(frame.payload)
        n_place = 0 if frame.kind is Kind.RETURN else _PLACE_BYTES
        if len(raw) < n_place or (len(raw) - n_place) % _NUMBER.size:
            raise RemoteProtocolError(
                f"{self.peer} lends with {len(raw)} bytes, wanted {n_place} and any number of "
                f"{_NUMBER.size}"
            )
        for start in range(n_place, len(raw), _NUMBER.size):
            self._take_back(*_NUMBER.unpack_from(raw, start))
        if n_place == 0:
            return None
        place = raw[:DESCRIPTOR_BYTES]
        (number,) = _NUMBER.unpack_from(raw, DESCRIPTOR_BYTES)
        exchange, nbytes = content_of(place)
        if exchange != frame.exchange or nbytes % 8:
            raise RemoteProtocolError(
                f"{self.peer} lends {unpack_descriptor(place)} in a frame of {frame.exchange}"
            )
        array = self._look(place, nbytes)
        self._pool.enter(array, Loan(place, exchange, number, self))
        self.borrowed_bytes += nbytes
        frame.payload, frame.shared = array.data.cast("B"), False
        return frame

    def _take_back(self, number: int) -> None:
        array_and_lease = self._lent.pop(number & ~SPOILT_BIT, None)
        if array_and_lease is None:
            raise RemoteProtocolError(
                f"{self.peer} gives back loan {number & ~SPOILT_BIT}, and has {sorted(self._lent)}"
            )
        if number & SPOILT_BIT:
            array_and_lease[1].spoil()

    def _look(self, place: bytes, nbytes: int) -> NDArray[np.float64]:
        memory = self._maps.pop(place[WHOSE], None)
        if memory is None:
            memory = self._map(place)
        self._maps[place[WHOSE]] = memory  # behind all that were used longer ago
        fault_found = fault_of(memory, place)
        if fault_found is not None:
            raise RemoteProtocolError(f"{self.peer} announced a vector, and there is {fault_found}")
        return np.frombuffer(memory, np.float64, nbytes // 8, HEAD_BYTES)

    def _map(self, place: bytes) -> mmap.mmap:
        """Map a slot that was not looked at lately, in place of others where there are too many."""
        owner = unpack_descriptor(place)
        try:
            memory = map_slot(owner.pid, owner.fd)
            if memory[WHOSE] != place[WHOSE]:
                # The owner has shut the slot, and its descriptor is another file's by now.
                gone = f"slot {owner.slot} of process {owner.pid} is shut"
                raise NoSharedMemoryError(gone, is_gone=True)
        except NoSharedMemoryError as fault:
            raise self._unreadable(owner, fault) from None
        n_bytes = len(memory) + sum(map(len, self._maps.values()))
        while self._maps and (len(self._maps) >= MAPS_MAX or n_bytes > MAPS_BYTES_MAX):
            n_bytes -= len(self._maps.pop(next(iter(self._maps))))
        return memory

    def _unreadable(self, owner: Descriptor, fault: NoSharedMemoryError) -> LinkClosedError:
        """Say that the link ends; where memory cannot be shared, links to come are plain ones."""
        if not fault.is_gone and not (fault.is_other and self._is_readable(owner)):
            logger.warning("a vector of %s cannot be read; sharing ends: %s", self.peer, fault)
            self._pool.stop(str(fault))
        return LinkClosedError(f"the link to {self.peer} is closed: {fault}")

    def _is_readable(self, owner: Descriptor) -> bool:
        """Whether the owner of a slot is the peer, and its memory can be read as before."""
        if self._offer is None or owner.life.hex() != self._offer["life"]:
            return False
        try:
            check_offer(self._offer)
        except NoSharedMemoryError:
            return False
        return True

    def close(self) -> None:
        """Close at once; what the peer has of us is never written to again."""
        self._inner.close()
        for _, lease in self._lent.values():
            lease.spoil()
        self._lent.clear()
        self._maps.clear()
        if self.is_open:
            self.is_open = False
            self._pool.link_closed()
