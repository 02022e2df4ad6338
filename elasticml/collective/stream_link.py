"""A link over the tornado stream below a Dask comm: bytes straight from and into arrays.

Two things of Dask's that are no contract are relied on, and tested: that the comms of ``tcp://``
and ``tls://`` have their stream at ``stream``, and that a handler whose first parameter is called
``comm`` owns the comm. Where there is no stream, ``comm_link.py`` does the same through messages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from tornado.iostream import IOStream, SSLIOStream, StreamClosedError

from elasticml.collective.frames import HEADER_BYTES, Frame, Header, decode, unpack
from elasticml.collective.transport import Allocate, LinkClosedError, payload_buffer

#: A payload up to this size is copied behind its header, to be sent by one call.
JOINED_BYTES_MAX: Final = 64 * 1024
#: Longest single read or write of a stream: TLS takes no more than 2 GiB at once, and tornado
#: refuses to read more than half of the memory.
PART_BYTES_MAX: Final = 64 * 2**20


def has_stream(comm: Any) -> bool:
    """Whether a comm lies on a tornado stream that we may use; no contract of Dask's, so asked."""
    return isinstance(getattr(comm, "stream", None), IOStream)


class StreamLink:
    """Frames over the tornado stream below a Dask comm; see ``transport.Link``."""

    def __init__(self, comm: Any, hello: Mapping[str, Any]) -> None:
        self.hello = hello
        self.peer: str = comm.peer_address
        self.sent_bytes = 0
        self.received_bytes = 0
        #: Set when the link is closed, from whichever end.
        self.closed = asyncio.Event()
        # Without this reference the comm is collected, and closes its stream with it.
        self._comm = comm
        self._stream: IOStream = comm.stream
        self._is_plain = not isinstance(self._stream, SSLIOStream)
        self._head = memoryview(bytearray(HEADER_BYTES))
        # Replaces the comm's own callback; ``close`` tells the comm what that would have.
        self._stream.set_close_callback(self.close)

    async def send(self, frame: Frame) -> None:
        """Write a frame; returns when the kernel has all of it.

        Raises
        ------
        LinkClosedError
            When the peer is gone or the link is closed.
        """
        head, payload = frame.encode()
        n_payload = 0 if payload is None else payload.nbytes
        try:
            if payload is None or n_payload <= JOINED_BYTES_MAX:
                await self._stream.write(head if payload is None else b"".join((head, payload)))
            else:
                await self._write_both(head, payload)
        except OSError as fault:
            raise self._lost(fault) from None
        except BaseException:
            # A cancelled send leaves half a frame behind it, and its payload in use.
            self.close()
            raise
        self.sent_bytes += len(head) + n_payload

    async def _write_both(self, head: bytes, payload: memoryview) -> None:
        """Write a header and a long payload, by one call where the socket is a plain one.

        A header sent alone would wake the peer twice, which costs a fifth of an exchange of
        47,028 doubles.
        """
        stream, n_sent = self._stream, 0
        if stream.closed():
            raise StreamClosedError
        if self._is_plain and not stream.writing():
            with contextlib.suppress(BlockingIOError):
                n_sent = stream.socket.sendmsg((head, payload))
        written = None
        if n_sent < len(head):
            written = stream.write(head[n_sent:])
        for start in range(max(0, n_sent - len(head)), payload.nbytes, PART_BYTES_MAX):
            written = stream.write(payload[start : start + PART_BYTES_MAX])
        if written is not None:
            await written

    async def receive(self, allocate: Allocate) -> Frame:
        """Read the next frame, its payload straight into the buffer from ``allocate``.

        Raises
        ------
        LinkClosedError
            When the peer is gone or the link is closed.
        RemoteProtocolError
            When what arrives is no frame of ours; the link is closed then.
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
            # Whatever went wrong, what comes next is not the beginning of a frame.
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
        """Close at once; calls that wait at either end raise LinkClosedError."""
        if not self.closed.is_set():
            self.closed.set()
            self._comm.abort()

    def _lost(self, fault: OSError) -> LinkClosedError:
        self.close()
        return LinkClosedError(f"the link to {self.peer} is closed: {fault}")
