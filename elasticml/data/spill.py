"""Files on a local disk for bodies and numbers of rows that do not fit into memory."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from elasticml.data import mapped

#: Bytes of a file, or what it takes to hold one order of them.
FILE_BYTES: Final = 64 * 2**20


class Spill:
    """Places in files without names; a file is gone when nobody looks at any of its places.

    Parameters
    ----------
    folder : Path
        On a local disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Held while a file is made.
        self._filling = threading.Lock()
        #: The file with room; and all that are used.
        self._slab: mapped.FileSlab | None = None
        self._slabs: weakref.WeakSet[mapped.FileSlab] = weakref.WeakSet()

    def places(self, sizes: Sequence[int]) -> list[memoryview]:
        """Return places of these sizes, side by side in one file.

        Raises
        ------
        OSError
            When the disk does not take them.
        """
        nbytes = mapped.padded_sum(sizes)
        with self._filling:
            if sizes and (self._slab is None or self._slab.room < nbytes):
                self._slab = None  # first, so that its disk is free when nobody looks at it
                self._slab = self._made(nbytes)
                self._slabs.add(self._slab)
            slab = self._slab
            return [] if slab is None else [slab.take(size) for size in sizes]

    def _made(self, nbytes: int) -> mapped.FileSlab:
        if nbytes < FILE_BYTES:
            try:
                return mapped.FileSlab(FILE_BYTES, self.folder)
            except OSError:  # a disk that is nearly full may take what is needed now
                pass
        return mapped.FileSlab(nbytes, self.folder)

    def place(self, nbytes: int) -> memoryview:
        """Return a place of so many bytes; errors as of :meth:`places`."""
        return self.places([nbytes])[0]

    def place_at_once(self, nbytes: int) -> memoryview | None:
        """Return a place; None where that would take time.

        For an event loop: no file is made, and nobody is waited for who makes one.
        """
        if not self._filling.acquire(blocking=False):
            return None
        try:
            slab = self._slab
            has_room = slab is not None and slab.room >= mapped.padded_sum([nbytes])
            return slab.take(nbytes) if slab is not None and has_room else None
        finally:
            self._filling.release()

    def maps(self, buffer: memoryview) -> bool:
        """Whether a buffer lies in one of the files."""
        return any(slab.maps(buffer) for slab in list(self._slabs))

    def let_go(self) -> None:
        """Take the pages of all files out of this process; they come back when looked at."""
        for slab in list(self._slabs):
            slab.let_go()

    def close(self) -> None:
        """Let the disk go with the last place that somebody looks at."""
        with self._filling:
            self._slab = None
