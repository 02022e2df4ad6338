"""Non-blocking reader of frames from a socket; a short frame takes one system call."""

from __future__ import annotations

import socket
from typing import Final

from elasticml.collective.frames import HEADER_BYTES, Frame, Header, decode, unpack
from elasticml.collective.transport import Allocate, payload_buffer

#: Bytes requested at the start of a frame; the surplus belongs to the following frames.
AHEAD_BYTES: Final = 4096


class FrameReader:
    """Reads frames from a non-blocking socket.

    The start of a long payload may have been read ahead together with the header, and is copied.
    The rest is received directly into the payload's buffer.

    Parameters
    ----------
    source : socket
        The reader must be the only one on it.
    """

    def __init__(self, source: socket.socket) -> None:
        #: Bytes received so far.
        self.received_bytes = 0
        self._socket = source
        self._ahead = memoryview(bytearray(AHEAD_BYTES))
        # The unread part of ``_ahead``.
        self._begin = self._end = 0
        # State of the frame being read.
        self._header: Header | None = None
        self._frame: Frame | None = None
        self._n_payload = 0

    @property
    def has_more(self) -> bool:
        """Whether bytes have been read ahead that belong to the next frame."""
        return self._begin < self._end

    def next(self, allocate: Allocate) -> Frame | None:
        """Return the next frame, or None if it is incomplete and the socket is empty.

        Raises
        ------
        OSError
            When the peer is gone.
        RemoteProtocolError
            When the bytes are not a frame of ours.
        LocalProtocolError
            When ``allocate`` returned a wrong buffer.
        """
        frame = self._frame
        if frame is None:
            frame = self._start_frame(allocate)
            if frame is None:
                return None
        if frame.payload is not None and not self._is_filled(frame.payload):
            self._frame = frame
            return None
        self._frame = self._header = None
        return frame

    def _start_frame(self, allocate: Allocate) -> Frame | None:
        """Read header and prefix, and allocate the payload; None if they are incomplete."""
        header = self._header
        if header is None:
            if self._end - self._begin < HEADER_BYTES and not self._read_ahead(HEADER_BYTES):
                return None
            header = self._header = unpack(self._consume(HEADER_BYTES))
        prefix = b""
        if header.prefix_bytes:
            if not self._read_ahead(header.prefix_bytes):
                return None
            prefix = bytes(self._consume(header.prefix_bytes))
        frame = decode(header, prefix, None)
        frame.payload = payload_buffer(allocate, header, frame.prefix)
        self._n_payload = 0
        return frame

    def _consume(self, nbytes: int) -> memoryview:
        begin = self._begin
        self._begin = begin + nbytes
        return self._ahead[begin : begin + nbytes]

    def _read_ahead(self, nbytes: int) -> bool:
        """Read until ``nbytes`` are available ahead or the socket is empty; return whether."""
        n_there = self._end - self._begin
        if n_there >= nbytes:
            return True
        if nbytes > len(self._ahead) - self._begin or n_there == 0:
            ahead = self._ahead
            if len(ahead) != max(nbytes, AHEAD_BYTES):
                ahead = memoryview(bytearray(max(nbytes, AHEAD_BYTES)))
            ahead[:n_there] = self._ahead[self._begin : self._end]
            self._ahead, self._begin, self._end = ahead, 0, n_there
        self._end += self._read(self._ahead[self._end :])
        return self._end - self._begin >= nbytes

    def _is_filled(self, payload: memoryview) -> bool:
        """Read the available part of a payload; return whether it is complete."""
        nbytes, n = payload.nbytes, self._n_payload
        n_ahead = min(self._end - self._begin, nbytes - n)
        if n_ahead:
            payload[n : n + n_ahead] = self._consume(n_ahead)
            n += n_ahead
        if n < nbytes:
            n += self._read(payload[n:])
        self._n_payload = n
        return n == nbytes

    def _read(self, room: memoryview) -> int:
        try:
            n_read = self._socket.recv_into(room)
        except BlockingIOError:
            return 0
        if n_read == 0:
            raise ConnectionResetError("closed by the peer")
        self.received_bytes += n_read
        return n_read
