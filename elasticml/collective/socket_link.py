"""A link over the plain TCP socket below a Dask comm: the fastest, and the usual one.

The comm opens the link and keeps its socket; a duplicate of that is read and written from the
event loop, with one callback per event. Against tornado's stream (``stream_link.py``, which TLS
needs) this halves the processor time of an exchange of 47,028 doubles.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

from elasticml.collective.frames import HEADER_BYTES, Frame, Header, decode, unpack
from elasticml.collective.kernel_queue import unsent_in
from elasticml.collective.transport import Allocate, LinkClosedError, payload_buffer
from elasticml.errors import LocalProtocolError


class SocketLink:
    """Frames over a TCP socket; see ``transport.Link``.

    The peer must be silent while this is made: what tornado has read by then is lost.
    """

    def __init__(self, comm: Any, hello: Mapping[str, Any], piece_bytes: int | None = None) -> None:
        self.hello = hello
        self.peer: str = comm.peer_address
        self.piece_bytes = piece_bytes
        self.sent_bytes = 0
        self.received_bytes = 0
        #: Set when the link is closed, from whichever end.
        self.closed = asyncio.Event()
        # Without this reference the comm is collected, and closes its stream with it.
        self._comm = comm
        # The server closes its comms when it ends; the link learns of it here.
        comm.stream.set_close_callback(self.close)
        comm.stream.io_loop.remove_handler(comm.stream.fileno())
        # A descriptor of our own: nobody else closes it while the loop watches it.
        self._socket: socket.socket = comm.stream.socket.dup()
        self._loop = asyncio.get_running_loop()
        self._unsent: list[memoryview] = []
        self._room: asyncio.Future[None] | None = None
        self._is_watched = False
        self._arrived: asyncio.Future[Frame] | None = None
        self._head = memoryview(bytearray(HEADER_BYTES))
        # Of the frame that is being read: where it goes, and what of it is known.
        self._allocate: Allocate | None = None
        self._target = self._head
        self._n_read = 0
        self._header: Header | None = None
        self._frame: Frame | None = None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait here or in the kernel, and have not been sent for the first time."""
        if self.closed.is_set():
            return 0
        return sum(part.nbytes for part in self._unsent) + unsent_in(self._socket.fileno())

    async def send(self, frame: Frame) -> None:
        """Write a frame; returns when the kernel has all of it.

        Raises
        ------
        LinkClosedError
            When the peer is gone or the link is closed.
        LocalProtocolError
            When another task is sending.
        """
        if self.closed.is_set():
            raise LinkClosedError(f"the link to {self.peer} is closed")
        if self._unsent:
            raise LocalProtocolError(f"two tasks send on the link to {self.peer}, wanted one")
        head, payload = frame.encode()
        self._unsent = [memoryview(head)]
        if payload is not None and payload.nbytes:
            self._unsent.append(payload)
        nbytes = sum(part.nbytes for part in self._unsent)
        try:
            self._push()
            if self._unsent:
                self._room = self._loop.create_future()
                self._loop.add_writer(self._socket.fileno(), self._on_writable)
                await self._room
        except OSError as fault:
            raise self._lost(fault) from None
        except BaseException:
            # A cancelled send leaves half a frame behind it, and its payload in use.
            self.close()
            raise
        self.sent_bytes += nbytes

    def _push(self) -> None:
        """Give the kernel what it takes at once."""
        try:
            n_sent = self._socket.sendmsg(self._unsent)
        except BlockingIOError:
            return
        while n_sent:
            first = self._unsent[0]
            if n_sent < first.nbytes:
                self._unsent[0] = first[n_sent:]
                return
            n_sent -= first.nbytes
            del self._unsent[0]

    def _on_writable(self) -> None:
        assert self._room is not None
        try:
            self._push()
        except OSError as fault:
            self._loop.remove_writer(self._socket.fileno())
            if not self._room.done():
                self._room.set_exception(fault)
            return
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())
            if not self._room.done():
                self._room.set_result(None)

    async def receive(self, allocate: Allocate) -> Frame:
        """Read the next frame, its payload straight into the buffer from ``allocate``.

        Raises
        ------
        LinkClosedError
            When the peer is gone or the link is closed.
        RemoteProtocolError
            When what arrives is no frame of ours; the link is closed then.
        LocalProtocolError
            When another task is receiving, or ``allocate`` gave a wrong buffer.
        """
        if self.closed.is_set():
            raise LinkClosedError(f"the link to {self.peer} is closed")
        if self._arrived is not None:
            raise LocalProtocolError(f"two tasks receive on the link to {self.peer}, wanted one")
        self._allocate = allocate
        self._target, self._n_read = self._head, 0
        self._header = self._frame = None
        self._arrived = self._loop.create_future()
        if not self._is_watched:
            self._is_watched = True
            self._loop.add_reader(self._socket.fileno(), self._on_readable)
        try:
            frame = await self._arrived
        except OSError as fault:
            raise self._lost(fault) from None
        except BaseException:
            # Whatever went wrong, what comes next is not the beginning of a frame.
            self.close()
            raise
        finally:
            self._arrived = self._frame = None
        return frame

    def _on_readable(self) -> None:
        if self._arrived is None or self._arrived.done():
            self._look()
            return
        try:
            is_whole = self._read()
        except BlockingIOError:
            return
        except Exception as fault:
            self._arrived.set_exception(fault)
            return
        if is_whole:
            assert self._frame is not None
            self._arrived.set_result(self._frame)

    def _look(self) -> None:
        """Tell the end of the link from a frame that nobody waits for yet."""
        try:
            is_open = bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return
        except OSError:
            is_open = False
        if is_open:
            self._is_watched = False
            self._loop.remove_reader(self._socket.fileno())
        else:
            self.close()

    def _read(self) -> bool:
        """Read what is there of the frame; returns whether it is whole."""
        target: memoryview | None = self._target
        while target is not None:
            n_read = self._socket.recv_into(target[self._n_read :])
            if n_read == 0:
                raise ConnectionResetError("the peer closed it")
            self._n_read += n_read
            self.received_bytes += n_read
            if self._n_read < target.nbytes:
                # The socket is empty by now; the loop tells when it is not.
                return False
            target, self._n_read = self._next_target(), 0
            if target is not None:
                self._target = target
        return True

    def _next_target(self) -> memoryview | None:
        """Say where the next part of the frame goes; None when there is none."""
        if self._header is None:
            self._header = unpack(self._head)
            if self._header.prefix_bytes:
                return memoryview(bytearray(self._header.prefix_bytes))
            prefix = b""
        elif self._frame is None:
            prefix = bytes(self._target)
        else:
            return None
        assert self._allocate is not None
        self._frame = decode(self._header, prefix, None)
        self._frame.payload = payload_buffer(self._allocate, self._header, self._frame.prefix)
        return self._frame.payload

    def close(self) -> None:
        """Close at once; calls that wait at either end raise LinkClosedError."""
        if self.closed.is_set():
            return
        self.closed.set()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._comm.abort()
        for waiting in (self._arrived, self._room):
            if waiting is not None and not waiting.done():
                waiting.set_exception(ConnectionResetError("this end closed it"))

    def _lost(self, fault: OSError) -> LinkClosedError:
        self.close()
        return LinkClosedError(f"the link to {self.peer} is closed: {fault}")
