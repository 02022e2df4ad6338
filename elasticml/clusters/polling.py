"""Waiting for what nobody tells: YARN, its daemons and its files have to be asked again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from elasticml.errors import ConfigError

T = TypeVar("T")


def until(is_so: Callable[[], bool], *, wait_s: float, every_s: float) -> bool:
    """Ask until something is so; return whether it was within so many seconds."""
    until_s = time.monotonic() + wait_s
    while not is_so():
        if time.monotonic() > until_s:
            return False
        time.sleep(every_s)
    return True


def persistently(act: Callable[[], T], *, tries: int, pause_s: float) -> T:
    """Do what needs a place that may be away for a while.

    Raises
    ------
    ConfigError
        When it stays away.
    """
    for _ in range(tries - 1):
        try:
            return act()
        except ConfigError:
            time.sleep(pause_s)
    return act()
