"""Memory-mapped bodies on a local disk: pages are prefetched before use and released after it.

A mapped body takes memory only while its pages are resident. The kernel reads them from the file on
access, or when they are prefetched, and drops them when they are released. Code that reads the body
need not know.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.body import ALIGNMENT
from elasticml.data.storage.file_limits import FREE_SHARE_MIN, raise_open_file_limit
from elasticml.errors import ConfigError

#: Linux's MADV_POPULATE_READ (5.14), which Python does not define yet.
_POPULATE_READ: Final = 22
PAGE_BYTES: Final = mmap.PAGESIZE
#: File systems in memory: spilling to them frees none.
_IN_MEMORY: Final = ("tmpfs", "ramfs")

# Through ctypes, which releases the GIL during the call; mmap.madvise does not.
_libc = ctypes.CDLL(None, use_errno=True)
_madvise, _msync = _libc.madvise, _libc.msync
_madvise.argtypes = _msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
#: Linux's MS_SYNC.
_SYNC: Final = 4


def fetch(buffer: memoryview) -> None:
    """Load the pages of a mapped body, and wait until all are resident."""
    address, nbytes = _pages_of(buffer)
    _madvise(address, nbytes, mmap.MADV_WILLNEED)
    if _madvise(address, nbytes, _POPULATE_READ) != 0:
        # An older kernel: reading a byte of each page has the same effect, more slowly.
        int(np.frombuffer(buffer, np.uint8)[::PAGE_BYTES].max(initial=0))


def read_ahead(buffer: memoryview) -> None:
    """Start reading the pages of a mapped body, without waiting (MADV_WILLNEED)."""
    _madvise(*_pages_of(buffer), mmap.MADV_WILLNEED)


def write_out(buffers: Sequence[memoryview]) -> None:
    """Write the changed pages of consecutive mapped buffers to the disk (msync), and release them.

    So they do not pile up in the page cache, which a control group counts until they are written.
    """
    address, _ = _pages_of(buffers[0])
    last, nbytes = _pages_of(buffers[-1])
    _msync(address, last + nbytes - address, _SYNC)
    _madvise(address, last + nbytes - address, mmap.MADV_DONTNEED)


def evict(buffer: memoryview) -> None:
    """Release the pages of a mapped body (MADV_DONTNEED); they are read again on access.

    Partial pages at its ends are kept, as they may hold other bodies, whose next access would read
    the surroundings again. Do not use on anonymous memory: its content would be lost.
    """
    address = np.frombuffer(buffer, np.uint8).ctypes.data
    first = -(-address // PAGE_BYTES) * PAGE_BYTES
    nbytes = (address + buffer.nbytes) // PAGE_BYTES * PAGE_BYTES - first
    if nbytes > 0:
        _madvise(first, nbytes, mmap.MADV_DONTNEED)


def _pages_of(buffer: memoryview) -> tuple[int, int]:
    """Return address and bytes of the pages that a buffer overlaps."""
    address = np.frombuffer(buffer, np.uint8).ctypes.data
    first = address // PAGE_BYTES * PAGE_BYTES
    return first, -(-(address + buffer.nbytes - first) // PAGE_BYTES) * PAGE_BYTES


@dataclass(slots=True)
class ProcessMemory:
    """What this process knows of its memory."""

    #: Its limit, if it is a worker with one.
    limit_bytes: int | None = None

    def share(self, part: float, bytes_max: int) -> int:
        """Return a part of the limit, but at most ``bytes_max``."""
        return bytes_max if not self.limit_bytes else min(bytes_max, int(part * self.limit_bytes))


process_memory: Final = ProcessMemory()


def resident_bytes() -> int:
    """Return the resident memory of this process, as nannies and YARN count it.

    That is its anonymous memory and the mapped pages of files, its libraries included.
    """
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def return_free_memory() -> None:
    """Return memory that was freed to the system; glibc keeps the part between used blocks."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(0)


