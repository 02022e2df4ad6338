"""A run directory and its copy elsewhere: kept up to date while the run grows, fetched later."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from elasticml.clusters.polling import persistently
from elasticml.data import places
from elasticml.errors import ConfigError, JobFailedError
from elasticml.jobs.checkpoints import FOLDER

#: Seconds from the end of one round of copies to the beginning of the next.
PAUSE_S = 2.0
#: Copying takes at most this share of the time: a long story is copied less often.
SHARE_MAX = 0.2
#: How often the last copies are tried, and the pause in between: a name node that starts anew is
#: back within, and all the work of a job would be lost with them.
LAST_TRIES_MAX = 60
LAST_PAUSE_S = 2.0
#: The directory beside the run's files that holds what only the driver needs.
DRIVER_DIRECTORY = "driver"
#: Files that grow line by line; of the last line there may be half.
_GROWING = (".jsonl", ".csv")


class Mirror:
    """Copies the files of a run directory to a place, each whole under its name, while they change.

    A context manager: copies are made by a thread of its own from the beginning to the end, and
    those of the end before it is left.

    Parameters
    ----------
    path : Path
        The run directory.
    place : str
        Where its copy goes, a local path or a URL.
    is_ours : callable
        Whether the place is still this process's to write to; asked before each round of copies.
    """

    def __init__(self, path: Path, place: str, is_ours: Callable[[], bool] = lambda: True) -> None:
        self._path = path
        self._place = place
        self._is_ours = is_ours
        #: Size and time of change of each file when it was copied.
        self._copied: dict[str, tuple[int, int]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="em-mirror", daemon=True)
        #: What has kept the last round of copies from being made.
        self.trouble: str | None = None

    def copy(self) -> int:
        """Copy what has changed; return how many files that were.

        Raises
        ------
        ConfigError
            When a file cannot be written; those that could are copied.
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
                places.write_whole(places.join(self._place, file.name), content)
                self._copied[file.name] = state
                count += 1
        return count

    def close(self) -> None:
        """Make the last copies.

        Raises
        ------
        JobFailedError
            When they cannot be made, however often that is tried.
        """
        self._over.set()
        self._thread.join()

        def copied() -> None:
            if not self._round():
                raise ConfigError(f"the run's result cannot be kept: {self.trouble}")

        try:
            persistently(copied, tries=LAST_TRIES_MAX, pause_s=LAST_PAUSE_S)
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
            # The place may be back in a while; the files are still here.
            self.trouble = str(error)
            return False
        self.trouble = None
        return True

    def __enter__(self) -> Mirror:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def whole_lines(name: str, content: bytes) -> bytes:
    """Leave out the half line with which a growing file may end."""
    if not name.endswith(_GROWING):
        return content
    return content[: content.rfind(b"\n") + 1]


def located(name: str, content: bytes, place: str) -> bytes:
    """Let a summary say where it is now; other files stay as they are."""
    if name != "summary.json":
        return content
    return (json.dumps({**json.loads(content), "run_dir": place}, indent=2) + "\n").encode()


def fetch(place: str, path: Path) -> list[str]:
    """Copy a run directory from its place to this machine; return the names of its files.

    Raises
    ------
    ConfigError
        When a file cannot be read or written.
    """
    wanted = [
        name
        for name in places.names(place)
        if name not in (DRIVER_DIRECTORY, FOLDER) and not name.startswith(".")
    ]
    for name in wanted:
        content = places.read_bytes(places.join(place, name))
        places.write_whole(str(path / name), located(name, content, str(path)))
    return wanted
