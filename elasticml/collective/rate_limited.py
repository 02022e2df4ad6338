"""A network that is slower than the real one: bytes per second and latency, for tests and figures.

What one process sends on all its links together leaves through one uplink, as through a network
card: a frame's ``send`` returns when its last byte would have left, and the frame arrives a latency
later. So one machine shows what a Gigabit Ethernet or an InfiniBand would do to a job.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.collective.frames import Frame
from elasticml.collective.transport import Allocate, Link, LinkClosedError, OnLink, Transport

#: Seconds by which the uplink may be ahead of the clock's coarse wake-ups without losing its rate.
SLACK_S: Final = 5e-3

Clock = Callable[[], float]
Pause = Callable[[float], Awaitable[None]]


class Uplink:
    """When bytes leave that are sent one after the other.

    Parameters
    ----------
    bytes_per_s : float
        Infinite where only the latency counts.
    latency_s : float
        From a frame's leaving to its arrival.
    clock : callable
        Seconds, monotonic.
    pause : callable
        Waits for so many seconds, on the clock's time.
    """

    def __init__(
        self,
        bytes_per_s: float = math.inf,
        latency_s: float = 0.0,
        *,
        clock: Clock,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self.latency_s = latency_s
        self.clock = clock
        self.pause = pause
        self._free_s = -math.inf

    def take(self, nbytes: int) -> float:
        """Put so many bytes behind those before them; returns when they will have left."""
        begins_s = max(self._free_s, self.clock() - SLACK_S)
        self._free_s = begins_s + nbytes / self.bytes_per_s
        return self._free_s

    async def until(self, moment_s: float) -> None:
        """Wait until a moment of the clock."""
        while (left_s := moment_s - self.clock()) > 0:
            await self.pause(left_s)


class RateLimitedLink:
    """A link whose frames leave through an uplink; see ``transport.Link``."""

    def __init__(self, inner: Link, uplink: Uplink) -> None:
        self.hello = inner.hello
        self.peer = inner.peer
        #: Cut or whole, frames take the same time here.
        self.piece_bytes = inner.piece_bytes
        self._inner = inner
        self._uplink = uplink
        #: Bytes of the frames that have left.
        self.sent_bytes = 0
        self._waiting_bytes = 0
        #: When the last of them will have left.
        self._left_s = -math.inf
        #: Frames that have left and not arrived, with the moments of their arrival.
        self._flying: deque[tuple[float, Frame]] = deque()
        self._has_flying = asyncio.Event()
        self._flight: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def direct(self) -> None:
        """See ``transport.Link``: sending and receiving need tasks here."""
        return None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that leave this process until the last of this link's has left."""
        if self._waiting_bytes == 0 or math.isinf(self._uplink.bytes_per_s):
            return self._waiting_bytes
        left_s = self._left_s - self._uplink.clock()
        return max(1, round(left_s * self._uplink.bytes_per_s))

    async def send(self, frame: Frame) -> None:
        """Send a frame; returns when it has left. Raises LinkClosedError."""
        if self._is_closed:
            raise LinkClosedError(f"the link to {self.peer} is closed")
        head, payload = frame.encode()
        nbytes = len(head) + (0 if payload is None else payload.nbytes)
        if payload is not None:
            # Whoever sends may write to it as soon as it has left; it arrives later.
            copy = np.frombuffer(payload, np.uint8).copy()
            frame = replace(frame, payload=copy.data)
        left_s = self._left_s = self._uplink.take(nbytes)
        self._waiting_bytes += nbytes
        try:
            await self._uplink.until(left_s)
        finally:
            self._waiting_bytes -= nbytes
        if self._is_closed:
            raise LinkClosedError(f"the link to {self.peer} is closed")
        self.sent_bytes += nbytes
        self._flying.append((left_s + self._uplink.latency_s, frame))
        self._has_flying.set()
        if self._flight is None:
            self._flight = asyncio.get_running_loop().create_task(self._fly())

    async def _fly(self) -> None:
        """Let frames arrive in their order."""
        try:
            while True:
                while self._flying:
                    arrives_s, frame = self._flying.popleft()
                    await self._uplink.until(arrives_s)
                    await self._inner.send(frame)
                self._has_flying.clear()
                await self._has_flying.wait()
        except LinkClosedError:
            self.close()

    async def receive(self, allocate: Allocate) -> Frame:
        """Read the next frame: the other end has limited it."""
        return await self._inner.receive(allocate)

    def close(self) -> None:
        """Close at once."""
        self._is_closed = True
        if self._flight is not None:
            self._flight.cancel()
        self._inner.close()


class RateLimitedTransport:
    """A transport whose links share one uplink; see ``transport.Transport``.

    Parameters
    ----------
    inner : Transport
    uplink : Uplink
    """

    def __init__(self, inner: Transport, uplink: Uplink) -> None:
        self._inner = inner
        self._uplink = uplink

    @property
    def address(self) -> str:
        """Address of the transport below."""
        return self._inner.address

    async def connect(self, address: str, hello: Mapping[str, Any]) -> Link:
        """Open a link; through no shared memory, whose bytes would not travel."""
        link = await self._inner.connect(address, {**hello, "transport": "stream"})
        return RateLimitedLink(link, self._uplink)

    def listen(self, on_link: OnLink) -> None:
        """Hand links over, limited."""

        async def limited(link: Link) -> None:
            await on_link(RateLimitedLink(link, self._uplink))

        self._inner.listen(limited)

    def limit(self, link: Link) -> Link:
        """Have a link that was opened or accepted elsewhere leave through this uplink, too."""
        return RateLimitedLink(link, self._uplink)

    def lendable(self, nbytes: int) -> NDArray[np.float64] | None:
        """Return None: nothing is lent."""
        return None

    def close(self) -> None:
        """Close the transport below."""
        self._inner.close()


def limited(
    transport: Transport, rates: Mapping[str, Any], clock: Clock, pause: Pause = asyncio.sleep
) -> Transport:
    """Limit a transport as a job's ``collective`` section, or a hello, says; or leave it as it is.

    Parameters
    ----------
    rates : mapping
        ``bandwidth`` in bytes per second and ``latency_s``; None or 0 is without limit.
    """
    bandwidth, latency_s = rates.get("bandwidth"), rates.get("latency_s")
    if not bandwidth and not latency_s:
        return transport
    uplink = Uplink(bandwidth or math.inf, latency_s or 0.0, clock=clock, pause=pause)
    return RateLimitedTransport(transport, uplink)


def hello_of(collective: Mapping[str, Any]) -> dict[str, Any]:
    """Choose what a member must know of a job's ``collective`` section to open links."""
    rates = {name: collective[name] for name in ("bandwidth", "latency_s") if collective.get(name)}
    return {"transport": collective.get("transport", "auto"), **rates}
