"""Emulation of a slower network by bandwidth and latency, for tests and measurements.

All links of a process share one uplink, as they share a network card. A frame's ``send`` returns
when its last byte would have left, and the frame arrives one latency later. A single machine can
thus show how a job runs over Gigabit Ethernet or InfiniBand.
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
from elasticml.specification.sections import Collective

#: Tolerance for late wake-ups: an uplink idle for less than this keeps its full rate.
SLACK_S: Final = 5e-3

Clock = Callable[[], float]
Pause = Callable[[float], Awaitable[None]]


class Uplink:
    """The emulated network card, which sends bytes one after the other.

    Parameters
    ----------
    bytes_per_s : float
        Bandwidth; infinite to emulate latency only.
    latency_s : float
        Seconds from a frame's departure to its arrival.
    clock : callable
        Seconds, monotonic.
    pause : callable
        Sleeps for a number of seconds of the clock's time.
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
        """Queue ``nbytes``; return the time at which they will have left."""
        begins_s = max(self._free_s, self.clock() - SLACK_S)
        self._free_s = begins_s + nbytes / self.bytes_per_s
        return self._free_s

    async def until(self, moment_s: float) -> None:
        """Wait until a time of the clock."""
        while (left_s := moment_s - self.clock()) > 0:
            await self.pause(left_s)


class RateLimitedLink:
    """A link whose frames pass through an uplink; see ``transport.Link``."""

    def __init__(self, inner: Link, uplink: Uplink) -> None:
        self.hello = inner.hello
        self.peer = inner.peer
        #: Segmentation does not change the emulated time.
        self.piece_bytes = inner.piece_bytes
        self._inner = inner
        self._uplink = uplink
        #: Bytes of the frames that have left.
        self.sent_bytes = 0
        self._waiting_bytes = 0
        #: Time at which the last frame will have left.
        self._left_s = -math.inf
        #: Frames in flight, with their times of arrival.
        self._flying: deque[tuple[float, Frame]] = deque()
        self._has_flying = asyncio.Event()
        self._flight: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def direct(self) -> None:
        """None: sending and receiving need tasks here; see ``transport.Link``."""
        return None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that leave this process before the last byte of this link has left."""
        if self._waiting_bytes == 0 or math.isinf(self._uplink.bytes_per_s):
            return self._waiting_bytes
        left_s = self._left_s - self._uplink.clock()
        return max(1, round(left_s * self._uplink.bytes_per_s))

    async def send(self, frame: Frame) -> None:
        """Send a frame; return when it has left. Raises LinkClosedError."""
        if self._is_closed:
            raise LinkClosedError(f"the link to {self.peer} is closed")
        head, payload = frame.encode()
        nbytes = len(head) + (0 if payload is None else payload.nbytes)
        if payload is not None:
            # The sender may reuse the payload when it has left, which is before it arrives.
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
            self._flight = asyncio.get_running_loop().create_task(self._deliver())

    async def _deliver(self) -> None:
        """Deliver frames in order at their times of arrival."""
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
        """Read the next frame; the sending end has already delayed it."""
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
        """Open a link without shared memory, which would bypass the emulation."""
        link = await self._inner.connect(address, {**hello, "transport": "stream"})
        return RateLimitedLink(link, self._uplink)

    def listen(self, on_link: OnLink) -> None:
        """Pass links that peers open to ``on_link``, rate-limited."""

        async def limited(link: Link) -> None:
            await on_link(RateLimitedLink(link, self._uplink))

        self._inner.listen(limited)

    def limit(self, link: Link) -> Link:
        """Return a link, opened or accepted elsewhere, that passes through this uplink."""
        return RateLimitedLink(link, self._uplink)

    def lendable(self, nbytes: int) -> NDArray[np.float64] | None:
        """Return None: there is no shared memory."""
        return None

    def close(self) -> None:
        """Close the transport below."""
        self._inner.close()


def limited(
    transport: Transport, rates: Mapping[str, Any], clock: Clock, pause: Pause = asyncio.sleep
) -> Transport:
    """Wrap a transport as a hello asks; else return it as is.

    Parameters
    ----------
    rates : mapping
        ``bandwidth`` in bytes per second and ``latency_s``; None or 0 means no limit.
    """
    bandwidth, latency_s = rates.get("bandwidth"), rates.get("latency_s")
    if not bandwidth and not latency_s:
        return transport
    uplink = Uplink(bandwidth or math.inf, latency_s or 0.0, clock=clock, pause=pause)
    return RateLimitedTransport(transport, uplink)


def hello_of(collective: Collective) -> dict[str, Any]:
    """Return the part of a job's ``collective`` section that a member needs to open links."""
    rates = {"bandwidth": collective.bandwidth, "latency_s": collective.latency_s}
    return {"transport": collective.transport, **{k: v for k, v in rates.items() if v}}
