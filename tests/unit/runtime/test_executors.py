"""Calls in separate threads, and their fate when those end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from elasticml.runtime.executors import (
    BRIEF_AGAIN,
    BRIEF_MIN,
    BRIEF_S,
    BRIEF_WALL_S,
    NEARLY_BRIEF_S,
    NOT_BRIEF,
    BriefRunner,
    Long,
    ThreadRunner,
)


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


def _never() -> float:
    """Return a clock that does not advance."""
    return 0.0


def is_on_loop(runner: BriefRunner, durations: list[float], now: list[float]) -> list[bool]:
    """Return, for calls of these durations, whether each was made on the event loop."""

    def step(seconds: float) -> bool:
        now[0] += seconds
        return threading.current_thread() is threading.main_thread()

    async def steps() -> list[bool]:
        return [await runner.run(step, seconds) for seconds in durations]

    return asyncio.run(steps())


def test_calls_that_have_been_brief_repeatedly_are_made_on_the_loop():
    now = [0.0]
    runner = BriefRunner("em-test", lambda: now[0], lambda: 0.0)
    brief, longer, long = 0.5 * BRIEF_S, 2 * BRIEF_S, 2 * NEARLY_BRIEF_S
    assert is_on_loop(runner, [long], now) == [False]
    result = is_on_loop(runner, [brief] * (BRIEF_AGAIN + BRIEF_MIN), now)
    assert result == [False] * (BRIEF_AGAIN + BRIEF_MIN)
    # A call that was long on the loop sends all later ones back to the thread.
    assert is_on_loop(runner, [brief, brief, long, brief], now) == [True, True, True, False]
    fresh = BriefRunner("em-test", lambda: now[0], lambda: 0.0)
    assert is_on_loop(fresh, [brief] * (BRIEF_MIN + 1), now) == [False] * BRIEF_MIN + [True]
    # One call in ten may be a little longer, more may not.
    once, often = [*[brief] * NOT_BRIEF, longer], [brief] * (NOT_BRIEF - 1) + [longer]
    assert all(is_on_loop(fresh, once * 100, now)[BRIEF_MIN:])
    assert not all(is_on_loop(fresh, often * 100, now))
    # Sleeping counts like computing.
    sleeps = BriefRunner("em-test", _never, lambda: now[0])
    brief, long = 0.5 * BRIEF_WALL_S, 2 * BRIEF_WALL_S
    result = is_on_loop(sleeps, [brief] * BRIEF_MIN + [long, brief], now)
    assert result == [False] * BRIEF_MIN + [True, False]
    for made in (runner, fresh, sleeps):
        made.close()


def test_a_call_announced_as_long_runs_in_the_thread_and_affects_no_other():
    runner = BriefRunner("em-test", _never, _never)

    def is_on_loop() -> bool:
        return threading.current_thread() is threading.main_thread()

    async def calls() -> list[bool]:
        for _ in range(BRIEF_MIN):
            await runner.run(is_on_loop)
        return [await runner.run(call) for call in (is_on_loop, Long(is_on_loop), is_on_loop)]

    assert asyncio.run(calls()) == [True, False, True]
    runner.close()


def test_a_brief_call_waits_for_the_thread_and_an_error_passes_through():
    async def in_order() -> list[str]:
        runner, done, is_open = BriefRunner("em-test", _never, _never), [], threading.Event()

        def brief(word: str) -> None:
            done.append(word)

        def waits() -> None:
            is_open.wait()
            done.append("waited")

        def fails() -> None:
            raise ValueError("no")

        for _ in range(BRIEF_MIN):
            await runner.run(brief, "-")
        first = asyncio.create_task(runner.run(waits))
        await asyncio.sleep(0)
        second = asyncio.create_task(runner.run(brief, "after"))
        await asyncio.sleep(0)
        is_open.set()
        await asyncio.gather(first, second)
        for _ in range(BRIEF_MIN + 1):
            with pytest.raises(ValueError, match="no"):
                await runner.run(fails)
        runner.close()
        with pytest.raises(asyncio.CancelledError):
            await runner.run(brief, "late")
        return done[BRIEF_MIN:]

    assert asyncio.run(in_order()) == ["waited", "after"]
