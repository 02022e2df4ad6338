"""The scheduler's board of notices: a cluster posts them, all jobs receive them.

A cluster posts what its resource manager says about containers and nodes. Every job of the
scheduler receives it, under the Dask addresses of the workers concerned; a job that starts later
receives the marks that still hold.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from typing import Any

from elasticml.protocol.marks import MarkStore
from elasticml.protocol.notices import (
    ContainerEnded,
    ContainerMarked,
    MarkLifted,
    NodeChanged,
    Notice,
    life_of,
)

logger = logging.getLogger(__name__)

#: The board's key in ``scheduler.extensions``.
PREEMPTION_EXTENSION = "elasticml-preemption"

#: A timer may fire a clock tick early; after these seconds the mark has certainly expired.
_TIMER_SLACK_S = 0.01

Listener = Callable[[Notice], None]


class PreemptionBoard:
    """Passes notices on to the jobs, and owns the scheduler's store of marks.

    All calls are made on the scheduler's event loop; another thread posts with
    ``loop.call_soon_threadsafe(board.post, notice)``.

    Parameters
    ----------
    clock : callable
        Seconds, monotonic.
    call_later : callable, optional
        Calls a function after some seconds; by default ``expire`` is up to the board's owner.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self.marks = MarkStore()
        self._clock = clock
        self._call_later = call_later
        self._listeners: list[Listener] = []

    def post(self, notice: Notice) -> None:
        """Update the marks and notify all listeners, in the order of their subscription."""
        now_s = self._clock()
        if isinstance(notice, ContainerMarked):
            self.marks.add(notice, now_s)
            if self._call_later is not None:
                self._call_later(life_of(notice) + _TIMER_SLACK_S, self.expire)
        elif isinstance(notice, (MarkLifted, ContainerEnded)):
            mark = self.marks.remove(notice.container, notice.address, now_s)
            if mark is not None and not notice.address:
                notice = replace(notice, address=mark.address)
        self._notify(notice)

    def registered(self, container: str, address: str) -> None:
        """Pass on the mark of a container whose worker has now registered."""
        mark = self.marks.register(container, address, self._clock())
        if mark is not None:
            self._notify(mark)

    def expire(self) -> None:
        """Remove expired marks and notify the listeners."""
        for lifted in self.marks.expire(self._clock()):
            self._notify(lifted)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a listener for each future notice, and at once for the marks that hold.

        Returns
        -------
        callable
            Ends the subscription; calling it again does nothing.
        """
        for mark in self.live():
            listener(mark)
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def live(self) -> list[ContainerMarked]:
        """List the marks that hold, with the grace that is left, by address."""
        return [replace(mark, cause=_cause(mark)) for mark in self.marks.live(self._clock())]

    def _notify(self, notice: Notice) -> None:
        # Jobs know containers by the addresses of their workers.
        if not isinstance(notice, NodeChanged) and not notice.address:
            return
        notice = replace(notice, cause=_cause(notice))
        logger.info("%s", notice)
        for listener in list(self._listeners):
            listener(notice)


def _cause(notice: Notice) -> str:
    """Return a notice's cause, as story records have it."""
    if notice.cause:
        return notice.cause
    match notice:
        case ContainerMarked():
            return f"reclaim {notice.address}"
        case MarkLifted():
            return f"restored {notice.address}"
        case ContainerEnded():
            return f"ended {notice.container}"
        case NodeChanged():
            return f"node {notice.node}"
        case _:
            return f"SIGTERM {notice.address}"


def for_job(notice: Notice, may_choose: bool) -> Notice:
    """Make a mark strict for a job that must not release another container in its place."""
    if isinstance(notice, ContainerMarked) and not may_choose:
        return replace(notice, negotiable=False)
    return notice


def board_of(extensions: MutableMapping[str, Any]) -> PreemptionBoard:
    """Return the board in ``scheduler.extensions``; create it on the running loop if missing."""
    if PREEMPTION_EXTENSION not in extensions:
        loop = asyncio.get_running_loop()
        extensions[PREEMPTION_EXTENSION] = PreemptionBoard(call_later=loop.call_later)
    board = extensions[PREEMPTION_EXTENSION]
    assert isinstance(board, PreemptionBoard)
    return board
