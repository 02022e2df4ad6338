"""A link between processes of one host: frames over another link, vectors in shared memory.

The sender writes a vector once into a slot (:mod:`~elasticml.collective.shared_memory`) and sends
the slot's descriptor to any number of peers, which read the vector in place. The descriptor is sent
over an ordered link after the vector is complete, so a process killed while writing has announced
nothing. Life, exchange, sequence and length are compared all the same: a slot with any other
content is an error.
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
from elasticml.collective.shared_memory import (
    DESCRIPTOR_BYTES,
    HEAD_BYTES,
    POOL_BYTES_MAX,
    WHOSE,
    Descriptor,
    Lease,
    NoSharedMemoryError,
    SlotPool,
    check_offer,
    content_of,
    map_slot,
    slot_mismatch,
    unpack_descriptor,
)
from elasticml.collective.transport import Allocate, Link, LinkClosedError
from elasticml.errors import RemoteProtocolError

logger = logging.getLogger(__name__)

#: Vectors lent over one link at a time; further ones are sent through the link.
LOANS_MAX: Final = 16
#: Limits of the slots kept mapped, and of their bytes; a peer has no more at a time. The least
#: recently used mapping goes first: its owner may have closed the slot, whose memory is then held
#: only by the mapping.
MAPS_MAX: Final = 32
MAPS_BYTES_MAX: Final = POOL_BYTES_MAX
#: Flag in a returned loan's number: a later reader disconnected without returning it.
SPOILT_BIT: Final = 1 << 63
_NUMBER: Final = struct.Struct("<Q")
#: A descriptor and the loan's number.
_LOAN_BYTES: Final = DESCRIPTOR_BYTES + _NUMBER.size
#: Longest frame with a loan and returned ones.
LOAN_FRAME_BYTES_MAX: Final = _LOAN_BYTES + LOANS_MAX * _NUMBER.size


@dataclass(slots=True, eq=False)
class Loan:
    """The lease of an array in a slot of another process."""

    descriptor: bytes
    exchange: int
    number: int
    #: The link over which it was lent.
    link: SharedLink
    is_spoilt: bool = False

    def describe(self, exchange: int) -> bytes | None:
        """Return the owner's descriptor, so that the next reader opens the owner's slot.

        None once the link is closed: the owner may have closed the slot, and a copy is sent. See
        ``Lease``.
        """
        can_be_opened = self.link.is_open and exchange == self.exchange
        return self.descriptor if can_be_opened else None

    def spoil(self) -> None:
        """See ``Lease``."""
        self.is_spoilt = True

    def dropped(self) -> None:
        """Return the loan with the next frame; see ``Lease``."""
        self.link.returned.append(self.number | SPOILT_BIT if self.is_spoilt else self.number)


class SharedLink:
    """Frames over another link, with the payloads that lie in slots passed in shared memory.

    See ``transport.Link``. A payload that ``receive`` returns may be a read-only view of another
    process's memory instead of a buffer from ``allocate``. It is returned to its owner when its
    last view is dropped.

    Parameters
    ----------
    inner : Link
        An ordered link to a process; each side can open the other's slots.
    pool : SlotPool
        The slots of this process.
    offer : mapping, optional
        The peer's offer of memory from the handshake (``SlotPool.offer``).
    """

    def __init__(self, inner: Link, pool: SlotPool, offer: Mapping[str, Any] | None = None) -> None:
        self.hello = inner.hello
        self.peer = inner.peer
        #: Vectors are not segmented within a host.
        self.piece_bytes: int | None = None
        #: Bytes lent to the peer, and bytes borrowed from it.
        self.lent_bytes = 0
        self.borrowed_bytes = 0
        self.inner: Any = inner
        self._pool = pool
        self._offer = offer
        self._n_lent = 0
        #: Loans to the peer by number; the references keep the arrays from being reused.
        self._lent: dict[int, tuple[object, Lease]] = {}
        #: Numbers of loans to return, as their last view here was dropped; filled by any thread.
        self.returned: deque[int] = deque()
        #: False once this end has been closed.
        self.is_open = True
        self.maps: dict[bytes, mmap.mmap] = {}
        self._allocate: Allocate | None = None
        pool.link_opened()

    @property
    def direct(self) -> SharedLink | None:
        """This link if the one below is direct, else None; see ``transport.Link``."""
        return self if self.inner.direct is not None else None

    @property
    def sent_bytes(self) -> int:
        """Bytes of the frames sent, including vectors in shared memory."""
        return int(self.inner.sent_bytes) + self.lent_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the link below has not sent, without vectors in shared memory."""
        return int(self.inner.unsent_bytes)

    @property
    def received_bytes(self) -> int:
        """Bytes of the frames received, including vectors in shared memory."""
        return int(self.inner.received_bytes) + self.borrowed_bytes

    @property
    def closed(self) -> asyncio.Event:
        """Set when the link is closed from either end."""
        event: asyncio.Event = self.inner.closed
        return event

    async def send(self, frame: Frame) -> None:
        """Send a frame; a payload in a slot is lent and must not be written again.

        Raises
        ------
        LinkClosedError
            When the peer is gone or the link is closed.
        """
        try:
            for wire_frame in self._wire_frames(frame):
                await self.inner.send(wire_frame)
        except LinkClosedError:
            self.close()
            raise

    def start(self, frame: Frame) -> asyncio.Future[None] | None:
        """Begin to send a frame; see ``transport.Direct`` and ``send``."""
        wire_frames = self._wire_frames(frame)
        try:
            for k, wire_frame in enumerate(wire_frames):
                rest: asyncio.Future[None] | None = self.inner.direct.start(wire_frame)
                if rest is not None:
                    is_last = k + 1 == len(wire_frames)
                    return rest if is_last else self._after(rest, wire_frames[k + 1])
        except LinkClosedError:
            self.close()
            raise
        return None

    def _after(self, rest: asyncio.Future[None], frame: Frame) -> asyncio.Future[None]:
        """Send a frame once the link below has room for it."""

        async def send() -> None:
            await rest
            await self.inner.send(frame)

        sending = asyncio.ensure_future(send())
        # Retrieve the exception: nothing may await the future when the link closes.
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        return sending

    def _wire_frames(self, frame: Frame) -> list[Frame]:
        """Return the frames to send over the link below in place of a frame."""
        lease = self._pool.lease_of(frame.payload)
        descriptor = None
        if lease is not None and len(self._lent) < LOANS_MAX:
            descriptor = lease.describe(frame.exchange)
        returns = self._numbers_to_return() if self.returned else b""
        if descriptor is None or lease is None or frame.payload is None:
            if not returns:
                return [frame]
            note = Frame(kind=Kind.RETURN, prefix={}, payload=memoryview(returns), shared=True)
            return [note, frame]
        self._n_lent += 1
        self._lent[self._n_lent] = (frame.payload.obj, lease)
        raw = descriptor + _NUMBER.pack(self._n_lent) + returns
        self.lent_bytes += frame.payload.nbytes
        # A copy except for the payload; ``dataclasses.replace`` takes eight times as long.
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
        """Wait for the next frame; its payload is in a buffer from ``allocate`` or in a slot.

        Raises
        ------
        LinkClosedError
            When the peer or its memory is gone, or the link is closed.
        RemoteProtocolError
            When the bytes are not a frame of ours, or the slot has other content.
        """
        self._allocate = allocate
        try:
            while True:
                frame: Frame = await self.inner.receive(self._buffer)
                if not frame.shared:
                    return frame
                lent = self._open(frame)
                if lent is not None:
                    return lent
        except (LinkClosedError, RemoteProtocolError):
            self.close()
            raise

    async def serve(self, allocate: Allocate, on_frame: Callable[[Frame], None]) -> None:
        """Pass every frame to ``on_frame``; see ``transport.Direct`` and ``receive``."""
        self._allocate = allocate

        def on_wire_frame(wire_frame: Frame) -> None:
            received = self._open(wire_frame) if wire_frame.shared else wire_frame
            if received is not None:
                on_frame(received)

        try:
            await self.inner.direct.serve(self._buffer, on_wire_frame)
        except (LinkClosedError, RemoteProtocolError):
            self.close()
            raise

    def _buffer(self, header: Header, prefix: Mapping[str, Any]) -> memoryview:
        assert self._allocate is not None
        if header.shared:
            if header.payload_bytes > LOAN_FRAME_BYTES_MAX:
                raise RemoteProtocolError(
                    f"{self.peer} sent a loan of {header.payload_bytes} bytes, wanted at most "
                    f"{LOAN_FRAME_BYTES_MAX}"
                )
            return memoryview(bytearray(header.payload_bytes))
        return self._allocate(header, prefix)

    def _open(self, frame: Frame) -> Frame | None:
        """Process returned loans and map the lent payload; None if the frame lends nothing."""
        raw = b"" if frame.payload is None else bytes(frame.payload)
        n_loan = 0 if frame.kind is Kind.RETURN else _LOAN_BYTES
        if len(raw) < n_loan or (len(raw) - n_loan) % _NUMBER.size:
            raise RemoteProtocolError(
                f"{self.peer} sent a loan of {len(raw)} bytes, wanted {n_loan} plus a multiple of "
                f"{_NUMBER.size}"
            )
        for start in range(n_loan, len(raw), _NUMBER.size):
            self._take_back(*_NUMBER.unpack_from(raw, start))
        if n_loan == 0:
            return None
        descriptor = raw[:DESCRIPTOR_BYTES]
        (number,) = _NUMBER.unpack_from(raw, DESCRIPTOR_BYTES)
        exchange, nbytes = content_of(descriptor)
        if exchange != frame.exchange or nbytes % 8:
            raise RemoteProtocolError(
                f"{self.peer} lends {unpack_descriptor(descriptor)} in a frame of exchange "
                f"{frame.exchange}"
            )
        array = self._view(descriptor, nbytes)
        self._pool.enter(array, Loan(descriptor, exchange, number, self))
        self.borrowed_bytes += nbytes
        frame.payload, frame.shared = array.data.cast("B"), False
        return frame

    def _take_back(self, number: int) -> None:
        array_and_lease = self._lent.pop(number & ~SPOILT_BIT, None)
        if array_and_lease is None:
            raise RemoteProtocolError(
                f"{self.peer} gives back loan {number & ~SPOILT_BIT}, but has {sorted(self._lent)}"
            )
        if number & SPOILT_BIT:
            array_and_lease[1].spoil()

    def _view(self, descriptor: bytes, nbytes: int) -> NDArray[np.float64]:
        memory = self.maps.pop(descriptor[WHOSE], None)
        if memory is None:
            memory = self._map(descriptor)
        self.maps[descriptor[WHOSE]] = memory  # now the most recently used
        mismatch = slot_mismatch(memory, descriptor)
        if mismatch is not None:
            raise RemoteProtocolError(f"{self.peer} announced a vector, but there is {mismatch}")
        return np.frombuffer(memory, np.float64, nbytes // 8, HEAD_BYTES)

    def _map(self, descriptor: bytes) -> mmap.mmap:
        """Map a slot, and drop the least recently used mappings beyond the limits."""
        owner = unpack_descriptor(descriptor)
        try:
            memory = map_slot(owner.pid, owner.fd)
            if memory[WHOSE] != descriptor[WHOSE]:
                # The owner has closed the slot, and its file descriptor belongs to another file.
                gone = f"slot {owner.slot} of process {owner.pid} is closed"
                raise NoSharedMemoryError(gone, is_gone=True)
        except NoSharedMemoryError as fault:
            raise self._unreadable(owner, fault) from None
        n_bytes = len(memory) + sum(map(len, self.maps.values()))
        while self.maps and (len(self.maps) >= MAPS_MAX or n_bytes > MAPS_BYTES_MAX):
            n_bytes -= len(self.maps.pop(next(iter(self.maps))))
        return memory

    def _unreadable(self, owner: Descriptor, fault: NoSharedMemoryError) -> LinkClosedError:
        """Return the error that ends the link; if memory cannot be shared, stop sharing."""
        if not fault.is_gone and not (fault.is_other and self._is_readable(owner)):
            logger.warning("cannot read a vector of %s, sharing stops: %s", self.peer, fault)
            self._pool.stop(str(fault))
        return LinkClosedError(f"the link to {self.peer} is closed: {fault}")

    def _is_readable(self, owner: Descriptor) -> bool:
        """Whether the owner of a slot is the peer, and its memory is still readable."""
        if self._offer is None or owner.life.hex() != self._offer["life"]:
            return False
        try:
            check_offer(self._offer)
        except NoSharedMemoryError:
            return False
        return True

    def close(self) -> None:
        """Close at once; slots lent to the peer are never written again."""
        self.inner.close()
        # It is the reader's, which has this link.
        self._allocate = None
        for _, lease in self._lent.values():
            lease.spoil()
        self._lent.clear()
        self.maps.clear()
        if self.is_open:
            self.is_open = False
            self._pool.link_closed()
