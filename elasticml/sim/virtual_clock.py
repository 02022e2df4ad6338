"""Virtual time: actions on a heap of moments, performed in the order of their times."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

#: What is to be done, and with what.
Action = tuple[Callable[..., None], tuple[Any, ...]]


class Clock:
    """What happens when; what is due at one moment happens in the order in which it was planned.

    An action's cost does not depend on how many others wait, but for the heap's logarithm. The heap
    is of moments, not of actions: numbers are compared faster than tuples, and members at the same
    depth of a tree are often due at one moment.
    """

    __slots__ = ("_due", "_is_interrupted", "_moments", "now_s", "performed", "waiting")

    def __init__(self) -> None:
        self.now_s = 0.0
        #: Actions performed so far, and actions that are planned; both between two runs.
        self.performed = 0
        self.waiting = 0
        self._is_interrupted = False
        self._moments: list[float] = []
        self._due: dict[float, list[Action]] = {}

    def at(self, t_s: float, action: Callable[..., None], *args: Any) -> None:
        """Plan an action for a moment; the past is now."""
        now_s = self.now_s
        if t_s < now_s:
            t_s = now_s
        self.waiting += 1
        planned = self._due.get(t_s)
        if planned is None:
            self._due[t_s] = [(action, args)]
            heapq.heappush(self._moments, t_s)
        else:
            planned.append((action, args))

    def after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Plan an action for so many seconds from now."""
        self.at(self.now_s + seconds, action, *args)

    def interrupt(self) -> None:
        """Let ``run`` return after the action that is being performed."""
        self._is_interrupted = True

    def run(self, until_s: float) -> None:
        """Perform the next action, and those after it until one interrupts or time is up."""
        self._is_interrupted = False
        moments = self._moments
        while moments:
            now_s = self.now_s = moments[0]
            planned, done = self._due[now_s], 0
            try:
                for action, args in planned:  # which may grow meanwhile
                    done += 1
                    action(*args)
                    if self._is_interrupted or now_s > until_s:
                        return
            finally:
                self.performed += done
                self.waiting -= done
                del planned[:done]
            heapq.heappop(moments)
            del self._due[now_s]
