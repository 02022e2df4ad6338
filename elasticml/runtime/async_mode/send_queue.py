"""States on their way from a member's loop to the network: one thread posts, another sends."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from elasticml.training.array_buffers import Vector


class SendQueue:
    """States that wait for the network, no more than there are places.

    Parameters
    ----------
    places : int, >= 1
    wake : callable
        Tells the network's thread that something was posted; from any thread.
    """

    def __init__(self, places: int, wake: Callable[[], None]) -> None:
        self.places = places
        self._wake = wake
        self._waiting: deque[tuple[Vector, int | None]] = deque()
        #: Written to by the loop's thread alone.
        self._posted = 0
        #: By the network's thread alone: what has left this host, or never will.
        self._done = 0
        self._room = threading.Event()

    @property
    def fill(self) -> float:
        """Share of the places that hold unsent states."""
        return (self._posted - self._done) / self.places

    def has_room(self) -> bool:
        """Whether another state can be posted."""
        return self._posted - self._done < self.places

    def post(self, vector: Vector, rows: int | None) -> None:
        """Put a state into a free place: called by the loop's thread.

        Parameters
        ----------
        vector : ndarray
            Nobody writes to it any more.
        rows : int, optional
            How many rows it holds, where it is not a whole state.
        """
        self._posted += 1
        self._waiting.append((vector, rows))
        self._wake()

    def wait(self, seconds: float) -> None:
        """Wait for a free place, no longer than so many seconds: called by the loop's thread."""
        self._room.clear()
        if not self.has_room():
            self._room.wait(seconds)

    def take(self) -> tuple[Vector, int | None] | None:
        """Return the next state to send, whose place stays taken until ``done``."""
        return self._waiting.popleft() if self._waiting else None

    def done(self) -> None:
        """Free a place: called by the network's thread."""
        self._done += 1
        self._room.set()
