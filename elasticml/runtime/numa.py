"""The NUMA nodes of this machine, how many of them threads span, and threads that stay on one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/devices/system/node")


def numa_nodes(root: Path = _ROOT) -> tuple[tuple[int, ...], ...]:
    """Return the cores of each node that this process may use; nothing where no system says."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    found = []
    for folder in sorted(root.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        try:
            listed = cores_of((folder / "cpulist").read_text())
        except OSError:
            continue
        usable = tuple(core for core in listed if core in allowed)
        if usable:
            found.append(usable)
    return tuple(found)


def cores_of(text: str) -> tuple[int, ...]:
    """Read a list of cores as the kernel writes it, such as ``0-3,8-11``."""
    cores: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores += range(int(first), int(last or first) + 1)
    return tuple(cores)


def node_cores() -> tuple[int, ...]:
    """Return how many cores this process may use on each node."""
    return tuple(len(cores) for cores in numa_nodes())


def spanned(n_threads: int, cores: Sequence[int]) -> int:
    """Return the fewest nodes, of so many cores each, that have one for every thread.

    All of them where there are more threads than cores; at least 1, at most a node a thread.
    """
    room = 0
    for count, some in enumerate(sorted(cores, reverse=True), start=1):
        room += some
        if room >= n_threads:
            return count
    return max(1, min(len(cores), n_threads))


def pin_thread(cores: Sequence[int]) -> None:
    """Have the calling thread run on these cores alone, where the system permits it."""
    if cores and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, cores)
        except OSError:
            return  # a container that was given other cores meanwhile: it is only slower
