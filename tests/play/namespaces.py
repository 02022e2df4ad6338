"""Separate hosts on one machine: network namespaces. Needs Linux, root and iproute2."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Final

from elasticml.errors import ConfigError

#: Where iproute2 keeps namespaces, by name.
NAMESPACES: Final = Path("/run/netns")
_CLONE_NEWNET: Final = 0x40000000


def prefix() -> str:
    """Return the beginning of the names of this process's namespaces."""
    return f"em{os.getpid()}-"


def address(k: int) -> str:
    """Return the address of a host."""
    return f"10.77.0.{k + 1}"


def ip(*words: str) -> None:
    """Run iproute2's ip.

    Raises
    ------
    ConfigError
        When it fails.
    """
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"ip {' '.join(words)}: {done.stderr.strip()}; check that this is root")


def check_root() -> None:
    """Check that this process can make namespaces.

    Raises
    ------
    ConfigError
        When it cannot.
    """
    if os.geteuid() != 0 or shutil.which("ip") is None or not os.path.exists("/dev/net/tun"):
        raise ConfigError(
            "network namespaces need root, iproute2 and /dev/net/tun; run this as root on Linux, "
            "or leave them out"
        )


@contextlib.contextmanager
def namespaces(n: int) -> Generator[list[str]]:
    """Make namespaces with a loopback device, and remove them; yield their names."""
    names = [f"{prefix()}{k}" for k in range(n)]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def inside(name: str) -> Generator[None]:
    """Let this thread, and the threads and processes that it starts, be in a namespace."""
    with open("/proc/thread-self/ns/net") as here:
        _enter(NAMESPACES / name)
        try:
            yield
        finally:
            _set(here.fileno())


def _enter(path: Path) -> None:
    with open(path) as there:
        _set(there.fileno())


def _set(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns failed")
