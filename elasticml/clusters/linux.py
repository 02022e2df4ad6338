"""Process name and parent death signal, which only Linux has; elsewhere these calls do nothing."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def set_process_name(name: str) -> None:
    """Set the name (at most 15 characters) that ``ps`` and ``top`` show for this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to send SIGKILL to this process when its parent exits for any reason.

    Parameters
    ----------
    parent_pid : int
        The expected parent; if it has exited already, this process exits at once.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)
