"""The NUMA nodes of this machine: their cores, how many of them threads span, thread pinning."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/devices/system/node")


def numa_nodes(root: Path = _ROOT) -> tuple[tuple[int, ...], ...]:
    """Return the cores of each node that this process may use; empty if the system lists none."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    nodes = []
    for folder in sorted(root.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        try:
            listed = cores_of((folder / "cpulist").read_text())
        except OSError:
            continue
        usable = tuple(core for core in listed if core in allowed)
        if usable:
            nodes.append(usable)
    return tuple(nodes)


def cores_of(text: str) -> tuple[int, ...]:
    """Parse a list of cores in the kernel's format, such as ``0-3,8-11``."""
    cores: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores += range(int(first), int(last or first) + 1)
    return tuple(cores)


def node_cores() -> tuple[int, ...]:
    """Return the number of cores that this process may use on each node."""
    return tuple(len(cores) for cores in numa_nodes())


def spanned(n_threads: int, cores: Sequence[int]) -> int:
    """Return the smallest number of nodes that have a core for every thread.

    With more threads than cores, return the number of nodes; at least 1, at most ``n_threads``.

    Parameters
    ----------
    cores : sequence of int
        Number of cores of each node.
    """
    n_cores = 0
    for count, on_node in enumerate(sorted(cores, reverse=True), start=1):
        n_cores += on_node
        if n_cores >= n_threads:
            return count
    return max(1, min(len(cores), n_threads))


def pin_thread(cores: Sequence[int]) -> None:
    """Pin the calling thread to these cores if the system permits it."""
    if cores and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, cores)
        except OSError:
            return  # the container has been given other cores meanwhile: it is only slower
