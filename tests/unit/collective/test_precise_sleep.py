"""Precise sleep by a kernel timer: never too short, and no timer left open."""

from __future__ import annotations

import asyncio
import os
import resource
import time

import pytest

from elasticml.collective.precise_sleep import FINE_S_MAX, precise_sleep


def timers() -> int:
    """Count this process's open kernel timers."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return links.count("anon_inode:[timerfd]")


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e-4, FINE_S_MAX, 1.5 * FINE_S_MAX])
def test_sleeps_are_never_too_short_and_leave_no_timer(seconds: float) -> None:
    async def several() -> None:
        began_ns = time.monotonic_ns()
        await asyncio.gather(*(precise_sleep(seconds) for _ in range(3)))
        assert time.monotonic_ns() - began_ns >= round(1e9 * seconds)

    before = timers()
    asyncio.run(several())
    assert timers() == before


def test_without_a_free_descriptor_the_loop_sleeps() -> None:
    async def sleeps() -> None:
        free = os.dup(0)
        os.close(free)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            began_ns = time.monotonic_ns()
            await precise_sleep(1e-3)
            assert time.monotonic_ns() - began_ns >= 10**6
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    asyncio.run(sleeps())
