"""Virtual time: actions on a heap, performed in the order of their times."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sized
from typing import Any


class Clock:
    """What happens when; what is due at one moment happens in the order in which it was planned.

    An action's cost does not depend on how many others wait, but for the heap's logarithm.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        #: Actions performed so far.
        self.performed = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._next = 0

    def at(self, t_s: float, action: Callable[..., None], *args: Any) -> None:
        """Plan an action for a moment; the past is now."""
        now_s = self.now_s
        heapq.heappush(self._heap, (t_s if t_s > now_s else now_s, self._next, action, args))
        self._next += 1

    def after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Plan an action for so many seconds from now."""
        now_s = self.now_s
        t_s = now_s + seconds if seconds > 0 else now_s
        heapq.heappush(self._heap, (t_s, self._next, action, args))
        self._next += 1

    @property
    def waiting(self) -> int:
        """Actions that are planned."""
        return len(self._heap)

    def run(self, watched: Sized, until_s: float) -> None:
        """Perform the next action, and those after it until a collection grows or time is up."""
        heap, n = self._heap, len(watched)
        while heap:
            self.now_s, _, action, args = heapq.heappop(heap)
            self.performed += 1
            action(*args)
            if len(watched) != n or self.now_s > until_s:
                return
