"""The records of a story: one dataclass for each event.

A line of ``story.jsonl`` is the JSON of one record: ``t``, ``event``, ``cause``, then the fields of
its class in the order in which they are declared. An event that has no class here, of a newer or
older version, is an :class:`UnknownRecord`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from elasticml.story.history import HistoryRow
from elasticml.story.json_fields import OPTIONAL, JsonFields, fields_from_json

R = TypeVar("R", bound="StoryRecord")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryRecord(JsonFields):
    """What every record has. Member ids are text, ``"slot.incarnation"``."""

    #: Classes by the name of their event, which is the name of the class.
    kinds: ClassVar[dict[str, type[StoryRecord]]] = {}

    #: Seconds since the job started; set when the record is appended to the journal.
    t: float = 0.0
    #: The event or the reason that led to it.
    cause: str = ""
    #: The round under way; None in records that have none.
    round: int | None = field(default=None, metadata=OPTIONAL)

    def __init_subclass__(cls) -> None:
        """Register the class under its name."""
        StoryRecord.kinds[cls.__name__] = cls

    @property
    def event(self) -> str:
        """The name of the event in JSON."""
        return type(self).__name__

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values, in the order of a line of the story."""
        values: dict[str, Any] = {"t": self.t, "event": self.event}
        values.update(self.fields_json())
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRecord(StoryRecord):
    """An event of another version; its fields are in ``extra``."""

    @property
    def event(self) -> str:
        """The name of the event in JSON."""
        return str(self.extra.get("event"))


def record_from_json(values: Mapping[str, Any]) -> StoryRecord:
    """Read a record."""
    kind = StoryRecord.kinds.get(str(values.get("event")))
    if kind is None:
        return fields_from_json(UnknownRecord, values)
    return fields_from_json(kind, {name: v for name, v in values.items() if name != "event"})


def records_from_json(story: Iterable[Mapping[str, Any]]) -> list[StoryRecord]:
    """Read all records of a story."""
    return [record_from_json(values) for values in story]


def records_of(
    kind: type[R] | tuple[type[R], ...], story: Iterable[Mapping[str, Any]]
) -> Iterator[R]:
    """Read the records of a class or of several, and of subclasses, and skip the others."""
    for values in story:
        if issubclass(StoryRecord.kinds.get(str(values.get("event")), UnknownRecord), kind):
            yield record_from_json(values)  # type: ignore[misc]


