"""Poll a condition, or retry an action, where clusters and file systems send no event."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from elasticml.errors import ConfigError

T = TypeVar("T")


def until(is_so: Callable[[], bool], *, wait_s: float, every_s: float) -> bool:
    """Poll a condition every ``every_s`` seconds; return whether it held within ``wait_s``."""
    until_s = time.monotonic() + wait_s
    while not is_so():
        if time.monotonic() > until_s:
            return False
        time.sleep(every_s)
    return True


def retry(act: Callable[[], T], *, tries: int, pause_s: float) -> T:
    """Retry an action that raises ``ConfigError`` while a file system is unreachable.

    Raises
    ------
    ConfigError
        When the last try fails.
    """
    for _ in range(tries - 1):
        try:
            return act()
        except ConfigError:
            time.sleep(pause_s)
    return act()
