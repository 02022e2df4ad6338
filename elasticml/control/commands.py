"""What the machines tell their shells to do, as values; a failed command comes back as an event.

Array handles are integers that a shell gives to the arrays it holds; control only passes them on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from elasticml.terms import ChunkId, ExchangeId, Generation, GroupId, Mask, MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Root of all commands; ``cause`` is the event (in words) that led to it."""

    cause: str = ""


# --- at any node of the collective ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardModel(Command):
    """Send the model of an exchange to a child whose link is open."""

    exchange: ExchangeId
    to: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(Command):
    """Compute the own share of an exchange, in the compute thread."""

    exchange: ExchangeId


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPartial(Command):
    """Add the inputs to the own share in this order, keep the sum, and send it to the parent.

    A repeated command for the same exchange sends the kept sum: nothing is computed or added twice.
    """

    exchange: ExchangeId
    to: MemberId | None
    contributors: Mask
    inputs: tuple[int, ...]
    order: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered(Command):
    """The root has every living child's contribution; add the inputs in this order."""

    exchange: ExchangeId
    contributors: Mask
    inputs: tuple[int, ...]
    order: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(Command):
    """Throw a received partial away: its contributors are counted already, or it is too old."""

    exchange: ExchangeId
    sender: MemberId
    handle: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget(Command):
    """Free the arrays of a past exchange: own share, sum, model, and these inputs."""

    exchange: ExchangeId
    handles: tuple[int, ...]


# --- at a member ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach(Command):
    """Link to the parent (None: the driver) and report for duty, saying which model is here."""

    parent: MemberId | None
    address: str
    generation: Generation
    has_model: ExchangeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach(Command):
    """Close the link to a former parent or child; nothing it sends counts any more."""

    peer: MemberId


# --- from the driver to a member: orders, sent over the member's own link, in order --------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Command):
    """Root of the commands that a member performs; ``member`` is who."""

    member: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome(Order):
    """Tell an arrival which member it is; the shell adds the job's settings."""

    arrival: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBlocks(Order):
    """Read blocks of the source, build their chunks, and report them; or only survey them."""

    blocks: tuple[int, ...]
    survey: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure(Order):
    """Make the solver: the shell adds the facts about the data set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadChunks(Order):
    """Get chunks from the source (or from what the member still holds) and report them."""

    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveChunks(Order):
    """Send chunks to another member, the state of all first, then bodies; the receiver reports.

    The giver keeps its copies, state and all, until it is told to drop them. The receiver takes no
    state of a chunk that it owns, and none that is of an older order than one it had of that chunk.
    """

    target: MemberId
    address: str
    chunks: tuple[ChunkId, ...]
    #: Those of them whose body must travel; of the others the target has it already.
    bodies: tuple[ChunkId, ...] = ()
    #: Number of this order, for the receiver's report: a late report of an abandoned order must
    #: not commit a newer one, whose state is still under way.
    order: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyChunks(Order):
    """Send bodies, no state, to a further holder in the background, also during an exchange.

    The receiver reports what arrived; what it has already it leaves as it is.
    """

    target: MemberId
    address: str
    chunks: tuple[ChunkId, ...]
    order: int = 0
    #: Not faster than this; None: as fast as the link is.
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropChunks(Order):
    """Forget these chunks, body and state, and report that with ChunksDropped.

    The driver never orders it for chunks that the member owns, or is getting or giving away.
    """

    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Own(Order):
    """From this generation on compute over exactly these chunks; keep the others that are held."""

    generation: Generation
    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewire(Order):
    """Take this place in the tree; ``done`` is the last exchange that the root has closed."""

    generation: Generation
    parent: MemberId | None
    parent_address: str
    children: tuple[MemberId, ...]
    done: ExchangeId
    #: The member had no place in the last tree: nobody there knows it, not even its parent.
    is_new: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers(Order):
    """Send states of a free-running job to these members, too, and no more to those that are gone.

    What is told is what has changed since the last such order, unless it is told ``anew``. The
    member itself is among those that came or are gone, too: others send to it, or do not any more.
    """

    came: tuple[MemberId, ...] = ()
    #: Of those that came, in their order.
    addresses: tuple[str, ...] = ()
    gone: tuple[MemberId, ...] = ()
    #: ``came`` is everybody: who was told of before is forgotten.
    anew: bool = False
    #: Loops run already: whoever has no state yet asks a peer for one.
    begun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskStatus(Order):
    """Ask a member how far it is in an exchange; a stopped process gives no answer."""

    exchange: ExchangeId


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAnchor(Order):
    """Send a kept partial of a past exchange to the driver: an input's, or the own sum."""

    exchange: ExchangeId
    sender: MemberId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismiss(Order):
    """The member's life in this job is over: done, released, or fenced."""

    reason: str


# --- at the driver -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFacts(Command):
    """Merge what members reported about the blocks; answer FactsFixed or DataRejected."""

    survey: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrainer(Command):
    """Make the trainer and run it to its first request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorPart(Command):
    """One term of an anchor: a handle here, added or subtracted."""

    handle: int
    sign: int
    #: Whose shares it is the sum of.
    of: Mask = Mask(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver(Command):
    """Give the trainer the outcome of an exchange: the sum of these inputs in this order."""

    exchange: ExchangeId
    inputs: tuple[int, ...]
    order: str
    contributors: Mask
    examples: int
    absent_examples: int
    absent: tuple[GroupId, ...]
    opened: GroupId | None
    anchor_exchange: ExchangeId | None = None
    anchor: tuple[AnchorPart, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Continue(Command):
    """Answer the trainer's end of round: go on, or stop for this reason."""

    go_on: bool
    reason: str = ""
    #: Settings of the algorithm that policies want changed from the next round on, by name.
    tuned: Mapping[str, float | int | str | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMembers(Command):
    """Ask the cluster for so many more members; answer MembersRefused where it has none to give."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseContainers(Command):
    """Give the containers of retired members back; their lives in the job are over already.

    For one that is given in place of a container that is asked for, the cluster asks anew by
    itself, as it does for those that are taken.
    """

    members: tuple[MemberId, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inject(Command):
    """Perform a planned fault on the local cluster; answer FaultPerformed."""

    kind: Literal["lose", "return", "prepare"]
    members: tuple[MemberId, ...] = ()
    count: int = 0
    how: str = "kill"
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Command):
    """Append a record to the story."""

    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRow(Command):
    """Append a row to the history; the shell adds bytes moved and sent."""

    fields: Mapping[str, Any]
    #: The round did nothing but wait: its model is the one that the next real round begins with.
    idle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJob(Command):
    """The job is over."""

    state: Literal["done", "failed", "cancelled"]
    reason: str
