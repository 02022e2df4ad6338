"""A mailbox of received states to merge: a few slots, of which the oldest is overwritten when full.

One thread puts and another takes, without locks or interrupts. A state in a slot is immutable, so
that a reader never sees a partial one. The only race is that a message is replaced before it is
read; this is counted.

Source: the single-sided communication of the asynchronous SGD paper. Deviation: its slots are
memory that peers write to while it may be read; here a slot is a reference, replaced whole.
"""

from __future__ import annotations

from collections import deque

from elasticml.algorithms.async_sgd.base import Mail


class Mailbox:
    """A single-producer, single-consumer mailbox; when full, the oldest message is overwritten.

    Parameters
    ----------
    slots : int, >= 1
    """

    def __init__(self, slots: int = 1) -> None:
        self._slots: deque[Mail] = deque(maxlen=slots)
        #: Written by the network thread only.
        self._received = 0
        #: Written by the loop's thread only.
        self._taken = 0
        self._reported = (0, 0)

    def put(self, mail: Mail) -> None:
        """Store a message; called by the network thread."""
        self._received += 1
        # Appending to a deque is atomic; a full one drops its oldest item.
        self._slots.append(mail)

    def take(self) -> list[Mail]:
        """Remove and return all messages; called by the loop's thread."""
        mails: list[Mail] = []
        while self._slots:
            mails.append(self._slots.popleft())
            self._taken += 1
        return mails

    def count(self) -> tuple[int, int]:
        """Return messages received and overwritten since the last call; called by the loop."""
        # Read first: messages that arrive from here on count the next time.
        received = self._received
        overwritten = max(self._reported[1], received - self._taken - len(self._slots))
        before, self._reported = self._reported, (received, overwritten)
        return received - before[0], overwritten - before[1]
