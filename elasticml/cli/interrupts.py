"""Ctrl-C held back for a moment in which it would leave something behind that nobody knows of."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: What ends a command: Ctrl-C, and what others send.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class HeldInterrupts:
    """What came while interrupts were held back."""

    def __init__(self) -> None:
        self._has_come = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Hold the first one; whoever insists is heard at once."""
        if self._has_come:
            raise KeyboardInterrupt
        self._has_come = True

    def act(self) -> None:
        """Interrupt now, if somebody wanted to.

        Raises
        ------
        KeyboardInterrupt
        """
        if self._has_come:
            self._has_come = False
            raise KeyboardInterrupt


@contextmanager
def held_interrupts() -> Iterator[HeldInterrupts]:
    """Hold back the first Ctrl-C or SIGTERM; to be entered in the main thread.

    Whoever holds calls :meth:`HeldInterrupts.act` afterwards, where an interrupt can be dealt with.
    """
    held = HeldInterrupts()
    before = {number: signal.signal(number, held.note) for number in _SIGNALS}
    try:
        yield held
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
