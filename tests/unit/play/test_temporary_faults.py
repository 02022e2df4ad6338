"""Faults that end after a while do what their names say, and end."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elasticml.clusters.local.cluster import LocalWorker
from tests.play import wall_clock
from tests.play.faults import FAULTS, fill_disk
from tests.play.plan import Fault, Kind
from tests.play.worlds import can_mount, mounted_disk

ROOT = Path(__file__).resolve().parents[3]
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
            env={**os.environ, "PYTHONPATH": str(ROOT)},
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


@pytest.mark.parametrize(
    ("kind", "expression", "error"),
    [
        ("memory", "len(bytes(1 << 24)) > 0", "MemoryError"),
        ("descriptors", "open('answering.py').fileno() > 2", "OSError"),
    ],
)
def test_a_worker_has_no_more_memory_or_descriptors_until_it_is_over(
    python: Callable[..., Python], kind: Kind, expression: str, error: str
) -> None:
    process = python()
    assert process.value("True") == "True"
    no_world: Any = None
    undo = FAULTS[kind](no_world, Fault(kind=kind, at=0.0), [process.worker])
    assert undo is not None
    assert process.value(expression) == error
    undo()
    assert process.value(expression) == "True"
    process.close()
    undo()


@pytest.mark.skipif(not can_mount(), reason="mounts a file system")
def test_no_process_writes_to_a_full_disk_until_it_is_over(tmp_path: Path) -> None:
    with mounted_disk({"disk_mib": 4}, tmp_path):
        world: Any = SimpleNamespace(disk=tmp_path / "disk")
        undo = fill_disk(world, Fault(kind="full_disk", at=0.0), [])
        with pytest.raises(OSError, match="No space left"):
            (world.disk / "file").write_bytes(bytes(512))
        undo()
        assert (world.disk / "file").write_bytes(bytes(512)) == 512
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_damaged_byte_is_mended_once(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "rows"
    file.write_bytes(bytes(100))
    before = file.stat().st_mtime_ns
    world: Any = SimpleNamespace(folder=tmp_path)
    undo = FAULTS["damage"](world, Fault(kind="damage", at=0.0, amount=0.5), [])
    assert undo is not None
    assert file.read_bytes() == bytes(49) + b"\x55" + bytes(50)
    assert file.stat().st_mtime_ns == before
    undo()
    undo()
    assert file.read_bytes() == bytes(100)


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
