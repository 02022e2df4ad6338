"""Synchronize a run directory to another path or URL while the run grows, and fetch it later."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from elasticml.clusters.polling import retry
from elasticml.data.storage import filesystem
from elasticml.errors import ConfigError, JobFailedError, one_line
from elasticml.jobs.run_checkpoints import FOLDER

#: Seconds between two synchronizations.
PAUSE_S = 2.0
#: Synchronization takes at most this share of the time, so a long story is copied less often.
SHARE_MAX = 0.2
#: Attempts at the final copies, and the pause between them. Without them the work of the whole job
#: would be lost; a restarting name node is back within this time.
LAST_TRIES_MAX = 60
LAST_PAUSE_S = 2.0
#: The directory beside the run's files with the driver's own files.
DRIVER_DIRECTORY = "driver"
#: Files that grow line by line; their last line may be incomplete.
_GROWING = (".jsonl", ".csv")


class RunSync:
    """Copies changed files of a run directory to a destination, each one atomically.

    A context manager: a thread copies while the block runs; the final copies are made on exit.

    Parameters
    ----------
    path : Path
        The run directory.
    place : str
        The destination, a local path or a URL.
    is_ours : callable
        Whether this process may still write to the destination; called before each
        synchronization.
    """

    def __init__(self, path: Path, place: str, is_ours: Callable[[], bool] = lambda: True) -> None:
        self._path = path
        self._place = place
        self._is_ours = is_ours
        #: Size and modification time of each file when it was last copied.
        self._copied: dict[str, tuple[int, int]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="em-run-sync", daemon=True)
        #: The error of the last synchronization, if it failed.
        self.trouble: str | None = None

    def copy(self) -> int:
        """Copy the changed files and return their number.

        Raises
        ------
        ConfigError
            When a file cannot be written; the files before it have been copied.
        """
        count = 0
        for file in sorted(self._path.iterdir()) if self._path.is_dir() else ():
            if file.name.startswith(".") or not file.is_file():
                continue
            stat = file.stat()
            state = (stat.st_size, stat.st_mtime_ns)
            if self._copied.get(file.name) != state:
                content = whole_lines(file.name, file.read_bytes())
                content = located(file.name, content, self._place)
                filesystem.write_whole(filesystem.join(self._place, file.name), content)
                self._copied[file.name] = state
                count += 1
        return count

    def close(self) -> None:
        """Stop the thread and make the final copies.

        Raises
        ------
        JobFailedError
            When every attempt failed.
        """
        self._over.set()
        self._thread.join()

        def copied() -> None:
            if not self._round():
                raise ConfigError(f"the run's result cannot be kept: {self.trouble}")

        try:
            retry(copied, tries=LAST_TRIES_MAX, pause_s=LAST_PAUSE_S)
        except ConfigError as error:
            raise JobFailedError(error.message) from error

    def _run(self) -> None:
        pause_s = 0.0
        while not self._over.wait(pause_s):
            began_s = time.monotonic()
            self._round()
            pause_s = max(PAUSE_S, (time.monotonic() - began_s) * (1 / SHARE_MAX - 1))

    def _round(self) -> bool:
        try:
            if self._is_ours():
                self.copy()
        except (ConfigError, OSError) as error:
            # The destination may recover; the files are still here.
            self.trouble = one_line(error)
            return False
        self.trouble = None
        return True

    def __enter__(self) -> RunSync:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def whole_lines(name: str, content: bytes) -> bytes:
    """Drop the incomplete line at the end of a growing file."""
    if not name.endswith(_GROWING):
        return content
    return content[: content.rfind(b"\n") + 1]


def located(name: str, content: bytes, place: str) -> bytes:
    """Set ``run_dir`` of a summary to its new location; leave other files unchanged."""
    if name != "summary.json":
        return content
    return (json.dumps({**json.loads(content), "run_dir": place}, indent=2) + "\n").encode()


def fetch(place: str, path: Path) -> list[str]:
    """Copy a run directory from its destination to this machine; return the names of its files.

    Raises
    ------
    ConfigError
        When a file cannot be read or written.
    """
    files = [
        name
        for name in filesystem.names(place)
        if name not in (DRIVER_DIRECTORY, FOLDER) and not name.startswith(".")
    ]
    for name in files:
        content = filesystem.read_bytes(filesystem.join(place, name))
        filesystem.write_whole(str(path / name), located(name, content, str(path)))
    return files
