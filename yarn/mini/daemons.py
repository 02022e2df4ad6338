"""The processes of a mini YARN: start them, find them from another process, end all of them."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from elasticml.errors import ConfigError, one_line
from yarn.mini.configuration import MARKER
from yarn.mini.layout import Layout

#: Seconds that daemons have to exit by themselves, on top of the time for their containers.
END_S_MAX = 5.0


class Daemons:
    """The daemons of one mini YARN, and the state file through which other processes find them.

    Parameters
    ----------
    layout : Layout
        Paths of the state file and the logs.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        #: Content of the state file besides the daemons.
        self.facts: dict[str, Any] = {}
        self._pids: dict[str, int] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def load(self) -> None:
        """Read the state file.

        Raises
        ------
        FileNotFoundError
            When it does not exist.
        """
        content = json.loads(self._layout.state.read_text())
        self._pids = content.pop("daemons")
        self.facts = content

    def save(self) -> None:
        """Write the state file atomically."""
        part = self._layout.state.with_suffix(".part")
        part.write_text(json.dumps({**self.facts, "daemons": self._pids}, indent=1))
        part.rename(self._layout.state)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a daemon in a session of its own, so that Ctrl-C reaches the client only."""
        with open(self._layout.log(name), "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                cwd=self._layout.root,
                start_new_session=True,
            )
        self._children[name] = process
        self._pids[name] = process.pid
        self.save()

    def pids(self) -> dict[str, int]:
        """Return the process ids of the running daemons, by name."""
        return {name: pid for name, pid in self._pids.items() if self._is_running(name, pid)}

    def _is_running(self, name: str, pid: int) -> bool:
        # A child that has just started shows an empty environment until its exec has ended.
        child = self._children.get(name)
        return is_ours(pid, self._layout.root) if child is None else child.poll() is None

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a daemon; do nothing if it has exited."""
        pid = self.pids().get(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, names: Iterable[str], wait_s: float) -> bool:
        """Wait until daemons have exited; return whether all have."""
        deadline_s = time.monotonic() + wait_s

        def left_s() -> float:
            return max(0.0, deadline_s - time.monotonic())

        children, others = list[subprocess.Popen[bytes]](), list[psutil.Process]()
        for name in names:
            if name in self._children:
                children.append(self._children[name])
            elif name in self._pids and is_ours(self._pids[name], self._layout.root):
                with suppress(psutil.NoSuchProcess):
                    others.append(psutil.Process(self._pids[name]))
        # Not by its environment: a child that dies shows none, and is running until it is reaped.
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(left_s())
        _, alive = psutil.wait_procs(others, timeout=left_s())
        return not alive and all(child.poll() is not None for child in children)

    def end_all(self, container_s: float) -> None:
        """End every process of this mini YARN: daemons, containers and their remaining children.

        Parameters
        ----------
        container_s : float, seconds
            Time that containers have between SIGTERM and SIGKILL.
        """
        running = sorted(self.pids())
        nodes = [name for name in running if name.startswith("node-")]
        # NodeManagers first: they shut down their containers gracefully.
        for group, wait_s in ((nodes, container_s + END_S_MAX), (running, END_S_MAX)):
            for name in group:
                self.signal(name, signal.SIGTERM)
            self.wait(group, wait_s)
        kill_all(marked(self._layout.root))
        self._reap()

    def _reap(self) -> None:
        """Reap children that have exited, so that none stays a zombie."""
        for child in self._children.values():
            child.poll()


def marked(root: Path) -> list[psutil.Process]:
    """Return all processes of the mini YARN with this root, except the calling process."""
    processes = []
    for pid in psutil.pids():
        if pid != os.getpid() and is_ours(pid, root):
            with suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(pid))
    return processes


def environment_of(pid: int) -> dict[str, str]:
    """Return a process's initial environment; empty if it has exited or is another user's."""
    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return {}


def is_ours(pid: int, root: Path) -> bool:
    """Return whether a process is running and belongs to the mini YARN with this root."""
    return environment_of(pid).get(MARKER) == str(root)


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """Send SIGKILL to processes and wait until they have exited."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=END_S_MAX)


# Create the root directory of a mini YARN, or reuse that of a former one.

#: Marker file of a mini YARN's directory: only a directory with it may be emptied.
_MARKER_FILE = ".elasticml-mini-yarn"

#: Least free bytes for HDFS, logs and the containers' files.
FREE_BYTES_MIN = 512 * 2**20


def default_root() -> Path:
    """Make the command line's default root directory, one for each user, unless it is there.

    Anyone can make a folder of this name in the system's temporary folder.

    Raises
    ------
    ConfigError
        When it is another user's, or others can write to it.
    """
    root = Path(tempfile.gettempdir()) / f"elasticml-mini-yarn-{getpass.getuser()}"
    with suppress(FileExistsError):
        root.mkdir(mode=0o700)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ConfigError(
            f"{root} is not a folder that only this user can write to (owner {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):o}); remove it, or choose another one: --root DIR"
        )
    root.chmod(0o700)  # as earlier versions have not made it
    return root


def make_root(root: Path | None, say: Callable[[str], None] = lambda line: None) -> Path:
    """Return an empty root directory.

    Parameters
    ----------
    root : Path or None
        Absent, empty, or of a former mini YARN, whose files are removed; None is a new temporary
        directory.
    say : callable
        Called with progress messages of one line.

    Raises
    ------
    ConfigError
        When it holds other files or a running mini YARN, or the disk is full.
    """
    try:
        if root is None:
            root = Path(tempfile.mkdtemp(prefix="mini-yarn-"))
        else:
            _empty(root, say)
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        (root / _MARKER_FILE).touch()
        free = shutil.disk_usage(root).free
    except OSError as error:
        raise ConfigError(
            f"no directory for a mini YARN: {one_line(error)}; choose one that you can write to: "
            "--root DIR"
        ) from error
    if free < FREE_BYTES_MIN:
        raise ConfigError(
            f"disk full: got {free / 2**20:.0f} MiB free in {root}, wanted "
            f"{FREE_BYTES_MIN / 2**20:.0f}; free some or choose another directory: --root DIR"
        )
    return root.resolve()


def _empty(root: Path, say: Callable[[str], None]) -> None:
    if not root.exists() or not any(root.iterdir()):
        return
    if not (root / _MARKER_FILE).exists():
        raise ConfigError(
            f"--root: got {root}, which holds other files, wanted an absent or empty directory; "
            "choose another"
        )
    layout = Layout(root.resolve())
    if layout.state.exists():
        daemons = Daemons(layout)
        daemons.load()
        if daemons.pids():
            raise ConfigError(
                f"a mini YARN is already running at {root}; use it, end it (python -m "
                f"yarn.mini down --root {root}) or choose another directory: --root DIR"
            )
    if marked(layout.root):
        raise ConfigError(
            f"processes of a former mini YARN are still running at {root}; end them: python -m "
            f"yarn.mini down --root {root}"
        )
    # Slow: unpacked environments are tens of thousands of files on every node.
    say(f"removing the files of the former mini YARN in {root}")
    shutil.rmtree(root)