class FileSlab:
    """Buffers in an unnamed file: it disappears with the process, however that ends.

    The file is deleted with its last buffer. A buffer's disk space is freed as soon as its last
    view is gone.

    Parameters
    ----------
    nbytes : int
        Total of all buffers to be taken, each padded: :func:`padded_sum`.
    folder : Path
        On a local disk.

    Raises
    ------
    OSError
        When the disk has no room.
    """

    def __init__(self, nbytes: int, folder: Path) -> None:
        raise_open_file_limit()
        nbytes = max(PAGE_BYTES, nbytes)
        descriptor = _nameless(folder)
        try:
            # Reserved now: a page fault on a full disk would kill the process (SIGBUS).
            os.posix_fallocate(descriptor, 0, nbytes)
            self._memory = mmap.mmap(descriptor, nbytes)
        finally:
            os.close(descriptor)
        self._array: NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8)
        self._at = 0

    @property
    def room(self) -> int:
        """Bytes left."""
        return self._array.nbytes - self._at

    def maps(self, buffer: memoryview) -> bool:
        """Whether a buffer is in this file."""
        at = np.frombuffer(buffer, np.uint8).ctypes.data - self._array.ctypes.data
        return 0 <= at < self._array.nbytes

    def evict(self) -> None:
        """Release all pages; they are read again on access."""
        self._memory.madvise(mmap.MADV_DONTNEED)

    def take(self, nbytes: int) -> memoryview:
        """Return the next buffer."""
        start, self._at = self._at, self._at + _padded(nbytes)
        if self._at > self._array.nbytes:
            raise ValueError(f"buffers of {self._at} bytes, wanted at most {self._array.nbytes}")
        body = self._array[start : start + nbytes]
        # Every view of the body keeps this array alive, and with it the disk space and this slab,
        # which knows that the body is in a file.
        weakref.finalize(body, self._give_back, start, start + nbytes).atexit = False
        return body.data

    def _give_back(self, start: int, stop: int) -> None:
        first = -(-start // PAGE_BYTES) * PAGE_BYTES
        nbytes = stop // PAGE_BYTES * PAGE_BYTES - first
        if nbytes <= 0:
            return
        try:
            self._memory.madvise(mmap.MADV_REMOVE, first, nbytes)
        except OSError:  # no hole punching: the space is freed when the file is deleted
            self._memory.madvise(mmap.MADV_DONTNEED, first, nbytes)


def padded_sum(sizes: Sequence[int]) -> int:
    """Return the bytes that buffers of these sizes take, each padded to a multiple of 64."""
    return sum(_padded(size) for size in sizes)


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _nameless(folder: Path) -> int:
    """Open a new unnamed file; without O_TMPFILE, a temporary file that is unlinked at once."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        descriptor, name = tempfile.mkstemp(dir=folder, prefix="elasticml-spill-")
        os.unlink(name)
        return descriptor


def disk_room(folder: Path) -> int:
    """Return the bytes that may be spilled to a folder; 0 if it is not writable, or in memory.

    A tenth of the disk stays free.
    """
    if file_system_of(folder) in _IN_MEMORY or not os.access(folder, os.W_OK | os.X_OK):
        return 0
    status = os.statvfs(folder)
    whole = status.f_frsize * status.f_blocks
    return max(0, int(status.f_frsize * status.f_bavail - FREE_SHARE_MIN * whole))


def file_system_of(folder: Path) -> str:
    """Return the type of a folder's file system, such as ``ext4``; "" if unknown."""
    fs_type, longest = "", -1
    resolved = str(folder.resolve())
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in mounts:
        _, mount_point, kind = line.split()[:3]
        root = mount_point.rstrip("/") + "/"
        if (resolved + "/").startswith(root) and len(root) >= longest:
            fs_type, longest = kind, len(root)
    return fs_type


def spill_folder(default: str | Path | None) -> Path | None:
    """Return ``$ELASTICML_SPILL``, else ``default``; None if spilling is ``off``.

    Raises
    ------
    ConfigError
        When the variable does not name a folder.
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
