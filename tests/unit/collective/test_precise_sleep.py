"""Precise sleep by a kernel timer: never too short, and no timer left open."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from elasticml.collective import precise_sleep as module
from elasticml.collective.precise_sleep import ASYNCIO_EARLY_S, FINE_S_MAX, precise_sleep

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="timers that are files are Linux's")


class Timers:
    """Kernel timers that were opened, and those that were closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[int] = []
        self.closed: list[int] = []
        plain = module._timer

        def opens(seconds: float) -> int | None:
            timer = plain(seconds)
            self.opened += [] if timer is None else [timer]
            return timer

        def closes(timer: int) -> None:
            self.closed.append(timer)
            os.close(timer)

        monkeypatch.setattr(module, "_timer", opens)
        monkeypatch.setattr(module, "os", SimpleNamespace(close=closes))


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    return Timers(monkeypatch)


def oversleep(seconds: float) -> float:
    """Sleep; return how much longer it took."""

    async def paused() -> float:
        began_ns = time.monotonic_ns()
        await precise_sleep(seconds)
        return time.monotonic_ns() - began_ns - 1e9 * seconds

    return asyncio.run(paused())


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were left to ``asyncio.sleep``."""
    results: list[float] = []
    plain = asyncio.sleep

    async def noted(seconds: float) -> None:
        results.append(seconds)
        await plain(0)

    monkeypatch.setattr(module.asyncio, "sleep", noted)
    return results


@LINUX
def test_short_sleeps_use_the_kernel_s_timer_and_are_never_too_short(
    slept: list[float], timers: Timers
) -> None:
    async def several() -> None:
        await asyncio.gather(*map(one, (FINE_S_MAX, 1e-4, 0.01)))

    async def one(seconds: float) -> None:
        began_ns = time.monotonic_ns()
        await precise_sleep(seconds)
        assert time.monotonic_ns() - began_ns >= round(1e9 * seconds)

    asyncio.run(several())
    assert slept == []
    assert len(timers.opened) == 3
    assert sorted(timers.closed) == sorted(timers.opened)


@LINUX
def test_long_sleeps_end_by_the_kernel_s_timer_too(slept: list[float], timers: Timers) -> None:
    # asyncio's share takes no time here: the timer waits for all of it.
    seconds = 1.5 * FINE_S_MAX
    assert oversleep(seconds) >= -1.0
    assert slept == [seconds - ASYNCIO_EARLY_S]
    assert len(timers.opened) == 1
    assert timers.closed == timers.opened


@LINUX
def test_a_long_sleep_that_asyncio_ends_too_late_needs_no_timer(
    timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = asyncio.sleep
    waited: list[float] = []

    async def late(seconds: float) -> None:
        waited.append(seconds)
        await plain(max(0.0, seconds) + 2 * ASYNCIO_EARLY_S)

    monkeypatch.setattr(module.asyncio, "sleep", late)
    asyncio.run(precise_sleep(1.5 * FINE_S_MAX))
    assert waited[0] == 1.5 * FINE_S_MAX - ASYNCIO_EARLY_S
    assert timers.opened == []


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_sleep_of_zero_is_the_loop_s(slept: list[float], timers: Timers, seconds: float) -> None:
    asyncio.run(precise_sleep(seconds))
    assert (slept, timers.opened) == ([seconds], [])


@pytest.mark.parametrize(
    ("library", "seconds"),
    [(None, 0.001), (None, 5.0), ((lambda *_: -1, lambda *_: 0), 0.001)],
)
def test_without_timers_all_sleeps_are_the_loop_s(
    slept: list[float], monkeypatch: pytest.MonkeyPatch, library: Any, seconds: float
) -> None:
    monkeypatch.setattr(module, "_library", lambda: library)
    asyncio.run(precise_sleep(seconds))
    assert slept == [seconds]


@LINUX
def test_a_cancelled_sleep_leaves_no_timer(timers: Timers) -> None:
    async def cancelled() -> None:
        pause = asyncio.ensure_future(precise_sleep(FINE_S_MAX))
        await asyncio.sleep(0)
        assert len(timers.opened) == 1
        assert timers.closed == []
        pause.cancel()
        await asyncio.gather(pause, return_exceptions=True)
        assert pause.cancelled()

    asyncio.run(cancelled())
    assert timers.closed == timers.opened
