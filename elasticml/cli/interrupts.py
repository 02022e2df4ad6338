"""Defer Ctrl-C during a critical section, in which it would leave an unknown job behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: Signals that end a command: Ctrl-C, and SIGTERM from other processes.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class HeldInterrupts:
    """The interrupt that arrived while interrupts were deferred, if any."""

    def __init__(self) -> None:
        self._is_pending = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Defer the first SIGINT; raise on the second."""
        if self._is_pending:
            raise KeyboardInterrupt
        self._is_pending = True

    def act(self) -> None:
        """Raise the deferred interrupt, if there is one.

        Raises
        ------
        KeyboardInterrupt
        """
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt


@contextmanager
def held_interrupts() -> Iterator[HeldInterrupts]:
    """Defer the first Ctrl-C or SIGTERM; enter it in the main thread.

    Call :meth:`HeldInterrupts.act` afterwards, where an interrupt can be handled.
    """
    held = HeldInterrupts()
    before = {number: signal.signal(number, held.note) for number in _SIGNALS}
    try:
        yield held
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
