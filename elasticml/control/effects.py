"""Commands of a member machine to its adapter, and the adapter's answers; none crosses a link.

The other effects of a member are in ``commands.py``: those that every node of the tree has, and the
driver's orders that the machine passes on.
"""

from __future__ import annotations

from elasticml.fast_dataclass import dataclass
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
    """Send an event to the parent, over the open link."""

    to: MemberId
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class SendKept(Command):
    """Send a kept partial of a past exchange to the driver: an anchor term."""

    exchange: ExchangeId
    #: The member whose partial is requested; None: the own sum.
    sender: MemberId | None
    #: The handle of that partial; None: the own sum.
    handle: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail(Command):
    """End the job with this error, which is not a cluster fault."""

    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectFailed(Event):
    """The link to the parent could not be opened: an answer to Attach."""

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
    """All states and bodies of a GiveChunks order have been sent."""

    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCopy(Command):
    """Send one body of a CopyChunks order; answer with CopySent or SendFailed.

    The machine commands the bodies of an order one after the other.
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
    """A move has started to arrive; ChunksArrived follows at its end."""

    source: MemberId
    order: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksArrived(Event):
    """A transfer from another member has ended: complete, or interrupted with its link."""

    source: MemberId
    #: Number of the GiveChunks or CopyChunks order.
    order: int
    #: The chunks of the order, as far as they are known here.
    chunks: tuple[ChunkId, ...]
    #: Chunks whose body should have arrived and did not.
    missing: frozenset[ChunkId] = frozenset()
    #: Chunks whose state arrived; empty for a copy.
    states: frozenset[ChunkId] = frozenset()
    nbytes: int = 0
    seconds: float = 0.0
    #: The adapter's record of the transfer; the machine passes it on.
    content: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChunks(Command):
    """Store the bodies of a transfer; answer with ChunksStored or StoreFailed."""

    arrival: ChunksArrived


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksStored(Event):
    """The bodies of a transfer are stored."""

    arrival: ChunksArrived


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFailed(Event):
    """The bodies of a transfer do not fit."""

    arrival: ChunksArrived
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class SetStates(Command):
    """Set the states of these chunks to those of a transfer."""

    arrival: ChunksArrived
    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFailed(Event):
    """An order to send chunks failed, or was interrupted."""

    target: MemberId
    chunks: tuple[ChunkId, ...]
    order: int
    reason: str


# --- asynchronous jobs ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPeers(Command):
    """Ask peers for a first state, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLacking(Event):
    """The training loop has no state, and a report needs one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBegun(Event):
    """The training loop has a state and needs no other one."""
