"""Calls in threads of their own, and what becomes of them when those end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from elasticml.runtime.execution import ThreadRunner


def test_calls_that_wait_or_come_after_the_end_are_cancelled():
    async def close_within_a_call() -> None:
        runner, is_open = ThreadRunner("em-test"), threading.Event()
        first = asyncio.create_task(runner.run(is_open.wait))
        second = asyncio.create_task(runner.run(int, "2"))
        await asyncio.sleep(0)
        runner.close()
        third = asyncio.create_task(runner.run(int, "3"))
        is_open.set()
        assert await first is True
        for late in (second, third):
            with pytest.raises(asyncio.CancelledError):
                await late

    asyncio.run(close_within_a_call())


def test_as_many_calls_run_at_once_as_there_are_threads():
    async def meet() -> None:
        runner, together = ThreadRunner("em-test", 2), threading.Barrier(2, timeout=60)
        places = await asyncio.gather(*(runner.run(together.wait) for _ in range(4)))
        runner.close()
        assert sorted(places) == [0, 0, 1, 1]

    asyncio.run(meet())
