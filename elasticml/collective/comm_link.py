"""A link over Dask messages, for comms without a byte stream: ``inproc://``, ``ws://``, ``ucx``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from distributed.protocol import Serialized

from elasticml.collective.frames import HEADER_BYTES, Frame, decode, unpack
from elasticml.collective.transport import Allocate, LinkClosedError, payload_buffer
from elasticml.errors import RemoteProtocolError

#: A payload up to this size is part of the message, a longer one a separate buffer.
INLINE_BYTES_MAX: Final = 64 * 1024


class CommLink:
    """Frames as Dask messages, for comms without a byte stream; see ``transport.Link``."""

    def __init__(self, comm: Any, hello: Mapping[str, Any], piece_bytes: int | None = None) -> None:
        self.hello = hello
        self.peer: str = comm.peer_address
        self.piece_bytes = piece_bytes
        self.sent_bytes = 0
        self.received_bytes = 0
        #: Set when the link is closed, as far as this end knows.
        self.closed = asyncio.Event()
        self._comm = comm

    @property
    def direct(self) -> None:
        """None: sending and receiving need tasks here; see ``transport.Link``."""
        return None

    @property
    def unsent_bytes(self) -> int:
        """Return 0: comms without a stream do not report it."""
        return 0

    async def send(self, frame: Frame) -> None:
        """Send a copy of a frame: a comm keeps references to the buffers that it sends.

        Raises
        ------
        LinkClosedError
            When the peer is gone or the link is closed.
        """
        head, payload = frame.encode()
        copied = b"" if payload is None else bytes(payload)
        is_small = len(copied) <= INLINE_BYTES_MAX
        body = copied if is_small else Serialized({}, [memoryview(copied)])
        try:
            await self._comm.write([head, body])
        except OSError as fault:
            raise self._lost(fault) from None
        except BaseException:
            self.close()
            raise
        self.sent_bytes += len(head) + len(copied)

    async def receive(self, allocate: Allocate) -> Frame:
        """Wait for the next frame and copy its payload into the buffer from ``allocate``.

        Raises
        ------
        LinkClosedError
            When the peer is gone or the link is closed.
        RemoteProtocolError
            When the message is not a frame of ours; this closes the link.
        """
        try:
            message = await self._comm.read()
            frame, n_payload, head = _frame_of(message, allocate)
        except OSError as fault:
            raise self._lost(fault) from None
        except BaseException:
            self.close()
            raise
        self.received_bytes += len(head) + n_payload
        return frame

    def close(self) -> None:
        """Close at once; pending calls at either end raise LinkClosedError."""
        if not self.closed.is_set():
            self.closed.set()
            self._comm.abort()

    def _lost(self, fault: OSError) -> LinkClosedError:
        self.close()
        return LinkClosedError(f"the link to {self.peer} is closed: {fault}")


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
