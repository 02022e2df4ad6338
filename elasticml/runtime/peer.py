"""An open link with a send queue, so that callers never wait, and a reader that is always active.

If the link supports it, the caller sends a frame directly, and the callback that reads a frame
handles it. Otherwise, and if the kernel's buffer is full, tasks write from a queue and read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from elasticml.collective.frames import Frame, Header, Kind
from elasticml.collective.segmentation import (
    TRAILER,
    IncomingVector,
    IncomingVectors,
    OutgoingVector,
    attempt_numbers,
    cut,
    is_cut,
)
from elasticml.collective.transport import Allocate, Link, LinkClosedError
from elasticml.errors import ProtocolError, RemoteProtocolError


class Peer:
    """Sends frames in order without blocking the caller, and passes on the frames that arrive.

    Parameters
    ----------
    link : Link
    allocate : Allocate
        Allocates buffers for payloads.
    on_frame : callable (Peer, Frame)
        Called for each frame, on the loop.
    on_closed : callable (Peer, str)
        Called once, with the reason, when either end has closed the link.
    on_piece : callable (Peer, IncomingVector), optional
        Called for each piece of a vector, and with its trailer.
    watches : bool
        Whether to track which frames have left this host, see ``n_left``.
    """

    def __init__(
        self,
        link: Link,
        allocate: Allocate,
        on_frame: Callable[[Peer, Frame], None],
        on_closed: Callable[[Peer, str], None],
        on_piece: Callable[[Peer, IncomingVector], None] | None = None,
        *,
        watches: bool = False,
    ) -> None:
        self.link = link
        self._allocate = allocate
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._on_piece = on_piece
        self._arrivals = IncomingVectors(link.peer)
        self._numbers = attempt_numbers()
        #: The attempt of the frame that is being handled; None if it was not sent in pieces.
        self.arrived: IncomingVector | None = None
        self._direct = link.direct
        #: Ends when the kernel has taken the rest of the last frame that was sent directly.
        self._rest: asyncio.Future[None] | None = None
        self._queue: deque[Frame] = deque()
        self._wake = asyncio.Event()
        #: Nothing is queued and nothing is being written, or the link is closed.
        self.is_idle = True
        #: Number of frames posted so far; of frames that are known to have left this host.
        self.n_posted = 0
        self._n_left = 0
        #: Ends of the other frames that the link has taken, as positions in the bytes sent.
        self._ends: deque[int] | None = deque() if watches else None
        self._writer: asyncio.Task[None] | None = None
        #: Frames that still arrive are ignored, and ``on_closed`` is not called.
        self._closed = False

    async def run(self) -> None:
        """Serve the link until it closes."""
        self._writer = asyncio.get_running_loop().create_task(self._write())
        reason = "closed"
        try:
            if self._direct is not None:
                await self._direct.serve(self._buffer_of, self._handle)
            else:
                await self._read()
        except LinkClosedError:
            pass
        except ProtocolError as error:
            reason = str(error)
        finally:
            self.link.close()
            # The task has the error that ends it, whose traceback has this object.
            self._writer.cancel()
            self._writer = None
            self.is_idle = True
            if not self._closed:
                self._closed = True
                self._on_closed(self, reason)

    async def _read(self) -> None:
        while True:
            frame = await self.link.receive(self._buffer_of)
            self._handle(frame)
            # Return lent memory now, not with the next frame.
            del frame

    def _buffer_of(self, header: Header, prefix: Mapping[str, Any]) -> memoryview:
        if header.shared:
            raise RemoteProtocolError(f"{self.link.peer} lends memory on a link that shares none")
        if header.attempt == 0:
            return self._allocate(header, prefix)
        return self._arrivals.buffer_of(header, prefix, self._allocate)

    def _handle(self, frame: Frame) -> None:
        """Pass on a complete frame, or report a piece."""
        if self._closed:
            return
        if frame.attempt == 0:
            self.arrived = None
            self._on_frame(self, frame)
        elif frame.piece == TRAILER:
            whole, self.arrived = self._arrivals.commit(frame)
            self._on_frame(self, whole)
            self.arrived = None
        else:
            arriving = self._arrivals.piece(frame)
            if self._on_piece is not None:
                self._on_piece(self, arriving)

    def send(self, frame: Frame) -> None:
        """Queue a frame, in pieces if the link uses pieces."""
        size = self.link.piece_bytes
        if size is not None and is_cut(frame, size):
            for piece in cut(frame, next(self._numbers), size):
                self.post(piece)
        else:
            self.post(frame)

    def begin(self, frame: Frame, whole_bytes: int) -> OutgoingVector:
        """Start an attempt; the caller posts its pieces and its trailer."""
        return OutgoingVector(frame, next(self._numbers), whole_bytes)

    def post(self, frame: Frame) -> None:
        """Send a frame unchanged, or queue it; drop it if the link is closed.

        The receiver of a dropped frame is gone; ``on_closed`` reports that.
        """
        if self._closed:
            return
        self.n_posted += 1
        if self._direct is not None and self.is_idle and self._writer is not None:
            try:
                self._rest = self._direct.start(frame)
            except LinkClosedError:
                self.link.close()
                return
            if self._rest is None:
                self._sent()
                return
        else:
            self._queue.append(frame)
        self.is_idle = False
        self._wake.set()

    def _sent(self) -> None:
        """Record the end of a frame that the link has taken."""
        if self._ends is not None:
            self._ends.append(self.link.sent_bytes)
            # Before the next frame: a link may only know the total of unsent bytes.
            self.n_left()

    def n_left(self) -> int:
        """Return how many posted frames have left this host; requires ``watches``."""
        assert self._ends is not None
        if self.is_idle and self.link.unsent_bytes == 0:
            # Frames dropped on a closed link count as well.
            return self.n_posted
        left_bytes = self.link.sent_bytes - self.link.unsent_bytes
        while self._ends and self._ends[0] <= left_bytes:
            self._ends.popleft()
            self._n_left += 1
        return self._n_left

    def tell(self, message: dict[str, object]) -> None:
        """Queue a control message."""
        self.send(Frame(kind=Kind.CONTROL, prefix=message))

    def close(self) -> None:
        """Close now; ``on_closed`` is not called."""
        self._closed = True
        self.link.close()

    def retire(self) -> None:
        """Send what is queued, then wait for the other end to close; ignore what it sends."""
        self._closed = True

    async def _write(self) -> None:
        try:
            while True:
                if self._rest is not None:
                    await self._rest
                    self._rest = None
                    self._sent()
                while self._queue:
                    await self.link.send(self._queue.popleft())
                    self._sent()
                self.is_idle = True
                self._wake.clear()
                await self._wake.wait()
        except LinkClosedError:
            self.link.close()
