"""Where states lie that have come and have not been merged: a few slots, overwritten when full.

One thread puts and another takes; neither waits for the other, and the owner is not interrupted. A
state in a slot is never written to again, so that nobody sees half of one: the one race left
is that mail is replaced before it has been looked at, and that is counted.

Source: the single-sided communication of the asynchronous SGD paper. Deviation: its slots are
memory that peers write to while it may be read; here a slot is a reference, replaced whole.
"""

from __future__ import annotations

from collections import deque

from elasticml.algorithms.async_sgd.base import Mail


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
