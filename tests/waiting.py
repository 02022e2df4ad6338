"""Polling for processes and clusters that send no notification."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")
WAIT_S = 150.0
LOOK_S = 0.1
#: What asyncio prints if a process ends its loop just when a deadline of Dask's sends passes.
LOST_DEADLINE = """\
Future exception was never retrieved
future: <Future finished exception=TimeoutError('Timeout')>
TimeoutError: Timeout
"""


def until(
    is_so: Callable[[], T],
    what: str | Callable[[], str],
    wait_s: float = WAIT_S,
    look_s: float = LOOK_S,
) -> T:
    """Poll until a condition holds, and return its value; fail on timeout."""
    until_s = time.monotonic() + wait_s
    while not (result := is_so()):
        if time.monotonic() > until_s:
            pytest.fail(f"not within {wait_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(look_s)
    return result
