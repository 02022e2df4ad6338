"""Spill files on a local disk, for bodies and per-row arrays that do not fit into memory."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from elasticml.data.out_of_core import mapped_memory

#: Bytes of a file; a larger request gets a larger file.
FILE_BYTES: Final = 64 * 2**20


class SpillFiles:
    """Allocates buffers in unnamed files; a file disappears with its last buffer.

    Parameters
    ----------
    folder : Path
        On a local disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Held while a file is created.
        self._filling = threading.Lock()
        #: The file with free space, and all files in use.
        self._slab: mapped_memory.FileSlab | None = None
        self._slabs: weakref.WeakSet[mapped_memory.FileSlab] = weakref.WeakSet()

    def allocate_many(self, sizes: Sequence[int]) -> list[memoryview]:
        """Allocate buffers of these sizes, contiguous in one file.

        Raises
        ------
        OSError
            When the disk has no room.
        """
        nbytes = mapped_memory.padded_sum(sizes)
        with self._filling:
            if sizes and (self._slab is None or self._slab.room < nbytes):
                self._slab = None  # first: its disk space is freed if no buffer is in use
                self._slab = self._new_slab(nbytes)
                self._slabs.add(self._slab)
            slab = self._slab
            return [] if slab is None else [slab.take(size) for size in sizes]

    def _new_slab(self, nbytes: int) -> mapped_memory.FileSlab:
        if nbytes < FILE_BYTES:
            try:
                return mapped_memory.FileSlab(FILE_BYTES, self.folder)
            except OSError:  # a nearly full disk may still have room for this request
                pass
        return mapped_memory.FileSlab(nbytes, self.folder)

    def allocate(self, nbytes: int) -> memoryview:
        """Allocate a buffer of ``nbytes``; raises as :meth:`allocate_many` does."""
        return self.allocate_many([nbytes])[0]

    def try_allocate(self, nbytes: int) -> memoryview | None:
        """Allocate a buffer without blocking; None if that is not possible.

        For an event loop: creates no file, and does not wait for another thread that creates one.
        """
        if not self._filling.acquire(blocking=False):
            return None
        try:
            slab = self._slab
            has_room = slab is not None and slab.room >= mapped_memory.padded_sum([nbytes])
            return slab.take(nbytes) if slab is not None and has_room else None
        finally:
            self._filling.release()

    def maps(self, buffer: memoryview) -> bool:
        """Whether a buffer is in one of the files."""
        return any(slab.maps(buffer) for slab in list(self._slabs))

    def evict(self) -> None:
        """Release the pages of all files; they are read again on access."""
        for slab in list(self._slabs):
            slab.evict()

    def close(self) -> None:
        """Allocate no more in the current file; disk space is freed with the last buffer."""
        with self._filling:
            self._slab = None
