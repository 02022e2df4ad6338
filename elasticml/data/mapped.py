"""Memory that lies in files: bodies on a local disk, fetched ahead of use and let go after it.

A body that is mapped takes memory only while its pages are here: the kernel reads them from the
file when they are looked at, or when they are fetched ahead, and forgets them when they are let go.
What looks at the body needs to know nothing of this.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.body import ALIGNMENT
from elasticml.data.open_files import allow_open_files
from elasticml.errors import ConfigError

#: Linux's MADV_POPULATE_READ (5.14), which Python does not name yet.
_POPULATE_READ: Final = 22
_PAGE: Final = mmap.PAGESIZE
#: A spill leaves free at least this share of the disk.
_FREE_SHARE_MIN: Final = 0.1
#: File systems that lie in memory: what is written there has not left it.
_IN_MEMORY: Final = ("tmpfs", "ramfs")

# By way of ctypes, which lets other threads run meanwhile: mmap's own method does not.
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def fetch(buffer: memoryview) -> None:
    """Have the pages of a mapped body here: asked for at once, waited for, and mapped."""
    address, nbytes = _pages_of(buffer)
    _madvise(address, nbytes, mmap.MADV_WILLNEED)
    if _madvise(address, nbytes, _POPULATE_READ) != 0:
        # An older kernel: looking at a byte of each page does the same, more slowly.
        int(np.frombuffer(buffer, np.uint8)[::_PAGE].max(initial=0))


def ask_for(buffer: memoryview) -> None:
    """Ask for the pages of a mapped body, and wait for none of them."""
    _madvise(*_pages_of(buffer), mmap.MADV_WILLNEED)


def let_go(buffer: memoryview) -> None:
    """Take the pages of a mapped body out of this process; they come back when looked at.

    Pages at its ends stay, which other bodies may be in as well: looking at one of these again
    would bring back what is around it. Never of memory that is in no file: that would be lost.
    """
    address = np.frombuffer(buffer, np.uint8).ctypes.data
    first = -(-address // _PAGE) * _PAGE
    nbytes = (address + buffer.nbytes) // _PAGE * _PAGE - first
    if nbytes > 0:
        _madvise(first, nbytes, mmap.MADV_DONTNEED)


def _pages_of(buffer: memoryview) -> tuple[int, int]:
    """Return address and bytes of the pages that a buffer touches."""
    address = np.frombuffer(buffer, np.uint8).ctypes.data
    first = address // _PAGE * _PAGE
    return first, -(-(address + buffer.nbytes - first) // _PAGE) * _PAGE


def anonymous_bytes() -> int:
    """Return the memory of this process that is in no file."""
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * _PAGE


class FileSlab:
    """Buffers in a file without a name: whatever happens to this process, nothing is left of it.

    The file is gone when the last buffer is; a buffer that nobody looks at any more gives its place
    on the disk back before that.

    Parameters
    ----------
    nbytes : int
        Of all buffers that will be taken, each padded: :func:`padded_sum`.
    folder : Path
        On a local disk.

    Raises
    ------
    OSError
        When the disk does not take as much.
    """

    def __init__(self, nbytes: int, folder: Path) -> None:
        allow_open_files()
        nbytes = max(_PAGE, nbytes)
        descriptor = _nameless(folder)
        try:
            # Taken from the disk at once: a page that finds it full later would end the process.
            os.posix_fallocate(descriptor, 0, nbytes)
            self._memory = mmap.mmap(descriptor, nbytes)
        finally:
            os.close(descriptor)
        self._array: NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8)
        self._at = 0

    @property
    def room(self) -> int:
        """Bytes that can still be taken."""
        return self._array.nbytes - self._at

    def maps(self, buffer: memoryview) -> bool:
        """Whether a buffer lies in this file."""
        at = np.frombuffer(buffer, np.uint8).ctypes.data - self._array.ctypes.data
        return 0 <= at < self._array.nbytes

    def take(self, nbytes: int) -> memoryview:
        """Return the next buffer."""
        start, self._at = self._at, self._at + _padded(nbytes)
        if self._at > self._array.nbytes:
            raise ValueError(f"buffers of {self._at} bytes, wanted at most {self._array.nbytes}")
        body = self._array[start : start + nbytes]
        # Whatever looks at the body keeps this array alive, and with it its place.
        # And this slab, which knows that the body is in a file.
        weakref.finalize(body, self._give_back, start, start + nbytes).atexit = False
        return body.data

    def _give_back(self, start: int, stop: int) -> None:
        first = -(-start // _PAGE) * _PAGE
        nbytes = stop // _PAGE * _PAGE - first
        if nbytes <= 0:
            return
        try:
            self._memory.madvise(mmap.MADV_REMOVE, first, nbytes)
        except OSError:  # a file system without holes: the place is free when the file is gone
            self._memory.madvise(mmap.MADV_DONTNEED, first, nbytes)


def padded_sum(sizes: Sequence[int]) -> int:
    """Return the bytes that buffers of these sizes take, each on a multiple of 64."""
    return sum(_padded(size) for size in sizes)


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _nameless(folder: Path) -> int:
    """Open a new file that has no name, or loses it at once where the system cannot do that."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix="elasticml-spill-")
        os.unlink(name)
        return descriptor


def disk_room(folder: Path) -> int:
    """Return how many bytes may be spilled to a folder; 0 where it cannot be written, or is memory.

    A tenth of the disk stays free.
    """
    if file_system_of(folder) in _IN_MEMORY or not os.access(folder, os.W_OK | os.X_OK):
        return 0
    status = os.statvfs(folder)
    whole = status.f_frsize * status.f_blocks
    return max(0, int(status.f_frsize * status.f_bavail - _FREE_SHARE_MIN * whole))


def file_system_of(folder: Path) -> str:
    """Return the kind of file system that a folder is in, such as ``ext4``; "" if unknown."""
    found, best = "", -1
    place = str(folder.resolve())
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in mounts:
        _, at, kind = line.split()[:3]
        root = at.rstrip("/") + "/"
        if (place + "/").startswith(root) and len(root) >= best:
            found, best = kind, len(root)
    return found


def spill_folder(default: str | Path | None) -> Path | None:
    """Return ``$ELASTICML_SPILL``, else ``default``; None for no spilling (``off``).

    Raises
    ------
    ConfigError
        When the variable names no folder.
    """
    named = os.environ.get("ELASTICML_SPILL")
    if named == "off":
        return None
    if named:
        if not Path(named).is_dir():
            raise ConfigError(
                f"ELASTICML_SPILL is {named!r}, wanted a folder on a local disk, or off"
            )
        return Path(named)
    return None if default is None else Path(default)
