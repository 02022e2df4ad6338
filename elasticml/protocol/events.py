"""Events: the inputs of the driver and member machines, as immutable records.

What a cluster says about containers and nodes is in :mod:`elasticml.protocol.notices`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Generic, Literal, TypeVar

from elasticml.fast_dataclass import dataclass
from elasticml.ids import NO_EXCHANGE, ChunkId, ChunkInfo, ExchangeId, Generation, Mask, MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events; ``cause`` names the origin in a few words."""

    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked(Event):
    """Advance time."""


# --- membership ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived(Event):
    """A worker asks to join; ``holdings`` are chunks that it kept from an earlier incarnation."""

    arrival: int
    address: str
    host: str
    pid: int
    threads: int = 1
    #: NUMA nodes spanned by its threads.
    nodes: int = 1
    slot: int | None = None
    holdings: tuple[ChunkId, ...] = ()
    #: Bytes of chunk bodies that it can hold in memory and on disk; None: no limit.
    limit_bytes: int | None = None
    #: Bytes of chunk bodies that it can hold in memory; None: the same as ``limit_bytes``.
    memory_bytes: int | None = None
    #: CPU class and BLAS thread count: the bits of results depend on them.
    cpu: str = ""
    blas_threads: int = 1
    #: The last exchange that its earlier incarnation computed; its chunk states date from it.
    computed: ExchangeId = NO_EXCHANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Event):
    """A member has a solver, and its kernels are compiled: rounds and chunks may count on it."""

    member: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed(Event):
    """A member will leave within ``grace_s`` seconds."""

    member: MemberId
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeWithdrawn(Event):
    """A member's notice was withdrawn: it stays."""

    member: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(Event):
    """A member is lost: its link closed, its worker was removed, or the driver fenced it."""

    member: MemberId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone(Event):
    """A worker that is no member is gone: it will not arrive."""

    address: str


# --- data ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRead(Event):
    """A member has read a block and holds its chunks (none after a survey)."""

    member: MemberId
    block: int
    chunks: tuple[ChunkInfo, ...]
    #: Digest of the chunks' bodies.
    digest: str = ""
    #: Bytes of these bodies that were parsed, not taken from the host's cache; None: unknown.
    parsed_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksLocated(Event):
    """Workers hold blocks of the source in memory: those read them if they can."""

    #: Addresses of the holders of each held block.
    holders: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsFixed(Event):
    """The statistics of the whole data set are known: size, columns and classes."""

    survey: bool = False
    #: Whether the survey has found that the blocks must be surveyed once more.
    surveys_again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksLoaded(Event):
    """A member now holds these chunks: read from the data source, or received from ``source``."""

    member: MemberId
    chunks: tuple[ChunkId, ...]
    source: MemberId | None = None
    #: Bytes of bodies and states that were sent or read.
    nbytes: int = 0
    seconds: float = 0.0
    #: Number of the GiveChunks or CopyChunks order that this completes; None: no such order.
    order: int | None = None
    #: As in :class:`BlockRead`.
    parsed_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksDropped(Event):
    """A member has performed DropChunks; from now on it may be sent these chunks again."""

    member: MemberId
    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WentOutOfCore(Event):
    """A member's chunks no longer fit into its memory: it streams them from disk."""

    member: MemberId
    #: Bytes of the bodies that it holds, and its memory limit for them.
    nbytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFailed(Event):
    """A member could not send these chunks to ``target``; it still holds them."""

    member: MemberId
    target: MemberId
    chunks: tuple[ChunkId, ...]
    reason: str
    #: Number of the order that failed; None: unknown.
    order: int | None = None


