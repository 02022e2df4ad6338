"""Virtual time: a queue of actions, and processor cores that processes share."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

#: A function and its arguments.
Action = tuple[Callable[..., None], tuple[Any, ...]]


class Clock:
    """Runs actions at virtual times; actions at the same time run in the order of planning.

    The cost of an action grows only with the logarithm of the number of times on the heap. The heap
    contains times, not actions: numbers are compared faster than tuples, and members at the same
    depth of a tree are often due at the same time.
    """

    __slots__ = ("_due", "_is_interrupted", "_moments", "now_s", "performed", "waiting")

    def __init__(self) -> None:
        self.now_s = 0.0
        #: Number of actions performed, and of actions planned; exact between two runs.
        self.performed = 0
        self.waiting = 0
        self._is_interrupted = False
        self._moments: list[float] = []
        self._due: dict[float, list[Action]] = {}

    def at(self, t_s: float, action: Callable[..., None], *args: Any) -> None:
        """Plan an action for a time; a time in the past means now."""
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
        """Plan an action for ``seconds`` from now."""
        self.at(self.now_s + seconds, action, *args)

    def interrupt(self) -> None:
        """Make ``run`` return after the current action."""
        self._is_interrupted = True

    def run(self, until_s: float) -> None:
        """Perform the next action and further ones, until one interrupts or ``until_s`` is past."""
        self._is_interrupted = False
        moments = self._moments
        while moments:
            now_s = self.now_s = moments[0]
            planned, done = self._due[now_s], 0
            try:
                for action, args in planned:  # actions may append to it
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


class Processors:
    """Processor cores that all processes share, each working on one thing at a time.

    Parameters
    ----------
    cores : int or None
        None: every process has a core of its own.
    """

    __slots__ = ("_free_s",)

    def __init__(self, cores: int | None) -> None:
        #: When each core is free.
        self._free_s = [0.0] * (cores or 0)

    def done_s(self, begin_s: float, seconds: float) -> float:
        """Reserve a core from ``begin_s`` at the earliest; return when the work is done."""
        free_s = self._free_s
        if not free_s:
            return begin_s + seconds
        # The core that would be idle for the shortest time before; else the first one free.
        idle = [t_s for t_s in free_s if t_s <= begin_s]
        chosen_s = max(idle) if idle else min(free_s)
        done_s = max(begin_s, chosen_s) + seconds
        free_s[free_s.index(chosen_s)] = done_s
        return done_s
