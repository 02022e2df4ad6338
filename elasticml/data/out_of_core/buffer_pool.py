"""A pool of reusable buffers in files: fresh pages are expensive."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.out_of_core import mapped_memory

#: Buffer sizes are multiples of this, in bytes.
GRAIN: Final = 4096
#: A buffer is reused only for arrays that fill at least this fraction of it.
_FILLED_MIN: Final = 0.75


@dataclass(slots=True, eq=False)
class _Buffer:
    """A buffer, in use or idle."""

    raw: NDArray[np.uint8]
    #: Leading bytes that are resident; the bytes after them were never accessed, or were released.
    touched: int

    @property
    def nbytes(self) -> int:
        """Capacity."""
        return self.raw.nbytes


class BufferPool:
    """Buffers of several sizes, returned to the pool by garbage collection.

    A buffer is reused only after the last view of it is gone, so existing views stay valid. If a
    buffer is reused for a smaller array, or discarded, its unneeded pages are returned at once.

    Parameters
    ----------
    idle_bytes_max : int
        Most idle bytes that are kept when a buffer of another size must be allocated.
    make : callable (int) -> memoryview
        Allocates a buffer of the given bytes, aligned to 64; its exceptions propagate.
    """

    def __init__(self, idle_bytes_max: int, make: Callable[[int], memoryview]) -> None:
        self.idle_bytes_max = idle_bytes_max
        self._make = make
        #: Resident bytes of all buffers, in use or idle.
        self.held_bytes = 0
        self._lock = threading.Lock()
        #: Returned buffers. Only atomic operations: finalizers run at any point of any thread.
        self._returned: deque[_Buffer] = deque()
        #: The other idle buffers, smallest first, and the number of buffers discarded so far.
        self._idle: list[_Buffer] = []
        self._n_discarded = 0

    @staticmethod
    def size_of(nbytes: int) -> int:
        """Return the memory that an array of ``nbytes`` takes in the pool."""
        return -(-nbytes // GRAIN) * GRAIN

    def take(self, nbytes: int) -> memoryview:
        """Return a buffer of ``nbytes``; its content is undefined."""
        size = self.size_of(nbytes)
        with self._lock:
            buffer = self._reusable(size)
            if buffer is None:
                buffer = _Buffer(np.frombuffer(self._make(size), np.uint8), 0)
            elif buffer.touched > size:
                mapped_memory.evict(buffer.raw[size : buffer.touched].data)
            self.held_bytes += size - buffer.touched
            buffer.touched = size
        body = buffer.raw[:nbytes]
        # Every view of it keeps this array alive.
        weakref.finalize(body, self._returned.append, buffer).atexit = False
        return body.data

    def _reusable(self, size: int) -> _Buffer | None:
        """Return the smallest idle buffer that fits; if there is none, discard idle buffers."""
        self._collect()
        at = bisect_left(self._idle, size, key=lambda buffer: buffer.nbytes)
        if at < len(self._idle) and size >= _FILLED_MIN * self._idle[at].nbytes:
            return self._idle.pop(at)
        self._discard(self.idle_bytes_max)
        return None

    def trim(self, idle_bytes_max: int) -> None:
        """Discard idle buffers until at most ``idle_bytes_max`` remain."""
        with self._lock:
            self._collect()
            self._discard(idle_bytes_max)

    def _collect(self) -> None:
        for _ in range(len(self._returned)):
            insort(self._idle, self._returned.popleft(), key=lambda buffer: buffer.nbytes)

    def _discard(self, idle_bytes_max: int) -> None:
        excess = sum(buffer.touched for buffer in self._idle) - idle_bytes_max
        while excess > 0:
            # Discard sizes in turn: the next request may need any of them.
            self._n_discarded += 1
            buffer = self._idle.pop(self._n_discarded % len(self._idle))
            mapped_memory.evict(buffer.raw.data)
            self.held_bytes -= buffer.touched
            excess -= buffer.touched
