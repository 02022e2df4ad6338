"""The rate limit of background copies, which pauses while chunks are moved."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

#: Burst after a time without copies, in seconds of the rate.
BURST_S = 0.05


class RateLimiter:
    """A token bucket, and a gate that is closed while chunks are moved.

    Parameters
    ----------
    clock : callable
        Seconds, monotonic.
    pause : callable
        Sleeps for a number of seconds of ``clock``.
    """

    def __init__(
        self, clock: Callable[[], float], pause: Callable[[float], Awaitable[None]]
    ) -> None:
        self._clock = clock
        self._pause = pause
        #: When all granted bytes will have been sent, each at its own rate.
        self._free_s = -math.inf
        self._hurries = 0
        self._calm = asyncio.Event()
        self._calm.set()

    @contextmanager
    def hurry(self) -> Generator[None]:
        """Let no copy start during the block."""
        self._hurries += 1
        self._calm.clear()
        try:
            yield
        finally:
            self._hurries -= 1
            if self._hurries == 0:
                self._calm.set()

    async def wait_for(self, nbytes: int, bytes_per_s: float) -> None:
        """Wait until ``nbytes`` may be sent."""
        self._free_s = max(self._free_s, self._clock() - BURST_S) + nbytes / bytes_per_s
        due_s = self._free_s
        while (left_s := due_s - self._clock()) > 0:
            await self._pause(left_s)
        await self._calm.wait()
