"""What a block of code leaves behind: processes, descriptors, shared memory, files, namespaces."""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Self

import psutil

from elasticml.clusters.polling import until
from tests.play.namespaces import NAMESPACES, prefix


class Leftovers:
    """What a block leaves behind: processes, descriptors, shared memory, files, namespaces.

    Parameters
    ----------
    patience_s : float
        Seconds for which processes of a closed cluster may still end.
    lasting : callable
        Returns the ids of processes that outlive the block, although they may begin in it.
    """

    def __init__(
        self, patience_s: float = 20.0, lasting: Callable[[], Collection[int]] = tuple
    ) -> None:
        self._patience_s, self._lasting = patience_s, lasting

    def __enter__(self) -> Self:
        self.found: list[str] = []
        #: The processes among them.
        self.processes: list[psutil.Process] = []
        self._folder = Path(tempfile.mkdtemp(prefix="elasticml-play-"))
        self._before = os.environ.get("TMPDIR"), tempfile.tempdir
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._folder)
        self._shared = set(os.listdir("/dev/shm"))
        self._children = {p.pid for p in psutil.Process().children(recursive=True)}
        self._descriptors = _descriptors()
        return self

    def __exit__(self, *_: object) -> None:
        until(lambda: not self._left(), wait_s=self._patience_s, every_s=0.1)
        self.found = found = self._left()
        value, tempfile.tempdir = self._before
        if value is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = value
        if not found:
            self._folder.rmdir()

    def _left(self) -> list[str]:
        gc.collect()
        known = self._children.union(self._lasting())
        children = [p for p in psutil.Process().children(recursive=True) if p.pid not in known]
        self.processes = [p for p in children if _is_running(p)]
        found = [f"process {p.pid} is left" for p in self.processes]
        found += [f"file {path} is left" for path in sorted(self._folder.iterdir())]
        names = os.listdir("/dev/shm")
        # Semaphores are of other programs of this machine, or their resource tracker removes them.
        new = {name for name in names if not name.startswith("sem.")} - self._shared
        found += [f"/dev/shm/{name} is left" for name in sorted(_unmapped(new))]
        hosts = [path.name for path in NAMESPACES.glob(f"{prefix()}*")]
        found += [f"network namespace {name} is left" for name in sorted(hosts)]
        more = _descriptors() - self._descriptors
        return found + [f"{n} descriptors of {what} are left" for what, n in sorted(more.items())]


def _is_running(process: psutil.Process) -> bool:
    """Return whether a process runs; one that waits for its parent has ended."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _unmapped(names: set[str]) -> set[str]:
    """Return the names in /dev/shm that no process maps; others are of living programs."""
    left = set(names)
    for maps in Path("/proc").glob("[0-9]*/maps") if left else ():
        with contextlib.suppress(OSError):
            text = maps.read_text()
            left = {name for name in left if f"/dev/shm/{name}" not in text}
    return left


def _descriptors() -> Counter[str]:
    """Count this process's descriptors of files and shared memory, by what they refer to."""
    counts: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = os.readlink(entry)
            counts[target.partition(":")[0] if ":[" in target else target] += 1
    return +Counter({k: n for k, n in counts.items() if not k.startswith("/proc/")})
