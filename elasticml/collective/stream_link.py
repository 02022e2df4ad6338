"""A link over the tornado stream below a Dask comm; TLS needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from tornado.iostream import IOStream

from elasticml.collective.frames import HEADER_BYTES, Frame, Header, decode, unpack
from elasticml.collective.socket_link import unsent_socket_bytes
from elasticml.collective.transport import Allocate, LinkClosedError, payload_buffer

#: A payload up to this size is appended to its header and sent by one call.
JOINED_BYTES_MAX: Final = 64 * 1024
#: Longest single read or write of a stream: TLS accepts at most 2 GiB at once, and tornado refuses
#: to read more than half of the memory.
PART_BYTES_MAX: Final = 64 * 2**20


class StreamLink:
    """Frames over the tornado stream below a Dask comm; see ``transport.Link``."""

    def __init__(self, comm: Any, hello: Mapping[str, Any], piece_bytes: int | None = None) -> None:
        self.hello = hello
        self.peer: str = comm.peer_address
        self.piece_bytes = piece_bytes
        self.sent_bytes = 0
        self.received_bytes = 0
        #: Set when the link is closed from either end.
        self.closed = asyncio.Event()
        # Without this reference the comm is garbage-collected and closes its stream.
        self._comm = comm
        self._stream: IOStream = comm.stream
        self._head = memoryview(bytearray(HEADER_BYTES))
        # Replaces the comm's own callback; ``close`` aborts the comm in its place.
        self._stream.set_close_callback(self.close)

    @property
    def direct(self) -> None:
        """None: sending and receiving need tasks here; see ``transport.Link``."""
        return None

    @property
    def unsent_bytes(self) -> int:
        """Bytes queued in the kernel; ``send`` waits for those queued before it."""
        return 0 if self.closed.is_set() else unsent_socket_bytes(self._stream.socket.fileno())

    async def send(self, frame: Frame) -> None:
        """Write a frame; return when the kernel has accepted all of it.

        Raises
        ------
        LinkClosedError
            When the peer is gone or the link is closed.
        """
        head, payload = frame.encode()
        n_payload = 0 if payload is None else payload.nbytes
        stream = self._stream
        try:
            if payload is None or n_payload <= JOINED_BYTES_MAX:
                await stream.write(head if payload is None else b"".join((head, payload)))
            else:
                written = stream.write(head)
                for start in range(0, n_payload, PART_BYTES_MAX):
                    written = stream.write(payload[start : start + PART_BYTES_MAX])
                await written
        except OSError as fault:
            raise self._lost(fault) from None
        except BaseException:
            # A cancelled send leaves an incomplete frame, and its payload in use.
            self.close()
            raise
        self.sent_bytes += len(head) + n_payload

    async def receive(self, allocate: Allocate) -> Frame:
        """Read the next frame, with its payload directly in the buffer from ``allocate``.

        Raises
        ------
        LinkClosedError
            When the peer is gone or the link is closed.
        RemoteProtocolError
            When the bytes are not a frame of ours; this closes the link.
        """
        stream = self._stream
        try:
            await stream.read_into(self._head)  # type: ignore[arg-type]
            header = unpack(self._head)
            prefix = b""
            if header.prefix_bytes:
                raw = bytearray(header.prefix_bytes)
                await stream.read_into(raw)
                prefix = bytes(raw)
            frame = decode(header, prefix, None)
            frame.payload = await self._read_payload(header, frame, allocate)
        except OSError as fault:
            raise self._lost(fault) from None
        except BaseException:
            # After any error the stream may be in the middle of a frame.
            self.close()
            raise
        self.received_bytes += HEADER_BYTES + header.prefix_bytes + header.payload_bytes
        return frame

    async def _read_payload(
        self, header: Header, frame: Frame, allocate: Allocate
    ) -> memoryview | None:
        buffer = payload_buffer(allocate, header, frame.prefix)
        if buffer is not None:
            for start in range(0, buffer.nbytes, PART_BYTES_MAX):
                part = buffer[start : start + PART_BYTES_MAX]
                await self._stream.read_into(part)  # type: ignore[arg-type]
        return buffer

    def close(self) -> None:
        """Close at once; pending calls at either end raise LinkClosedError."""
        if not self.closed.is_set():
            self.closed.set()
            self._comm.abort()

    def _lost(self, fault: OSError) -> LinkClosedError:
        self.close()
        return LinkClosedError(f"the link to {self.peer} is closed: {fault}")
