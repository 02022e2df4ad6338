"""Where states lie between a member's loop and the network: those that came, those that shall go.

One thread writes and one reads, on either side of each; neither waits for the other. What is put
somewhere is never written to again, so that nobody ever sees half of a state: the one race that is
left is that mail is replaced before it has been looked at, and that is counted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from elasticml.algorithms.async_sgd.base import Mail
from elasticml.training.arrays import Vector


class Mailbox:
    """A few slots; when all are full, the oldest mail is overwritten.

    Parameters
    ----------
    slots : int, >= 1
    """

    def __init__(self, slots: int = 1) -> None:
        self._slots: deque[Mail] = deque(maxlen=slots)
        #: Written to by the network's thread alone.
        self._received = 0
        #: By the loop's thread alone.
        self._taken = 0
        self._told = (0, 0)

    def put(self, mail: Mail) -> None:
        """Let mail lie here: called by the network's thread, which interrupts nobody."""
        self._received += 1
        # One operation of a deque cannot be seen half done; a full one drops what it had longest.
        self._slots.append(mail)

    def take(self) -> list[Mail]:
        """Take out what is here: called by the loop's thread."""
        mails: list[Mail] = []
        while self._slots:
            mails.append(self._slots.popleft())
            self._taken += 1
        return mails

    def count(self) -> tuple[int, int]:
        """Return what came and what was overwritten since the last call; by the loop's thread."""
        # Read first: what comes from here on counts the next time.
        received = self._received
        overwritten = max(self._told[1], received - self._taken - len(self._slots))
        before, self._told = self._told, (received, overwritten)
        return received - before[0], overwritten - before[1]


class Outbox:
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
