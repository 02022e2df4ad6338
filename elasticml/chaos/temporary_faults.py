"""Faults of processes that end after a while, without root: full disk, no memory, wrong clock."""

from __future__ import annotations

import contextlib
import functools
import random
import resource
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import psutil

from elasticml.clusters.local.cluster import LocalWorker

#: Ends a fault; more than once, and after the end of the process, too.
Undo = Callable[[], None]
#: Begins a fault of some of these workers.
TemporaryFault = Callable[[random.Random, Sequence[LocalWorker]], Undo]

#: Bytes of address space that a process may still take under ``memory``: less than a thread's stack
#: or an arena of malloc, more than a message.
_ROOM_BYTES: Final = 2**20


def full_disk(scheduler_pid: int) -> TemporaryFault:
    """Return a fault after which no process of the cluster can write to any file.

    ``RLIMIT_FSIZE`` is 0: each write to a regular file raises ``OSError`` (``EFBIG``), the logs'
    and those to shared memory included.
    """

    def begin(_: random.Random, workers: Sequence[LocalWorker]) -> Undo:
        pids = [scheduler_pid, *(w.pid for w in workers if w.pid is not None)]
        return _limited(resource.RLIMIT_FSIZE, {pid: 0 for pid in pids})

    return begin


def memory_limit(rng: random.Random, workers: Sequence[LocalWorker]) -> Undo:
    """Let one worker allocate next to nothing: ``RLIMIT_AS`` is what it has, and 1 MiB."""
    pid = rng.choice([w.pid for w in workers if w.pid is not None])
    taken = psutil.Process(pid).memory_info().vms
    return _limited(resource.RLIMIT_AS, {pid: taken + _ROOM_BYTES})


def _limited(which: int, limits: dict[int, int]) -> Undo:
    """Set soft limits, by process; a process that has ended is passed over."""
    former = {}
    for pid, limit in limits.items():
        with contextlib.suppress(ProcessLookupError):
            former[pid] = resource.prlimit(pid, which)
            resource.prlimit(pid, which, (limit, former[pid][1]))
    return functools.partial(_restore, which, former.items())


def _restore(which: int, former: Iterable[tuple[int, tuple[int, int]]]) -> None:
    for pid, limits in former:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, which, limits)
