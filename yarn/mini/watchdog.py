"""A watchdog process: it ends a mini YARN when the process that started it exits for any reason.

``python -m yarn.mini.watchdog ROOT CONTAINER_S TEMPORARY`` waits for end of
file on its standard input, on which nothing is ever written.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from yarn.mini.daemons import Daemons
from yarn.mini.layout import Layout


def start_watchdog(root: Path, container_s: float, is_temporary: bool) -> subprocess.Popen[bytes]:
    """Start a watchdog for the mini YARN at ``root``; closing its standard input triggers it."""
    arguments = [str(root.absolute()), str(container_s), str(int(is_temporary))]
    return subprocess.Popen(
        [sys.executable, "-m", "yarn.mini.watchdog", *arguments],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def watch(root: Path, container_s: float, is_temporary: bool) -> None:
    """Wait for end of file on standard input, then end the mini YARN."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while sys.stdin.buffer.read(4096):
        pass
    daemons = Daemons(Layout(root))
    with suppress(FileNotFoundError):
        daemons.load()
        daemons.end_all(container_s)
    if is_temporary:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    watch(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "1")
