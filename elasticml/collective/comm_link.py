"""A link over a Dask comm that has no plain socket: over the stream of TLS, or as Dask messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

from distributed.protocol import Serialized
from tornado.iostream import IOStream

from elasticml.collective.frames import HEADER_BYTES, Frame, decode, unpack
from elasticml.collective.socket_link import unsent_socket_bytes
from elasticml.collective.transport import Allocate, LinkClosedError, payload_buffer
from elasticml.errors import RemoteProtocolError

#: A payload up to this size is part of its Dask message, a longer one a separate buffer.
INLINE_BYTES_MAX: Final = 64 * 1024
#: A payload up to this size is appended to its header and sent by one call.
STREAM_JOINED_BYTES_MAX: Final = 64 * 1024
#: Longest single read or write of a stream: TLS accepts at most 2 GiB at once, and tornado refuses
#: to read more than half of the memory.
PART_BYTES_MAX: Final = 64 * 2**20
#: Bytes of a prefix that are allocated and read at once.
PREFIX_PART_BYTES: Final = 2**20


class Channel(Protocol):
    """How frames pass over a comm; after an error it is not used any more."""

    async def write(self, frame: Frame) -> int:
        """Write a frame and return its bytes; raises OSError when the peer is gone."""
        ...

    async def read(self, allocate: Allocate) -> tuple[Frame, int]:
        """Read a frame; return it and its bytes. Raises OSError, RemoteProtocolError."""
        ...

    def unsent_bytes(self) -> int:
        """Return the bytes written that have not left this host; 0 if unknown."""
        ...


class MessageChannel:
    """Frames as Dask messages, for comms without a byte stream.

    ``write`` copies a frame, since a comm keeps references to the buffers that it sends, and
    ``read`` copies the payload into the buffer from ``allocate``.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    async def write(self, frame: Frame) -> int:
        """Write a frame."""
        head, payload = frame.encode()
        copied = b"" if payload is None else bytes(payload)
        is_small = len(copied) <= INLINE_BYTES_MAX
        body = copied if is_small else Serialized({}, [memoryview(copied)])
        await self._comm.write([head, body])
        return len(head) + len(copied)

    async def read(self, allocate: Allocate) -> tuple[Frame, int]:
        """Read a frame."""
        frame, n_payload, head = _frame_of(await self._comm.read(), allocate)
        return frame, len(head) + n_payload

    def unsent_bytes(self) -> int:
        """Return 0: comms without a stream do not report it."""
        return 0


def _frame_of(message: Any, allocate: Allocate) -> tuple[Frame, int, bytes]:
    """Read a frame from a Dask message ``[head, body]``."""
    match message:
        case [bytes() as head, bytes() as body] if len(head) >= HEADER_BYTES:
            parts = [memoryview(body)]
        case [bytes() as head, Serialized() as body] if len(head) >= HEADER_BYTES:
            parts = [memoryview(part).cast("B") for part in body.frames]
        case _:
            raise RemoteProtocolError(
                f"a link received a message of type {type(message).__name__}, wanted a frame"
            )
    header = unpack(head[:HEADER_BYTES])
    n_payload = sum(part.nbytes for part in parts)
    if n_payload != header.payload_bytes or len(head) - HEADER_BYTES != header.prefix_bytes:
        raise RemoteProtocolError(
            f"a frame has {len(head) - HEADER_BYTES} bytes of prefix and {n_payload} of payload, "
            f"its header says {header.prefix_bytes} and {header.payload_bytes}"
        )
    frame = decode(header, head[HEADER_BYTES:], None)
    frame.payload = payload_buffer(allocate, header, frame.prefix)
    start = 0
    for part in parts:
        if frame.payload is not None:
            frame.payload[start : start + part.nbytes] = part
            start += part.nbytes
    return frame, n_payload, head


