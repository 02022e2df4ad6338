"""How fast a member may copy chunks in the background, and when it must not copy at all."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

#: Seconds' worth of bytes that may be sent at once after a time without copies.
BURST_S = 0.05


class RateLimiter:
    """A bucket of bytes that fills with time, and a gate that is shut while there is a hurry.

    Parameters
    ----------
    clock : callable
        Seconds, monotonic.
    pause : callable
        Waits for so many seconds, on the clock's time.
    """

    def __init__(
        self, clock: Callable[[], float], pause: Callable[[float], Awaitable[None]]
    ) -> None:
        self._clock = clock
        self._pause = pause
        #: When the bytes that have been granted would all be sent at the rate of each.
        self._free_s = -math.inf
        self._hurries = 0
        self._calm = asyncio.Event()
        self._calm.set()

    @contextmanager
    def hurry(self) -> Generator[None]:
        """Let no further copy begin meanwhile."""
        self._hurries += 1
        self._calm.clear()
        try:
            yield
        finally:
            self._hurries -= 1
            if self._hurries == 0:
                self._calm.set()

    async def wait_for(self, nbytes: int, bytes_per_s: float) -> None:
        """Return when so many bytes may be sent."""
        self._free_s = max(self._free_s, self._clock() - BURST_S) + nbytes / bytes_per_s
        due_s = self._free_s
        while (left_s := due_s - self._clock()) > 0:
            await self._pause(left_s)
        await self._calm.wait()
