"""Frames off a socket, as far as they have arrived: a short one takes one call of the kernel."""

from __future__ import annotations

import socket
from typing import Final

from elasticml.collective.frames import HEADER_BYTES, Frame, Header, decode, unpack
from elasticml.collective.transport import Allocate, payload_buffer

#: Bytes asked for at once where a frame begins; what is behind it in them is the next ones'.
AHEAD_BYTES: Final = 4096


class FrameReader:
    """Takes frames off a socket that does not block.

    The beginning of a long payload may have been read along with its head, and is copied; the rest
    goes straight into its buffer.

    Parameters
    ----------
    source : socket
        Nobody else reads from it.
    """

    def __init__(self, source: socket.socket) -> None:
        #: Bytes read off the socket so far.
        self.received_bytes = 0
        self._socket = source
        self._ahead = memoryview(bytearray(AHEAD_BYTES))
        # What lies there and has not been looked at.
        self._begin = self._end = 0
        # Of the frame that is being read, what is known.
        self._header: Header | None = None
        self._frame: Frame | None = None
        self._n_payload = 0

    @property
    def has_more(self) -> bool:
        """Whether something has been read that no frame so far is made of."""
        return self._begin < self._end

    def next(self, allocate: Allocate) -> Frame | None:
        """Return the next frame; None where it is not whole yet: then the socket is empty.

        Raises
        ------
        OSError
            When the peer is gone.
        RemoteProtocolError
            When what arrives is no frame of ours.
        LocalProtocolError
            When ``allocate`` gave a wrong buffer.
        """
        frame = self._frame
        if frame is None:
            frame = self._begun(allocate)
            if frame is None:
                return None
        if frame.payload is not None and not self._is_filled(frame.payload):
            self._frame = frame
            return None
        self._frame = self._header = None
        return frame

    def _begun(self, allocate: Allocate) -> Frame | None:
        """Read header and prefix, and make room for the payload."""
        header = self._header
        if header is None:
            if self._end - self._begin < HEADER_BYTES and not self._has(HEADER_BYTES):
                return None
            header = self._header = unpack(self._taken(HEADER_BYTES))
        prefix = b""
        if header.prefix_bytes:
            if not self._has(header.prefix_bytes):
                return None
            prefix = bytes(self._taken(header.prefix_bytes))
        frame = decode(header, prefix, None)
        frame.payload = payload_buffer(allocate, header, frame.prefix)
        self._n_payload = 0
        return frame

    def _taken(self, nbytes: int) -> memoryview:
        begin = self._begin
        self._begin = begin + nbytes
        return self._ahead[begin : begin + nbytes]

    def _has(self, nbytes: int) -> bool:
        """Read ahead where so many bytes are not there; returns whether they are now."""
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
        """Read what is there of a payload; returns whether it is whole."""
        nbytes, n = payload.nbytes, self._n_payload
        n_ahead = min(self._end - self._begin, nbytes - n)
        if n_ahead:
            payload[n : n + n_ahead] = self._taken(n_ahead)
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
            raise ConnectionResetError("the peer closed it")
        self.received_bytes += n_read
        return n_read
