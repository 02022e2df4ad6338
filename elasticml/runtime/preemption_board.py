"""The board on which a cluster posts what its resource manager takes back; the jobs read it.

A cluster that is told of pre-emption, of containers' ends and of nodes that go posts it here, by
the Dask addresses of the workers concerned. Every job of the scheduler hears of it; one that begins
later is told what still holds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from elasticml.protocol import events as ev

logger = logging.getLogger(__name__)

#: The key in ``scheduler.extensions`` under which the board hangs.
RECLAIMS_EXTENSION = "elasticml-reclaims"

#: Why a container goes, or has gone. A pre-empted one is never a failure.
Reason = Literal["preempted", "node", "memory", "released", "killed", "exit", "terminated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """The container of a worker is asked for back."""

    #: Dask address of the worker in it.
    address: str
    #: Seconds until its processes are stopped, at the earliest.
    grace_s: float
    reason: Reason = "preempted"
    #: Another container of the application would do as well.
    negotiable: bool = False
    #: No worker's but one that the application cannot live without, as its scheduler's: another
    #: container is given for it where that is possible at all.
    essential: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The container of a worker is no longer asked for."""

    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the container of a worker ended; known before its loss is seen, or after."""

    address: str
    #: As the resource manager calls it.
    container: str
    reason: Reason
    status: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTold:
    """The state of a node has changed.

    ``state`` is in lower case: "decommissioning" (its containers end after the grace), "lost",
    "unhealthy", "decommissioned", "shutdown" (they count as ended), or "running" (it stays).
    """

    node: str
    state: str
    grace_s: float = 0.0
    #: Dask addresses of the workers on it.
    addresses: tuple[str, ...] = ()


Word = Reclaim | Restored | Ended | NodeTold
Listener = Callable[[Word], None]


class PreemptionBoard:
    """Hands on what is posted, and keeps what still holds for listeners that come later.

    All calls are made on the scheduler's event loop; another thread posts by
    ``loop.call_soon_threadsafe(board.post, word)``.

    Parameters
    ----------
    clock : callable
        Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._listeners: list[Listener] = []
        #: What is asked for back, by address, with the time at which it ends.
        self._live: dict[str, tuple[Reclaim, float]] = {}

    def post(self, word: Word) -> None:
        """Tell all listeners, in the order in which they came."""
        logger.info("%s", word)
        if isinstance(word, Reclaim):
            self._live[word.address] = (word, self._clock() + word.grace_s)
        elif isinstance(word, (Restored, Ended)):
            self._live.pop(word.address, None)
        for listener in list(self._listeners):
            listener(word)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call a listener for what is posted from now on, and at once for what still holds.

        Returns
        -------
        callable
            Ends it; calling it again does nothing.
        """
        for reclaim in self.live():
            listener(reclaim)
        self._listeners.append(listener)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return unsubscribe

    def live(self) -> list[Reclaim]:
        """List what is asked for back, with the grace that is left of it, by address."""
        now_s = self._clock()
        return [
            replace(reclaim, grace_s=max(0.0, until_s - now_s))
            for _, (reclaim, until_s) in sorted(self._live.items())
        ]


def event_of(word: Word, may_choose: bool) -> ev.Event:
    """Put a word of the board as a job's machine takes it.

    Parameters
    ----------
    may_choose : bool
        The job may give another container back than the one that is asked for.
    """
    match word:
        case Reclaim():
            return ev.ContainerMarked(
                cause=f"reclaim {word.address}",
                address=word.address,
                grace_s=word.grace_s,
                reason=word.reason,
                negotiable=word.negotiable and may_choose,
                essential=word.essential,
            )
        case Restored():
            return ev.MarkLifted(cause=f"restored {word.address}", address=word.address)
        case Ended():
            return ev.ContainerEnded(
                cause=f"ended {word.container}",
                address=word.address,
                container=word.container,
                reason=word.reason,
                status=word.status,
                message=word.message,
            )
        case NodeTold():
            return ev.NodeChanged(
                cause=f"node {word.node}",
                node=word.node,
                state=word.state,
                grace_s=word.grace_s,
                addresses=word.addresses,
            )


def reclaims_of(extensions: MutableMapping[str, Any]) -> PreemptionBoard:
    """Return the board in ``scheduler.extensions``; hang one up where there is none."""
    board = extensions.setdefault(RECLAIMS_EXTENSION, PreemptionBoard())
    assert isinstance(board, PreemptionBoard)
    return board