# --- the exchange --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached(Event):
    """A child attached to its parent."""

    child: MemberId
    generation: Generation
    has_model: ExchangeId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialArrived(Event):
    """A partial arrived from a child."""

    exchange: ExchangeId
    sender: MemberId
    contributors: Mask
    order: str
    handle: int
    #: Compute seconds of the members whose partials are in it, as far as reported.
    compute_s: Mapping[MemberId, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed(Event):
    """The member's own partial of an exchange is computed (at a member)."""

    exchange: ExchangeId


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopEnded(Event):
    """The loop of a member in asynchronous mode has made all its passes; the member waits."""

    member: MemberId


#: What the header of an exchange has of each array of the model: the array itself where it is
#: computed with, its shape in the machines and on links.
Part = TypeVar("Part")
OtherPart = TypeVar("OtherPart")
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeHeader(Event, Generic[Part]):
    """The header of an exchange: all that accompanies its model, from the trainer to the solvers.

    The trainer's request contains it, the driver machine numbers it, and model frames carry it. At
    a member it is the event that the model has arrived, and the solver's view of the exchange.
    """

    exchange: ExchangeId = NO_EXCHANGE
    #: Generation of the tree at the start: a member computes if it knows this or a later one.
    generation: Generation = Generation(0)
    #: Mask of the members whose place or chunks changed with this generation; the others need not
    #: know it. None: all must.
    moved: Mask | None = None
    #: Number of participating members at the start: the papers' K.
    members: int = 1
    #: What the solver computes.
    operation: str
    #: The arrays that are broadcast, by name.
    model: Mapping[str, Part] = field(default_factory=dict)
    #: The arrays that are reduced, by name; a partial is their concatenation.
    returns: Mapping[str, Shape] = field(default_factory=dict)
    #: Small settings for the solver.
    parameters: Mapping[str, float | int | str | bool] = field(default_factory=dict)
    #: How partials are merged.
    reduce: Literal["sum", "max"] = "sum"
    #: Partials are kept as anchors until the next kept exchange.
    keep: bool = False

    def with_model(self, model: Mapping[str, OtherPart]) -> ExchangeHeader[OtherPart]:
        """Return the header with arrays of the model in place of their shapes."""
        return ExchangeHeader(
            exchange=self.exchange,
            generation=self.generation,
            moved=self.moved,
            members=self.members,
            operation=self.operation,
            model=model,
            returns=self.returns,
            parameters=self.parameters,
            reduce=self.reduce,
            keep=self.keep,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLinked(Event):
    """The link to the parent is open and the member has attached (at a member)."""

    peer: MemberId | None
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost(Event):
    """The link to another member closed (at a member)."""

    peer: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDown(Event):
    """A member reports that it cannot reach another one (at the driver)."""

    member: MemberId
    peer: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReported(Event):
    """Answer to AskStatus."""

    member: MemberId
    exchange: ExchangeId
    stage: Literal["waiting-for-model", "computing", "waiting-for-children", "sent"]
    #: Another job, for which the worker's compute thread runs meanwhile.
    busy_with: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorArrived(Event):
    """Answer to SendAnchor; ``handle`` is None if the member no longer has the partial."""

    member: MemberId
    exchange: ExchangeId
    sender: MemberId | None
    handle: int | None


# --- the trainer, the job ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRequested(Event):
    """The trainer requests an exchange."""

    #: Without number, generation and members, which the driver machine adds at the start.
    header: ExchangeHeader[Shape]
    phase: Literal["compute", "correct"]
    require_everybody: bool
    seal: bool
    #: It starts no earlier than ``report_every`` after the end of the last round.
    paced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFinished(Event):
    """The trainer ended a round; ``row`` has the history columns that it provides."""

    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerFinished(Event):
    """The trainer returned its model."""

    converged: bool
    reason: str
    objective: float | None
    row: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Event):
    """The job failed for a reason other than a cluster fault: bad data, a solver or trainer bug."""

    reason: str
    member: MemberId | None = None
    #: Kind of an error that may be the fault of the member's host alone.
    host_fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(Event):
    """A client cancelled the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersRefused(Event):
    """The cluster refused ``count`` of the requested members."""

    count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPerformed(Event):
    """A planned fault was performed, or failed with ``error``."""

    kind: Literal["lose", "return", "prepare"]
    error: str | None = None


#: What members report over their links, and the fields of which one names the member that reports.
REPORTS: Mapping[type[Event], tuple[str, ...]] = {
    **dict.fromkeys(
        (
            *(Ready, Noticed, NoticeWithdrawn, BlockRead, ChunksLoaded, ChunksDropped),
            *(WentOutOfCore, LoopEnded, LinkDown, StatusReported, AnchorArrived, Failed),
        ),
        ("member",),
    ),
    # Either end reports a transfer that failed.
    MoveFailed: ("member", "target"),
    Attached: ("child",),
    PartialArrived: ("sender",),
}
