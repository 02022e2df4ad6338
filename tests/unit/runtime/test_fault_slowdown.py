"""A slowed member does real extra work on every thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from elasticml.runtime.fault_injection import FaultSlowdown


class RecordingThreads:
    """Runs calls inline and records the amount of work."""

    n_threads = 3

    def __init__(self) -> None:
        self.items: list[float] = []

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        self.items += items
        return [function(item) for item in items]


def test_the_factor_determines_the_cpu_time_added_on_each_thread() -> None:
    threads = RecordingThreads()
    began_s = time.thread_time()
    FaultSlowdown(1.5).add(0.004, threads)
    spent_s = time.thread_time() - began_s
    assert threads.items == [0.002] * 3
    assert spent_s >= 0.006


def test_a_factor_of_one_adds_nothing() -> None:
    threads = RecordingThreads()
    FaultSlowdown().add(10.0, threads)
    assert threads.items == []
