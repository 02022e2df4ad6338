"""Buffers for bodies that are unpacked, used again and again: fresh memory is dear."""

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

from elasticml.data import mapped
from elasticml.data.body import aligned_buffer

#: Multiples that buffers come in, in bytes.
GRAIN: Final = 4096
#: A buffer serves for bodies of at least this share of its bytes.
_FILLED_MIN: Final = 0.75


@dataclass(slots=True, eq=False)
class _Buffer:
    """A buffer, in use or idle."""

    raw: NDArray[np.uint8]
    #: Bytes at its beginning that are memory; those behind them nobody has looked at.
    touched: int

    @property
    def nbytes(self) -> int:
        """All that it can hold."""
        return self.raw.nbytes


class Pool:
    """Buffers of some sizes.

    A buffer is here again when nobody looks at any part of it: whoever still does reads what was
    there, however long it takes. One that serves for a smaller body, or that is given up, gives the
    pages that are not needed back to the system at once, whatever the allocator does with them.

    Parameters
    ----------
    idle_bytes_max : int
        What is kept for later use at most, when a buffer of another size is wanted.
    make : callable (int) -> memoryview
        Makes a buffer of so many bytes, on a multiple of 64; what it raises passes through.
    """

    def __init__(
        self, idle_bytes_max: int, make: Callable[[int], memoryview] = aligned_buffer
    ) -> None:
        self.idle_bytes_max = idle_bytes_max
        self._make = make
        #: Of all buffers, in use or idle, as far as they are memory.
        self.held_bytes = 0
        self._lock = threading.Lock()
        #: Changed by single operations alone, as buffers come back at any place in any thread.
        self._back: deque[_Buffer] = deque()
        #: The others that are idle, smallest first; and how many have been given up so far.
        self._idle: list[_Buffer] = []
        self._n_given_up = 0

    @staticmethod
    def size_of(nbytes: int) -> int:
        """Return the memory that a body of so many bytes takes here."""
        return -(-nbytes // GRAIN) * GRAIN

    def take(self, nbytes: int) -> memoryview:
        """Return a buffer of at least so many bytes, cut to them; not cleared."""
        size = self.size_of(nbytes)
        with self._lock:
            buffer = self._found(size)
            if buffer is None:
                buffer = _Buffer(np.frombuffer(self._make(size), np.uint8), 0)
            elif buffer.touched > size:
                mapped.let_go(buffer.raw[size : buffer.touched].data)
            self.held_bytes += size - buffer.touched
            buffer.touched = size
        body = buffer.raw[:nbytes]
        # Whatever looks at the body keeps this array alive.
        weakref.finalize(body, self._back.append, buffer).atexit = False
        return body.data

    def _found(self, size: int) -> _Buffer | None:
        """Return the smallest idle buffer that serves; without one, some others are given up."""
        self._gather()
        at = bisect_left(self._idle, size, key=lambda buffer: buffer.nbytes)
        if at < len(self._idle) and size >= _FILLED_MIN * self._idle[at].nbytes:
            return self._idle.pop(at)
        self._give_up(self.idle_bytes_max)
        return None

    def trim(self, idle_bytes_max: int) -> None:
        """Give up idle buffers beyond so many bytes."""
        with self._lock:
            self._gather()
            self._give_up(idle_bytes_max)

    def _gather(self) -> None:
        for _ in range(len(self._back)):
            insort(self._idle, self._back.popleft(), key=lambda buffer: buffer.nbytes)

    def _give_up(self, idle_bytes_max: int) -> None:
        excess = sum(buffer.touched for buffer in self._idle) - idle_bytes_max
        while excess > 0:
            # Of all sizes in turn: nobody knows which will be wanted.
            self._n_given_up += 1
            buffer = self._idle.pop(self._n_given_up % len(self._idle))
            mapped.let_go(buffer.raw.data)
            self.held_bytes -= buffer.touched
            excess -= buffer.touched
