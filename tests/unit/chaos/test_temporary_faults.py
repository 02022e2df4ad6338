"""Faults that end after a while do what their names say, and end."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticml.chaos import wall_clock
from elasticml.chaos.temporary_faults import full_disk, memory_limit
from elasticml.clusters.local.cluster import LocalWorker

#: Evaluates each line that it gets, and writes the value or the error's name.
_ANSWERING = """
import sys, time
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except (OSError, MemoryError) as error:
        print(type(error).__name__, flush=True)
"""


class Python:
    """An interpreter in another process, in this folder."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.worker = LocalWorker(name="w", address="tcp://w", pid=self.pid, state="running")

    def value(self, expression: str) -> str:
        """Evaluate an expression there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Callable[..., Python]]:
    """Interpreters that end with the test; without words, ones that answer."""
    (tmp_path / "answering.py").write_text(_ANSWERING)
    processes: list[Python] = []

    def start(*words: str) -> Python:
        processes.append(Python(tmp_path, *(words or ("answering.py",))))
        return processes[-1]

    yield start
    for process in processes:
        process.close()


def test_no_process_writes_to_a_full_disk_until_it_is_over(python: Callable[..., Python]) -> None:
    write = "open('file', 'wb', buffering=0).write(b'1')"
    scheduler, worker = python(), python()
    undo = full_disk(scheduler.pid)(random.Random(1), [worker.worker])
    assert [scheduler.value(write), worker.value(write)] == ["OSError", "OSError"]
    undo()
    assert [scheduler.value(write), worker.value(write)] == ["1", "1"]


def test_a_worker_without_memory_allocates_nothing_large_until_it_is_over(
    python: Callable[..., Python],
) -> None:
    process = python()
    process.value("0")
    undo = memory_limit(random.Random(1), [process.worker])
    assert process.value("len(bytes(1 << 24))") == "MemoryError"
    undo()
    assert process.value("len(bytes(1 << 24))") == str(1 << 24)
    process.close()
    undo()


def test_the_wall_clock_of_a_process_jumps_and_its_monotonic_clock_does_not(
    tmp_path: Path, python: Callable[..., Python]
) -> None:
    clock = tmp_path / "clock"
    wall_clock.set_offset(clock, 0.0)
    process = python("-m", wall_clock.__name__, str(clock), "answering")
    clocks = "time.time() - {}, time.time_ns() / 1e9 - {}, time.monotonic() - {}"

    def ahead() -> list[float]:
        """Read the clocks there; in units of 100 s."""
        filled = clocks.format(time.time(), time.time(), time.monotonic())
        return [round(x / 100.0) for x in ast.literal_eval(process.value(filled))]

    assert ahead() == [0, 0, 0]
    wall_clock.set_offset(clock, -3600.0)
    assert ahead() == [-36, -36, 0]
    wall_clock.set_offset(clock, 0.0)
    assert ahead() == [0, 0, 0]
