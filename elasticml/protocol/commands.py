"""Commands: the outputs of the driver and member machines, as immutable records.

The runtime or the simulator performs them; a command that fails comes back as an event. Array
handles are integers that the adapter assigns to the arrays it holds; control only passes them on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal

from elasticml.errors import ElasticmlError
from elasticml.fast_dataclass import dataclass
from elasticml.ids import ChunkId, ExchangeId, Generation, GroupId, Mask, MemberId
from elasticml.story.history import HistoryRow
from elasticml.story.records import StoryRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Base of all commands; ``cause`` describes the event that led to it."""

    cause: str = ""


# --- at any node of the collective ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardModel(Command):
    """Send the model of an exchange to a child whose link is open."""

    exchange: ExchangeId
    to: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute(Command):
    """Compute the member's own partial of an exchange, in the compute thread."""

    exchange: ExchangeId


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPartial(Command):
    """Add the inputs to the own partial in this order, keep the sum, and send it to the parent.

    A repeated command for the same exchange has no inputs: the kept sum is sent again.
    """

    exchange: ExchangeId
    to: MemberId | None
    contributors: Mask
    inputs: tuple[int, ...]
    order: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered(Command):
    """The root has the partial of every living child; add the inputs in this order."""

    exchange: ExchangeId
    contributors: Mask
    inputs: tuple[int, ...]
    order: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(Command):
    """Discard a received partial: its contributors are already counted, or it is stale."""

    exchange: ExchangeId
    sender: MemberId
    handle: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget(Command):
    """Free the arrays of a past exchange: own partial, sum, model, and these inputs."""

    exchange: ExchangeId
    handles: tuple[int, ...]


# --- at a member ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach(Command):
    """Open a link to the parent; answer with PeerLinked or ConnectFailed.

    Without a parent the member reports to the driver, over the link that it has: the member machine
    sees to that, and no shell gets such a command.
    """

    parent: MemberId | None
    address: str
    generation: Generation
    has_model: ExchangeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach(Command):
    """Close the link to a former parent or child; ignore whatever it still sends."""

    peer: MemberId


# --- from the driver to a member: orders, sent over the member's own link, in order --------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Command):
    """Base of the commands that a member performs; ``member`` names it."""

    member: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome(Order):
    """Tell a newcomer its member id; the runtime adds the job's settings."""

    arrival: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBlocks(Order):
    """Read blocks of the source, build their chunks and report them; or only survey them."""

    blocks: tuple[int, ...]
    survey: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure(Order):
    """Create the solver; the runtime adds the data set's statistics."""

    #: Compile the algorithm's kernels, too, and answer Ready then.
    warms_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadChunks(Order):
    """Load chunks, from the source or from those the member still holds, and report them."""

    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveChunks(Order):
    """Send chunks to another member: all states first, then the bodies; the receiver reports.

    The sender keeps its copies, states included, until DropChunks. The receiver ignores the state
    of a chunk that it owns, and a state from an older order than one it already took for that
    chunk.
    """

    target: MemberId
    address: str
    chunks: tuple[ChunkId, ...]
    #: The chunks whose bodies must be sent; the target already has the other bodies.
    bodies: tuple[ChunkId, ...] = ()
    #: Number of this order, repeated in the receiver's report: a late report of an abandoned
    #: order must not commit a newer one, whose state is still in flight.
    order: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyChunks(Order):
    """Send bodies without state to another holder in the background, even during an exchange.

    The receiver reports what arrived and leaves bodies that it already has unchanged.
    """

    target: MemberId
    address: str
    chunks: tuple[ChunkId, ...]
    #: Bytes of each body.
    nbytes: tuple[int, ...]
    order: int = 0
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DropChunks(Order):
    """Delete these chunks, body and state, and report it with ChunksDropped.

    The driver never orders this for chunks that the member owns, receives or sends.
    """

    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Own(Order):
    """Compute over exactly these chunks from this generation on; keep other chunks held."""

    generation: Generation
    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewire(Order):
    """Take this place in the reduction tree; ``done`` is the last exchange closed at the root."""

    generation: Generation
    parent: MemberId | None
    parent_address: str
    children: tuple[MemberId, ...]
    done: ExchangeId
    #: The member was not in the previous tree: no node there knows it, not even its parent.
    is_new: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers(Order):
    """Update the peers to which a member in asynchronous mode sends its state.

    The order lists changes since the last one, unless ``is_full`` is set. The member itself may be
    among those that came or are gone: it says whether others send to it.
    """

    came: tuple[MemberId, ...] = ()
    #: Addresses of ``came``, in the same order.
    addresses: tuple[str, ...] = ()
    gone: tuple[MemberId, ...] = ()
    #: ``came`` is the complete list: forget earlier peers.
    is_full: bool = False
    #: Loops are already running: a member without a state asks a peer for one.
    begun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskStatus(Order):
    """Ask a member how far it is in an exchange; a stopped process does not answer."""

    exchange: ExchangeId


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAnchor(Order):
    """Send a kept partial of a past exchange to the driver: that of an input, or the own sum."""

    exchange: ExchangeId
    sender: MemberId | None


#: Reason of the dismissal of all members at the end of a job.
JOB_ENDED: Final = "job ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismiss(Order):
    """End this incarnation of the member in the job: done, released, or fenced."""

    reason: str
    #: The worker does not offer itself to the job again, with the chunks that it holds.
    is_final: bool = False


# --- at the driver -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeFacts(Command):
    """Merge the members' reports about blocks; answer FactsFixed or Failed."""

    survey: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrainer(Command):
    """Create the trainer and run it to its first request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorPart(Command):
    """One term of an anchor: a local handle, added or subtracted."""

    handle: int
    sign: int
    #: The members whose partials it sums.
    of: Mask = Mask(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver(Command):
    """Pass the trainer the outcome of an exchange: the sum of these inputs in this order."""

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
    """Answer the trainer's end of round: continue, or stop for this reason."""

    go_on: bool
    reason: str = ""
    #: Algorithm settings that policies change from the next round on, by name.
    tuned: Mapping[str, float | int | str | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMembers(Command):
    """Request ``count`` more members from the cluster; answer MembersRefused if it has none."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseContainers(Command):
    """Give back the containers of retired members, which have already left the job.

    The cluster itself requests a replacement for a container that is given back in place of a
    marked one, as it does for containers that are taken.
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
    """Append a record to the story; the runtime sets its time."""

    record: StoryRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRow(Command):
    """Append a row to the history; the runtime adds the bytes moved and sent."""

    row: HistoryRow
    #: An idle round: its model is the one with which the next real round starts.
    idle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJob(Command):
    """End the job."""

    state: Literal["done", "failed", "cancelled"]
    reason: str
    #: The error of a failed job, if it is another than one of its members or its trainer.
    error: ElasticmlError | None = None
