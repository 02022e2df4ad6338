"""Sleep on the event loop with an error below 0.1 ms.

``asyncio.sleep`` is rounded to whole milliseconds by epoll. A kernel timer with a file descriptor
(``timerfd``) wakes the event loop as a socket does, when it expires.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import struct
from collections.abc import Callable
from typing import Any, Final

#: A longer sleep uses asyncio until ``ASYNCIO_EARLY_S`` seconds before its end, and then a timer.
FINE_S_MAX: Final = 0.02
ASYNCIO_EARLY_S: Final = 0.005
#: ``CLOCK_MONOTONIC`` and ``TFD_NONBLOCK | TFD_CLOEXEC`` of Linux.
_CLOCK, _FLAGS = 1, os.O_NONBLOCK | os.O_CLOEXEC
#: ``struct itimerspec``: interval and first expiry, seconds and nanoseconds each.
_SPEC: Final = struct.Struct("@4l")


async def precise_sleep(seconds: float) -> None:
    """Sleep for ``seconds``; falls back to ``asyncio.sleep`` without a timer."""
    loop = asyncio.get_running_loop()
    if seconds > FINE_S_MAX and _library() is not None:
        ends_s = loop.time() + seconds
        await asyncio.sleep(seconds - ASYNCIO_EARLY_S)
        seconds = ends_s - loop.time()
    timer = None if seconds <= 0.0 else _timer(seconds)
    if timer is None:
        await asyncio.sleep(seconds)
        return
    due: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(timer, _end, due)
        await due
    finally:
        loop.remove_reader(timer)
        os.close(timer)


def _end(due: asyncio.Future[None]) -> None:
    if not due.done():
        due.set_result(None)


def _timer(seconds: float) -> int | None:
    """Open a one-shot timer; None if this system provides none."""
    library = _library()
    if library is None:
        return None
    create, set_time = library
    timer: int = create(_CLOCK, _FLAGS)
    if timer < 0:
        return None
    if set_time(timer, 0, _SPEC.pack(0, 0, 0, max(1, round(seconds * 1e9))), None):
        os.close(timer)
        return None
    return timer


@functools.cache
def _library() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    try:
        library = ctypes.CDLL(None)
        return library.timerfd_create, library.timerfd_settime
    except (OSError, AttributeError):
        return None