class StreamChannel:
    """Frames over the tornado stream below a comm, as TLS requires.

    ``write`` returns when the kernel has accepted the whole frame, and ``read`` reads the payload
    directly into the buffer from ``allocate``.
    """

    def __init__(self, stream: IOStream) -> None:
        self._stream = stream
        self._head = memoryview(bytearray(HEADER_BYTES))

    async def write(self, frame: Frame) -> int:
        """Write a frame."""
        head, payload = frame.encode()
        n_payload = 0 if payload is None else payload.nbytes
        stream = self._stream
        if payload is None or n_payload <= STREAM_JOINED_BYTES_MAX:
            await stream.write(head if payload is None else b"".join((head, payload)))
        else:
            written = stream.write(head)
            for start in range(0, n_payload, PART_BYTES_MAX):
                written = stream.write(payload[start : start + PART_BYTES_MAX])
            await written
        return len(head) + n_payload

    async def read(self, allocate: Allocate) -> tuple[Frame, int]:
        """Read a frame."""
        stream = self._stream
        await stream.read_into(self._head)  # type: ignore[arg-type]
        header = unpack(self._head)
        prefix = b""
        if header.prefix_bytes:
            # In parts: a header alone must not make this process allocate what it announces.
            parts = []
            for start in range(0, header.prefix_bytes, PREFIX_PART_BYTES):
                parts.append(bytearray(min(PREFIX_PART_BYTES, header.prefix_bytes - start)))
                await stream.read_into(parts[-1])
            prefix = b"".join(parts)
        frame = decode(header, prefix, None)
        frame.payload = payload_buffer(allocate, header, frame.prefix)
        if frame.payload is not None:
            for start in range(0, frame.payload.nbytes, PART_BYTES_MAX):
                part = frame.payload[start : start + PART_BYTES_MAX]
                await stream.read_into(part)  # type: ignore[arg-type]
        return frame, HEADER_BYTES + header.prefix_bytes + header.payload_bytes

    def unsent_bytes(self) -> int:
        """Return the bytes queued in the kernel; ``write`` waits for those queued before it."""
        return unsent_socket_bytes(self._stream.socket.fileno())


class CommLink:
    """Frames over a Dask comm, passed by a channel; see ``transport.Link``."""

    def __init__(
        self,
        comm: Any,
        hello: Mapping[str, Any],
        channel: Channel,
        piece_bytes: int | None = None,
    ) -> None:
        self.hello = hello
        self.peer: str = comm.peer_address
        self.piece_bytes = piece_bytes
        self.sent_bytes = 0
        self.received_bytes = 0
        #: Set when the link is closed, as far as this end knows.
        self.closed = asyncio.Event()
        self.channel = channel
        # Without this reference the comm is garbage-collected and closes its stream.
        self.comm = comm

    @property
    def direct(self) -> None:
        """None: sending and receiving need tasks here; see ``transport.Link``."""
        return None

    @property
    def unsent_bytes(self) -> int:
        """Bytes sent that have not left this host; 0 if unknown."""
        return 0 if self.closed.is_set() else self.channel.unsent_bytes()

    async def send(self, frame: Frame) -> None:
        """Write a frame; return when its payload may be reused.

        Raises
        ------
        LinkClosedError
            When the peer is gone or the link is closed.
        """
        try:
            nbytes = await self.channel.write(frame)
        except OSError as fault:
            raise self._lost(fault) from None
        except BaseException:
            # A cancelled send leaves an incomplete frame, and its payload in use.
            self.close()
            raise
        self.sent_bytes += nbytes

    async def receive(self, allocate: Allocate) -> Frame:
        """Read the next frame, with its payload in the buffer from ``allocate``.

        Raises
        ------
        LinkClosedError
            When the peer is gone or the link is closed.
        RemoteProtocolError
            When the bytes are not a frame of ours; this closes the link.
        """
        try:
            frame, nbytes = await self.channel.read(allocate)
        except OSError as fault:
            raise self._lost(fault) from None
        except BaseException:
            # After any error the channel may be in the middle of a frame.
            self.close()
            raise
        self.received_bytes += nbytes
        return frame

    def close(self) -> None:
        """Close at once; pending calls at either end raise LinkClosedError."""
        if not self.closed.is_set():
            self.closed.set()
            self.comm.abort()

    def _lost(self, fault: OSError) -> LinkClosedError:
        self.close()
        return LinkClosedError(f"the link to {self.peer} is closed: {fault}")
