"""One open link with its two tasks: a writer that empties a queue, a reader always armed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from elasticml.collective.frames import Frame, Kind
from elasticml.collective.transport import Allocate, Link, LinkClosedError
from elasticml.errors import ProtocolError


class Peer:
    """Sends frames in order without making the caller wait, and hands over what arrives.

    Parameters
    ----------
    link : Link
    allocate : Allocate
        Buffers for payloads.
    on_frame : callable (Peer, Frame)
        Called for each frame, on the loop.
    on_closed : callable (Peer, str)
        Called once, with the reason, when the link is gone, from whichever end.
    """

    def __init__(
        self,
        link: Link,
        allocate: Allocate,
        on_frame: Callable[[Peer, Frame], None],
        on_closed: Callable[[Peer, str], None],
    ) -> None:
        self.link = link
        self._allocate = allocate
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._queue: deque[Frame] = deque()
        self._wake = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        #: Nothing that still arrives counts, and nobody is told of the end.
        self._closed = False

    async def run(self) -> None:
        """Serve the link until it closes."""
        self._writer = asyncio.get_running_loop().create_task(self._write())
        reason = "closed"
        try:
            while True:
                frame = await self.link.receive(self._allocate)
                if not self._closed:
                    self._on_frame(self, frame)
                # Memory that was lent goes back when nobody holds it, not with the next frame.
                del frame
        except LinkClosedError:
            pass
        except ProtocolError as error:
            reason = str(error)
        finally:
            self.link.close()
            self._writer.cancel()
            if not self._closed:
                self._closed = True
                self._on_closed(self, reason)

    def send(self, frame: Frame) -> None:
        """Queue a frame; on a closed link it is dropped, as its receiver is gone."""
        if not self._closed:
            self._queue.append(frame)
            self._wake.set()

    def tell(self, message: dict[str, object]) -> None:
        """Queue a control message."""
        self.send(Frame(kind=Kind.CONTROL, prefix=message))

    def close(self) -> None:
        """Close now, silently: ``on_closed`` is not called."""
        self._closed = True
        self.link.close()

    def retire(self) -> None:
        """Send what is queued, then wait for the other end to close; nothing it says counts."""
        self._closed = True

    async def _write(self) -> None:
        try:
            while True:
                while self._queue:
                    await self.link.send(self._queue.popleft())
                self._wake.clear()
                await self._wake.wait()
        except LinkClosedError:
            self.link.close()
