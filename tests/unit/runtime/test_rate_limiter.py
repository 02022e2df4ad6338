"""Copies respect their rate and wait for urgent transfers."""

from __future__ import annotations

import asyncio

import pytest

from elasticml.runtime.chunks.rate_limiter import BURST_S, RateLimiter

pytestmark = pytest.mark.asyncio


class ManualClock:
    """A clock that advances when a task waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    async def pause(self, seconds: float) -> None:
        self.now_s += seconds


async def test_bytes_are_granted_at_the_rate_after_a_burst() -> None:
    time = ManualClock()
    pace = RateLimiter(time.clock, time.pause)
    for _ in range(10):
        await pace.wait_for(100, 1000.0)
    assert time.now_s == pytest.approx(10 * 0.1 - BURST_S)


async def test_idle_time_is_not_saved_up() -> None:
    time = ManualClock()
    pace = RateLimiter(time.clock, time.pause)
    time.now_s = 50.0
    for _ in range(10):
        await pace.wait_for(100, 1000.0)
    assert time.now_s - 50.0 == pytest.approx(10 * 0.1 - BURST_S)


async def test_no_copy_starts_during_an_urgent_transfer() -> None:
    time = ManualClock()
    pace = RateLimiter(time.clock, time.pause)
    with pace.hurry():
        with pace.hurry():
            copying = asyncio.ensure_future(pace.wait_for(1, 1000.0))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        before = copying.done()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (before, copying.done()) == (False, True)
