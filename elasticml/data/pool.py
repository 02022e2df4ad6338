"""Buffers for bodies that are unpacked, used again and again: fresh memory is dear."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.body import aligned_buffer

#: Buffers are of multiples of so many bytes.
_GRAIN: Final = 64 * 2**10
#: A buffer serves for bodies of at least this share of its bytes.
_FILLED_MIN: Final = 0.75


class Pool:
    """Buffers of some sizes.

    A buffer is here again when nobody looks at any part of it: whoever still does reads what was
    there, however long it takes.

    Parameters
    ----------
    idle_bytes_max : int
        What is kept for later use at most, when a buffer of another size is wanted.
    """

    def __init__(self, idle_bytes_max: int) -> None:
        self.idle_bytes_max = idle_bytes_max
        #: Of all buffers, in use or idle.
        self.held_bytes = 0
        self._lock = threading.Lock()
        #: Changed by single operations alone, as buffers come back at any place in any thread.
        self._idle: deque[NDArray[np.uint8]] = deque()

    def take(self, nbytes: int) -> memoryview:
        """Return a buffer of at least so many bytes, cut to them; not cleared."""
        size = -(-nbytes // _GRAIN) * _GRAIN
        with self._lock:
            raw = self._found(size)
            if raw is None:
                raw = np.frombuffer(aligned_buffer(size), np.uint8)
                self.held_bytes += size
        body = raw[:nbytes]
        # Whatever looks at the body keeps this array alive.
        weakref.finalize(body, self._idle.append, raw).atexit = False
        return body.data

    def _found(self, size: int) -> NDArray[np.uint8] | None:
        """Return an idle buffer that serves; without one, some others are given up."""
        for _ in range(len(self._idle)):
            raw = self._idle.popleft()
            if size <= raw.nbytes and size >= _FILLED_MIN * raw.nbytes:
                return raw
            self._idle.append(raw)
        self._give_up(self.idle_bytes_max)
        return None

    def trim(self, idle_bytes_max: int) -> None:
        """Give up idle buffers beyond so many bytes."""
        with self._lock:
            self._give_up(idle_bytes_max)

    def _give_up(self, idle_bytes_max: int) -> None:
        excess = sum(raw.nbytes for raw in list(self._idle)) - idle_bytes_max
        while excess > 0:
            given_up = self._idle.popleft().nbytes
            self.held_bytes -= given_up
            excess -= given_up
