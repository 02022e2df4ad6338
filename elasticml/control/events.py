"""What happened, as values: the only way anything enters a control machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from elasticml.terms import (
    NO_EXCHANGE,
    ChunkId,
    ChunkInfo,
    ExchangeId,
    Generation,
    Mask,
    MemberId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Root of all events; ``cause`` says where it comes from, in a few words."""

    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked(Event):
    """Time has passed."""


# --- membership ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived(Event):
    """A worker offers itself; ``holdings`` are chunks that it still has from an earlier life."""

    arrival: int
    address: str
    host: str
    pid: int
    threads: int = 1
    #: NUMA nodes that its threads span.
    nodes: int = 1
    slot: int | None = None
    holdings: tuple[ChunkId, ...] = ()
    #: Bytes of chunk bodies that it can hold, in memory and on its disk; None without limit.
    limit_bytes: int | None = None
    #: What of them it can hold in memory; None where that is the same.
    memory_bytes: int | None = None
    #: Class of its processor, and threads of its linear algebra library: bits depend on them.
    cpu: str = ""
    blas_threads: int = 1
    #: The last exchange that its earlier life has computed; its chunks' states are of that one.
    computed: ExchangeId = NO_EXCHANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed(Event):
    """A member will go within ``grace_s`` seconds."""

    member: MemberId
    grace_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeWithdrawn(Event):
    """A member will not go after all."""

    member: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerMarked(Event):
    """The container at an address is asked for back."""

    address: str
    #: Seconds until what is in it is stopped, at the earliest.
    grace_s: float
    #: Why it will have gone: "preempted", ...
    reason: str
    #: Another member's container would do as well.
    negotiable: bool = False
    #: No member is in it, and the job cannot live without it.
    essential: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLifted(Event):
    """The container at an address is no longer asked for."""

    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStopping(Event):
    """What is in the container at an address has been told to end within ``grace_s`` seconds."""

    address: str
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEnded(Event):
    """How the container at an address ended; known before the member's loss is seen, or after."""

    address: str
    container: str
    reason: str
    status: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanged(Event):
    """A node is being taken out, was lost, or is back; ``addresses`` are those of its workers."""

    node: str
    state: str
    grace_s: float = 0.0
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(Event):
    """A member is gone: its link closed, its worker was removed, or the driver fenced it."""

    member: MemberId
    reason: str


# --- data ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRead(Event):
    """A member has read a block and holds its chunks (none after a survey)."""

    member: MemberId
    block: int
    chunks: tuple[ChunkInfo, ...]
    #: Of the chunks' bodies.
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsFixed(Event):
    """The driver knows the whole data set's size, columns and classes."""

    survey: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksLoaded(Event):
    """A member holds these chunks now: read from the source, or received from ``source``."""

    member: MemberId
    chunks: tuple[ChunkId, ...]
    source: MemberId | None = None
    #: Of bodies and states that travelled, or were read.
    nbytes: int = 0
    seconds: float = 0.0
    #: The number of the GiveChunks or CopyChunks order that this fulfils; None: of no such order.
    order: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksDropped(Event):
    """A member has done what DropChunks told it; from now on it may be sent these chunks again."""

    member: MemberId
    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WentOutOfCore(Event):
    """A member's chunks do not fit into its memory any more: they stream from its disk."""

    member: MemberId
    #: Bytes of the bodies that it holds, and those that it had memory for.
    nbytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFailed(Event):
    """A member could not send these chunks to ``target``; it still holds them."""

    member: MemberId
    target: MemberId
    chunks: tuple[ChunkId, ...]
    reason: str
    #: The number of the order that failed; None where it is not known.
    order: int | None = None


# --- the exchange --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached(Event):
    """A child reports for duty at its parent."""

    child: MemberId
    generation: Generation
    has_model: ExchangeId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialArrived(Event):
    """A partial came up a link."""

    exchange: ExchangeId
    sender: MemberId
    contributors: Mask
    order: str
    handle: int
    #: Compute seconds of members whose partials are in it, as far as they told.
    compute_s: Mapping[MemberId, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed(Event):
    """The own share of an exchange is ready (at a member)."""

    exchange: ExchangeId


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopEnded(Event):
    """A member of a free-running job has made all its passes and waits."""

    member: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArrived(Event):
    """The model of an exchange came down a link (at a member)."""

    exchange: ExchangeId
    generation: Generation
    keep: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLinked(Event):
    """The link to the parent is open and the parent has been told (at a member)."""

    peer: MemberId | None
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost(Event):
    """The link to another member closed (at a member)."""

    peer: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkDown(Event):
    """A member cannot reach another one (at the driver)."""

    member: MemberId
    peer: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusTold(Event):
    """A member's answer to AskStatus."""

    member: MemberId
    exchange: ExchangeId
    stage: Literal["waiting-for-model", "computing", "waiting-for-children", "sent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorArrived(Event):
    """A member's answer to SendAnchor; ``handle`` None when it no longer has it."""

    member: MemberId
    exchange: ExchangeId
    sender: MemberId | None
    handle: int | None


# --- the trainer, the job ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRequested(Event):
    """The trainer wants an exchange."""

    operation: str
    phase: Literal["compute", "correct"]
    keep: bool
    require_everybody: bool
    seal: bool
    #: It begins no sooner than ``report_every`` after the last round's end.
    paced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFinished(Event):
    """The trainer ended a round; ``row`` are the history's columns that it knows."""

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
    """Something that is no fault of the cluster: wrong data, a bug in a solver or a trainer."""

    reason: str
    member: MemberId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(Event):
    """Somebody wants the job to end now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersRefused(Event):
    """The cluster will not give so many of the members that were asked for."""

    count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPerformed(Event):
    """A planned fault was carried out, or could not be."""

    kind: Literal["lose", "return", "prepare"]
    error: str | None = None
