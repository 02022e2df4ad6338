"""The processes of a mini YARN: started, found again by another process, ended without a rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from elasticml.clusters.hadoop.configuration import MARKER
from elasticml.clusters.hadoop.layout import Layout

#: Seconds that daemons have to end by themselves, on top of what their containers may take.
END_S_MAX = 5.0


class Daemons:
    """The daemons of one mini YARN, with the state file by which other processes find them.

    Parameters
    ----------
    layout : Layout
        Where the state file and the logs are.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        #: What the state file holds besides the daemons.
        self.facts: dict[str, Any] = {}
        self._pids: dict[str, int] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def load(self) -> None:
        """Read the state file.

        Raises
        ------
        FileNotFoundError
            When there is none.
        """
        content = json.loads(self._layout.state.read_text())
        self._pids = content.pop("daemons")
        self.facts = content

    def save(self) -> None:
        """Write the state file whole, under another name first."""
        fresh = self._layout.state.with_suffix(".part")
        fresh.write_text(json.dumps({**self.facts, "daemons": self._pids}, indent=1))
        fresh.rename(self._layout.state)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a daemon in a session of its own, so that Ctrl-C reaches the client alone."""
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
        """Return the process id of each daemon that runs."""
        return {n: pid for n, pid in self._pids.items() if is_ours(pid, self._layout.root)}

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a daemon; nothing happens where it has ended."""
        pid = self.pids().get(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, names: Iterable[str], wait_s: float) -> bool:
        """Wait until daemons have ended; say whether they all have."""
        deadline_s = time.monotonic() + wait_s
        awaited = [self._pids[name] for name in names if name in self._pids]
        processes = []
        for pid in awaited:
            if is_ours(pid, self._layout.root):
                with suppress(psutil.NoSuchProcess):
                    processes.append(psutil.Process(pid))
        _, alive = psutil.wait_procs(processes, timeout=max(0.0, deadline_s - time.monotonic()))
        self._reap()
        return not alive

    def end_all(self, container_s: float) -> None:
        """End every process of this mini YARN: daemons, containers, and what they left behind.

        Parameters
        ----------
        container_s : float, seconds
            Time that containers have between SIGTERM and SIGKILL.
        """
        running = sorted(self.pids())
        nodes = [name for name in running if name.startswith("node-")]
        # NodeManagers first: they end their containers in good order.
        for group, wait_s in ((nodes, container_s + END_S_MAX), (running, END_S_MAX)):
            for name in group:
                self.signal(name, signal.SIGTERM)
            self.wait(group, wait_s)
        kill_all(marked(self._layout.root))
        self._reap()

    def _reap(self) -> None:
        """Take note of the ends of children, so that none stays a zombie."""
        for child in self._children.values():
            child.poll()


def marked(root: Path) -> list[psutil.Process]:
    """Return all processes of the mini YARN with this root, this very process never."""
    found = []
    for pid in psutil.pids():
        if pid != os.getpid() and is_ours(pid, root):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
    return found


def environment_of(pid: int) -> dict[str, str]:
    """Return a process's environment at its start; empty where it has ended or is not ours."""
    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return {}


def is_ours(pid: int, root: Path) -> bool:
    """Say whether a process belongs to the mini YARN with this root, and runs."""
    return environment_of(pid).get(MARKER) == str(root)


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """Send SIGKILL to processes and wait for their ends."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=END_S_MAX)