def some_rounds(story: Sequence[Mapping[str, Any]], rounds_max: int) -> Iterator[Mapping[str, Any]]:
    """Leave out what repeats each round, except in evenly spaced rounds, ``rounds_max`` at most.

    What changes rarely is kept of all rounds, the examples of each member included.
    """
    n = sum(values.get("event") == "RoundEnded" for values in story)
    every = -(-n // rounds_max)
    for values in story:
        is_often = every > 1 and values.get("event") in _EACH_ROUND and values.get("rows") is None
        if not is_often or (values.get("round") or 0) % every == 0:
            yield values


#: Events of every round.
_EACH_ROUND = frozenset({"RoundStarted", "ExchangeEnded", "RoundEnded"})


def first_of(kind: type[R], records: Iterable[StoryRecord]) -> R | None:
    """Return the first record of a class, if there is one."""
    return next((record for record in records if isinstance(record, kind)), None)


# --- the job ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBegun(StoryRecord):
    """What the first records of all attempts have."""

    job: str
    name: str | None
    #: The job record, without arrays.
    spec: Mapping[str, Any]
    warm_start_digest: str | None = field(default=None, metadata=OPTIONAL)
    versions: Mapping[str, str]
    #: Class of the driver's processor; empty in stories of old versions.
    cpu: str
    blas_threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(JobBegun):
    """The first record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResumed(JobBegun):
    """Another process continues from a checkpoint, with new members."""

    attempt: int
    #: The round with which the job continues.
    round: int
    #: Number of the checkpoint.
    checkpoint: int
    #: Members of the former attempt that owned chunks.
    members: tuple[str, ...]
    #: Work of the former attempt that is done again; None if unknown.
    repeated_rounds: int | None
    repeated_s: float | None
    #: Checkpoints that were passed over, as sentences.
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded(StoryRecord):
    """The last record."""

    #: done, failed or cancelled.
    state: str
    reason: str
    converged: bool | None
    #: Number of rounds; None if the story does not say it.
    round: int | None
    #: Number of computations of each member.
    computations: Mapping[str, int]
    #: Digest of all inputs and outputs of the trainer.
    digest: str
    #: How far the model is from the job's tolerance or target, why, and what to do; empty if it
    #: reached it, or the job had none.
    unconverged: str = field(default="", metadata=OPTIONAL)
    #: Traceback of the exception, perhaps in another process, that ended the job.
    traceback: str = field(default="", metadata=OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(StoryRecord):
    """The job cannot compute, and has not been able to for a second or more."""

    #: members, blocks, chunks, compiled members, or partials.
    what: str
    have: int
    need: int
    #: When the wait began.
    since_s: float
    #: The members that are awaited, at most some of them.
    who: tuple[str, ...] = field(default=(), metadata=OPTIONAL)
    #: What would end the wait.
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitEnded(StoryRecord):
    """The job goes on after a wait that was recorded."""

    what: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten(StoryRecord):
    """A checkpoint of the state before ``round`` was written."""

    checkpoint: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(StoryRecord):
    """The first of several checkpoints that could not be written."""

    error: str


# --- data and chunks --------------------------------------------------------------------------
# ``chunks`` is a number where the record is for readers, and text with ranges of chunk ids
# (``elasticml/protocol/chunk_ranges.py``) where the whole set matters.


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRead(StoryRecord):
    """A member has read a block of the source."""

    member: str
    block: int
    #: Digest of the chunks of the block.
    digest: str
    #: Bytes of their bodies that were parsed, not taken from the host's cache; None: unknown.
    parsed_bytes: int | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoaded(StoryRecord):
    """All blocks were read."""

    rows: int | None
    features: int | None
    chunks: int | None
    bytes: int | None
    notes: tuple[str, ...]
    #: Bytes of bodies that this attempt has parsed, not taken from the hosts' caches.
    parsed_bytes: int | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDealt(StoryRecord):
    """The initial placement of the chunks is complete."""

    chunks: int
    bytes: int
    rows: int | None
    members: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksOwned(StoryRecord):
    """A member was told the whole set of chunks that it owns."""

    member: str
    chunks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksGiven(StoryRecord):
    """A member was ordered to send chunks."""

    member: str
    target: str
    order: int
    chunks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksLoaded(StoryRecord):
    """A member has chunks, by an order to their sender or read from the source."""

    member: str
    chunks: str
    source: str | None = field(default=None, metadata=OPTIONAL)
    order: int | None = field(default=None, metadata=OPTIONAL)
    parsed_bytes: int | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksDropped(StoryRecord):
    """A member has dropped its copies."""

    member: str
    chunks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksMoved(StoryRecord):
    """Chunks changed their owner."""

    source: str
    target: str
    chunks: int
    examples: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksCopied(StoryRecord):
    """A further member holds the bodies of chunks."""

    source: str
    target: str
    chunks: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFailed(StoryRecord):
    """Chunks stay with their owner."""

    source: str
    target: str
    chunks: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksAbsent(StoryRecord):
    """The open set of absent chunks was sealed as a group."""

    group: int | None
    chunks: int
    examples: int
    #: Their former owners.
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReadmitted(StoryRecord):
    """The chunks of a group are being loaded."""

    group: int | None
    members: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWithoutRoom(StoryRecord):
    """A group stays absent because the members lack memory."""

    group: int | None
    lacking_bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReturned(StoryRecord):
    """The chunks of a group have owners again."""

    group: int | None
    chunks: int
    examples: int
    members: tuple[str, ...]
    absent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WentOutOfCore(StoryRecord):
    """A member streams its chunks from disk."""

    member: str
    nbytes: int
    limit_bytes: int


# --- members and containers -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined(StoryRecord):
    """A worker was admitted as a member."""

    member: str
    host: str
    pid: int
    address: str
    threads: int
    #: Number of NUMA nodes that its threads span.
    nodes: int = 1
    blas_threads: int
    cpu: str
    #: Chunks that its process kept from an earlier incarnation, and the last exchange then.
    holdings: str | None = field(default=None, metadata=OPTIONAL)
    computed: int | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpare(StoryRecord):
    """A member has no chunks any more."""

    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberActive(StoryRecord):
    """A member participates from this round on."""

    member: str
    chunks: int
    examples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberNoticed(StoryRecord):
    """A member will leave."""

    member: str
    grace_s: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeWithdrawn(StoryRecord):
    """A member stays after all."""

    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLost(StoryRecord):
    """A member is gone: lost, or released after a notice."""

    member: str
    reason: str
    #: Chunks lost with it.
    chunks: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberKept(StoryRecord):
    """A member that was to leave for a marked container stays."""

    member: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRetiring(StoryRecord):
    """A policy gives a member back."""

    member: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersRefused(StoryRecord):
    """The cluster refused members that policies requested."""

    count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed(StoryRecord):
    """The resource manager asks for a container."""

    #: The member in that container.
    marked: str | None
    #: The member that leaves for it; None if none does yet.
    given: str | None
    address: str
    #: Bytes that have to be sent or read again because the member leaves.
    cost_bytes: int
    grace_s: float | None
    reason: str
    negotiable: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimLifted(StoryRecord):
    """The resource manager no longer asks for a container."""

    member: str | None
    address: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStopping(StoryRecord):
    """A container has got SIGTERM."""

    member: str
    grace_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEnded(StoryRecord):
    """A container ended; the exit status may arrive after the member was lost."""

    member: str | None
    container: str
    reason: str
    status: int | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanged(StoryRecord):
    """A machine is decommissioned or lost, or is back."""

    node: str
    state: str
    grace_s: float | None
    members: tuple[str, ...]


# --- rounds -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted(StoryRecord):
    """A round begins."""

    #: Examples of each slot, if they have changed since the last such record.
    rows: Mapping[str, int] | None = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeEnded(StoryRecord):
    """An exchange was delivered to the trainer."""

    exchange: int
    operation: str
    phase: str
    start_t: float | None
    #: Masks of slots, hexadecimal.
    contributors: str
    missing: str
    #: The parenthesised order of the additions.
    order: str
    examples: int
    absent_examples: int
    #: The group that was sealed because of this exchange.
    opened: int | None
    #: The exchange of whose kept partials a share was added.
    anchor: int | None
    #: Groups that are absent.
    absent: tuple[int, ...] = field(default=(), metadata=OPTIONAL)
    #: Sign and mask of each kept partial.
    anchor_parts: tuple[tuple[int, str], ...] = field(default=(), metadata=OPTIONAL)
    #: Compute seconds by slot.
    compute_s: Mapping[str, float] = field(default_factory=dict)
    #: Digest of all inputs and outputs of the trainer before this sum.
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnded(StoryRecord):
    """A round ended; ``extra`` holds the columns of its row of the history."""

    idle: bool

    @property
    def row(self) -> HistoryRow:
        """The row of the history, without the counters of the journal."""
        return HistoryRow({"round": self.round, **self.extra})


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalModel(StoryRecord):
    """The trainer returned the model; ``extra`` holds its columns of the history."""

    @property
    def row(self) -> HistoryRow:
        """The row of the history, without the counters of the journal."""
        return HistoryRow({"round": self.round, **self.extra})


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierModelKept(StoryRecord):
    """The job returns the model with which ``round`` began: the best one of which it is certain."""

    #: Over all examples; an upper bound if examples were absent.
    objective: float
    is_bound: bool

    @property
    def text(self) -> str:
        """The sentence for the summary."""
        known = "is at most" if self.is_bound else "is"
        return (
            f"the model is that with which round {self.round} began: its objective {known} "
            f"{self.objective:.6g} over all examples; that of the last model is higher, or nothing "
            "certain is known of it, since members were away"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsTuned(StoryRecord):
    """Policies changed settings of the trainer."""

    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsStopped(StoryRecord):
    """The trainer was told to stop."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecided(StoryRecord):
    """A suggestion of a policy was applied."""

    policy: str
    #: The class of the suggestion (``elasticml/control/policy.py``); the rest depends on it.
    suggestion: str
    why: str
    group: int | None = field(default=None, metadata=OPTIONAL)
    chunks: int | None = field(default=None, metadata=OPTIONAL)
    member: str | None = field(default=None, metadata=OPTIONAL)
    members: tuple[str, ...] | None = field(default=None, metadata=OPTIONAL)
    count: int | None = field(default=None, metadata=OPTIONAL)
    setting: str | None = field(default=None, metadata=OPTIONAL)
    value: Any = field(default=None, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultInjected(StoryRecord):
    """A planned fault is performed: members are lost, or return."""

    #: lose or return.
    kind: str
    how: str | None = field(default=None, metadata=OPTIONAL)
    phase: str | None = field(default=None, metadata=OPTIONAL)
    members: tuple[str, ...] | None = field(default=None, metadata=OPTIONAL)
    count: int | None = field(default=None, metadata=OPTIONAL)


# --- of simulations alone ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted(StoryRecord):
    """The simulated resource manager starts containers."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted(StoryRecord):
    """The simulated cluster takes members away."""

    members: tuple[str, ...]
    how: str
    #: Seconds until each is back; None: it does not return.
    away_s: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainersAsked(StoryRecord):
    """The simulated resource manager asks for containers."""

    members: tuple[str, ...]
    grace_s: float
    negotiable: bool
