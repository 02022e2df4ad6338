"""A process whose wall clock another process sets: ``python -m tests.play.wall_clock``.

    python -m tests.play.wall_clock FILE MODULE [WORDS]

runs a module as ``python -m MODULE WORDS`` does. ``time.time`` and ``time.time_ns`` are those of
the machine plus the seconds in FILE, which :func:`set_offset` writes. ``datetime.now`` is not
changed, and neither are the monotonic clocks, as when an administrator sets the time.
"""

from __future__ import annotations

import mmap
import os
import runpy
import struct
import sys
import time
from pathlib import Path
from typing import Final

_FORMAT: Final = "<d"


def set_offset(file: Path, seconds: float) -> None:
    """Set the seconds by which the clock of the processes with this file is ahead."""
    # Never truncated: processes have mapped it.
    with open(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "wb") as opened:
        opened.write(struct.pack(_FORMAT, seconds))


def _install(file: str) -> None:
    with open(file, "rb") as opened:
        offset = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    machine_time = time.time

    def now_s() -> float:
        return machine_time() + float(struct.unpack_from(_FORMAT, offset)[0])

    time.time, time.time_ns = now_s, lambda: int(1e9 * now_s())


if __name__ == "__main__":
    _install(sys.argv[1])
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
