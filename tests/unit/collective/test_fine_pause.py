"""Pauses by a timer of the kernel: none ends too early, and nothing is left of any."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import pytest

from elasticml.collective import fine_pause as module
from elasticml.collective.fine_pause import FINE_S_MAX, fine_pause


def n_open() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were left to ``asyncio.sleep``."""
    found: list[float] = []
    plain = asyncio.sleep

    async def noted(seconds: float) -> None:
        found.append(seconds)
        await plain(0)

    monkeypatch.setattr(module.asyncio, "sleep", noted)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="timers that are files are Linux's")
def test_short_pauses_are_the_kernel_s_and_end_in_their_order(slept: list[float]) -> None:
    async def several() -> tuple[list[float], float]:
        ended: list[float] = []

        async def one(seconds: float) -> None:
            await fine_pause(seconds)
            ended.append(seconds)

        began_s = time.monotonic()
        await asyncio.gather(*map(one, (0.02, 1e-4, 0.01)))
        return ended, time.monotonic() - began_s

    before = n_open()
    ended, took_s = asyncio.run(several())
    assert ended == [1e-4, 0.01, 0.02]
    assert took_s >= 0.02
    assert (slept, n_open()) == ([], before)


@pytest.mark.parametrize("seconds", [0.0, 2 * FINE_S_MAX, 5.0])
def test_others_are_the_loop_s(slept: list[float], seconds: float) -> None:
    asyncio.run(fine_pause(seconds))
    assert slept == [seconds]


@pytest.mark.parametrize("library", [None, (lambda *_: -1, lambda *_: 0)])
def test_without_a_timer_all_are_the_loop_s(
    slept: list[float], monkeypatch: pytest.MonkeyPatch, library: Any
) -> None:
    monkeypatch.setattr(module, "_library", lambda: library)
    asyncio.run(fine_pause(0.001))
    assert slept == [0.001]


def test_a_pause_that_is_cancelled_leaves_no_timer() -> None:
    async def cancelled() -> int:
        before = n_open()
        pause = asyncio.ensure_future(fine_pause(FINE_S_MAX))
        await asyncio.sleep(0)
        during = n_open() - before
        pause.cancel()
        await asyncio.gather(pause, return_exceptions=True)
        assert pause.cancelled()
        assert n_open() == before
        return during

    assert asyncio.run(cancelled()) == (1 if module._library() else 0)
