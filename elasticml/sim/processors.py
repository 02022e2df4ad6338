"""Processor cores that the processes of a virtual world share."""

from __future__ import annotations


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
