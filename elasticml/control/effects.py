"""What a member machine asks its shell for, and the shell's answers; nothing here crosses a link.

The other effects of a member are in ``commands.py``: those that every node of the tree has, and the
driver's orders that the machine hands on.
"""

from __future__ import annotations

from dataclasses import dataclass

from elasticml.ids import ChunkId, ExchangeId, MemberId
from elasticml.protocol.commands import Command, CopyChunks
from elasticml.protocol.events import Event

# --- links ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Command):
    """Send an event to the driver."""

    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell(Command):
    """Send an event to the parent, whose link is open."""

    to: MemberId
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class SendKept(Command):
    """Send a kept partial of a past exchange to the driver: an anchor term."""

    exchange: ExchangeId
    #: Whose partial was asked for; None: the own sum.
    sender: MemberId | None
    #: The handle of that partial; None: the own sum.
    handle: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail(Command):
    """End the job with this error, which is no fault of the cluster."""

    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectFailed(Event):
    """No link to the parent could be opened: an answer to Attach."""

    peer: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentLost(Event):
    """The link to the parent closed."""

    peer: MemberId


# --- time -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class After(Command):
    """Answer with TimeUp after this time."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeUp(Event):
    """The time of an After command is over."""


# --- chunk transfers ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveSent(Event):
    """Everything that a GiveChunks order is about has been sent."""

    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCopy(Command):
    """Send one body of a CopyChunks order; answer with CopySent or SendFailed.

    The bodies of an order are sent one after the other, in its order.
    """

    order: CopyChunks
    #: Index of the chunk in the order.
    k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySent(Event):
    """A body of a CopyChunks order has been sent."""

    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveArriving(Event):
    """States of a GiveChunks order have begun to arrive; ChunksArrived follows at its end."""

    source: MemberId
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksArrived(Event):
    """A transfer from another member has ended: complete, or broken off with its link."""

    source: MemberId
    #: Number of the GiveChunks or CopyChunks order.
    order: int
    #: The order's chunks, as far as they are known here.
    chunks: tuple[ChunkId, ...]
    #: Those of them whose body was to come and did not.
    missing: frozenset[ChunkId] = frozenset()
    #: Those of them whose state came; none of a copy.
    states: frozenset[ChunkId] = frozenset()
    nbytes: int = 0
    seconds: float = 0.0
    #: What the shell keeps of the transfer; the machine passes it on.
    content: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChunks(Command):
    """Keep the bodies that a transfer brought; answer with ChunksStored or StoreFailed."""

    arrival: ChunksArrived


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksStored(Event):
    """The bodies of a transfer are kept."""

    arrival: ChunksArrived


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFailed(Event):
    """There is no room for the bodies of a transfer."""

    arrival: ChunksArrived
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStates(Command):
    """Give these chunks the states that a transfer brought."""

    arrival: ChunksArrived
    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFailed(Event):
    """An order to send chunks could not be performed, or not to its end."""

    target: MemberId
    chunks: tuple[ChunkId, ...]
    order: int
    reason: str


# --- free-running jobs ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPeers(Command):
    """Ask peers for a state to begin with, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLacking(Event):
    """The loop has no state yet, and a report asked for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBegun(Event):
    """The loop has a state: none is asked for any more."""
