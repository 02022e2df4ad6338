"""Memory for chunk bodies that arrive together.

Most of what it costs to receive a body is that its pages are new: the kernel hands them out one by
one, as they are written to. A slab holds the bodies of one order in large pages, and gives each
body's pages back when nobody looks at it any more, so that dropping some bodies of an order frees
their memory, as if each lay by itself.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.body import aligned_buffer
from elasticml.data.out_of_core.mapped_memory import padded_sum

#: Below this, large pages gain nothing.
SLAB_BYTES_MIN: Final = 4 * 2**20

_HAS_LARGE_PAGES: Final = hasattr(mmap, "MADV_HUGEPAGE") and hasattr(mmap, "MADV_DONTNEED")


class ReceiveBuffers:
    """Buffers for bodies whose sizes are known beforehand.

    Parameters
    ----------
    sizes : sequence of int
        Bytes of the bodies.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        nbytes = padded_sum(sizes)
        self._memory: mmap.mmap | None = None
        self._array: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._at = 0
        if nbytes >= SLAB_BYTES_MIN and _HAS_LARGE_PAGES:
            self._memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._memory.madvise(mmap.MADV_HUGEPAGE)
            self._array = np.frombuffer(self._memory, np.uint8)

    def maps(self, buffer: memoryview) -> bool:
        """Whether a buffer lies in a file: none of these does."""
        return False

    def take(self, nbytes: int) -> memoryview:
        """Return a buffer, of the slab where there is room, else of its own."""
        start, self._at = self._at, self._at + padded_sum([nbytes])
        if self._memory is None or self._at > self._array.nbytes:
            return aligned_buffer(nbytes)
        body = self._array[start : start + nbytes]
        # Whatever looks at the body keeps this array alive, and with it the body's pages.
        weakref.finalize(body, _give_back, self._memory, start, start + nbytes).atexit = False
        return body.data


def _give_back(memory: mmap.mmap, start: int, stop: int) -> None:
    """Give the pages that lie wholly between two places back to the system."""
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    nbytes = stop // mmap.PAGESIZE * mmap.PAGESIZE - first
    if nbytes > 0:
        memory.madvise(mmap.MADV_DONTNEED, first, nbytes)
