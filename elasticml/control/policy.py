"""The policy interface: what a policy sees and what it may suggest.

Policies are pure: a view goes in, suggestions come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, overload, runtime_checkable

from elasticml.control.membership import MemberRecord
from elasticml.ids import ChunkId, GroupId, MemberId

Scalar = float | int | str | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A living member, as a policy sees it."""

    id: MemberId
    host: str
    #: Examples that it owns.
    rows: int
    stage: Literal["spare", "active", "leaving"] = "active"
    #: When it will be gone, in seconds since the job started; None: no notice.
    deadline_s: float | None = None
    #: Compute seconds of the last rounds in which it participated, newest last; more if it answered
    #: far later than the others.
    seconds: tuple[float, ...] = ()
    #: Compute seconds per example owned, of the same rounds.
    seconds_per_row: tuple[float, ...] = ()
    #: Bytes of chunk bodies that it can hold; None: unknown.
    limit_bytes: int | None = None
    #: Bytes of chunk bodies that fit into its memory; None: the same as ``limit_bytes``.
    memory_bytes: int | None = None
    #: Bytes of the bodies that it holds or is receiving.
    held_bytes: int = 0
    #: The resource manager asks for its container: it keeps working but gets no chunks.
    is_marked: bool = False
    #: It is marked and will be drained, but not yet: others should hold its bodies by then.
    is_ending: bool = False

    @property
    def in_memory_bytes(self) -> int | None:
        """Bytes of chunk bodies that fit into its memory; None: unknown."""
        return self.limit_bytes if self.memory_bytes is None else self.memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A sealed group of absent chunks, as a policy sees it."""

    id: GroupId
    #: Members that owned the chunks, ascending; |Q| is their number.
    former: tuple[MemberId, ...]
    rows: int
    absent_since_s: float
    chunks: tuple[ChunkId, ...] = ()
    #: Chunks of each former owner; those of one owner return to one target.
    shares: Mapping[MemberId, tuple[ChunkId, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One finished round."""

    round: int
    #: Seconds from the start of the job to the end of the round.
    seconds: float
    #: Members that participated.
    members: int
    objective: float | None = None
    #: Certified gap of the model with which the round ended; None: not computed.
    gap: float | None = None
    gap_is_bound: bool = False


class Chunks(Protocol):
    """Read-only chunk lookups in the ledger as it is at this boundary."""

    def of(self, member: MemberId) -> tuple[ChunkId, ...]:
        """Chunks that a member owns, ascending."""
        ...

    def held_by(self, member: MemberId) -> frozenset[ChunkId]:
        """Chunks whose body a member holds, owned or not."""
        ...

    def holders(self, chunk: ChunkId) -> frozenset[MemberId]:
        """Members that hold a chunk's body."""
        ...

    def owner(self, chunk: ChunkId) -> MemberId | None:
        """Owner of a chunk, or None while it is absent."""
        ...

    def rows(self, chunk: ChunkId) -> int:
        """Examples in a chunk."""
        ...

    def nbytes(self, chunk: ChunkId) -> int:
        """Bytes of a chunk's body."""
        ...


class LazyMembers(Sequence[MemberView]):
    """Members of a view, built when a policy first looks at one of them.

    A policy that only counts members, as most do at most boundaries, or asks for their examples,
    does not pay for thousands of member views. A view that a policy keeps is completed before the
    state changes.

    Parameters
    ----------
    n : int
        Number of members.
    records : callable
        Lists them.
    make : callable
        Builds the view of one.
    rows_of : callable
        Returns the number of examples that a member owns.
    """

    def __init__(
        self,
        n: int,
        records: Callable[[], Sequence[MemberRecord]],
        make: Callable[[MemberRecord], MemberView],
        rows_of: Callable[[MemberId], int],
    ) -> None:
        self._n = n
        self._records = records
        self._make = make
        self._rows_of = rows_of
        self._members: tuple[MemberView, ...] | None = None
        self._by_id: dict[MemberId, MemberRecord] = {}

    def seen(self) -> tuple[MemberView, ...]:
        """Return the member views, built on first use."""
        if self._members is None:
            self._members = tuple([self._make(record) for record in self._records()])
        return self._members

    def loads(self, unmarked: bool = False) -> dict[MemberId, int]:
        """Return the examples of the members, or of the unmarked ones, without their views."""
        if self._members is not None:
            return {m.id: m.rows for m in self._members if not (unmarked and m.is_marked)}
        rows_of = self._rows_of
        return {r.id: rows_of(r.id) for r in self._records() if not (unmarked and r.is_marked)}

    def limit_bytes(self, id: MemberId) -> int | None:
        """Return the ``limit_bytes`` of one member, without any view."""
        if not self._by_id:
            self._by_id = {record.id: record for record in self._records()}
        return self._by_id[id].limit_bytes

    def __len__(self) -> int:
        """Count the members."""
        return self._n

    def __iter__(self) -> Iterator[MemberView]:
        """Iterate over the members."""
        return iter(self.seen())

    @overload
    def __getitem__(self, k: int) -> MemberView: ...

    @overload
    def __getitem__(self, k: slice) -> tuple[MemberView, ...]: ...

    def __getitem__(self, k: int | slice) -> MemberView | tuple[MemberView, ...]:
        """Return one member, or a slice."""
        return self.seen()[k]

    # Like the tuples of members in the other fields of a view.

    def __add__(self, other: object) -> tuple[MemberView, ...]:
        """Append the members of another field."""
        if not isinstance(other, tuple | LazyMembers):
            return NotImplemented
        return (*self.seen(), *other)

    def __radd__(self, other: object) -> tuple[MemberView, ...]:
        """Append these members to another field's."""
        if not isinstance(other, tuple):
            return NotImplemented
        return (*other, *self.seen())

    def __eq__(self, other: object) -> bool:
        """Whether the member views are equal."""
        if not isinstance(other, tuple | LazyMembers):
            return NotImplemented
        return self.seen() == tuple(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The state of the job at a round boundary."""

    now_s: float
    round: int
    #: Oldest first.
    groups: tuple[GroupView, ...]
    #: Configured members that own no chunks and await none; marked ones only if all are marked.
    spares: Sequence[MemberView]
    #: Members that own chunks and are not leaving.
    working: Sequence[MemberView]
    #: Members that are leaving.
    leaving: tuple[MemberView, ...] = ()
    #: Finished rounds, oldest first.
    history: Sequence[Progress] = ()
    chunks: Chunks | None = None
    #: Number of changes of owners and holders so far: if it is unchanged, so are all of them.
    changes: int = 0
    #: Settings that policies have tuned so far.
    tuned: Mapping[str, Scalar] = field(default_factory=dict)
    #: Members that were requested and have not arrived yet.
    requested: int = 0
    #: Members of a planned return at this boundary that have not arrived yet, or warm up.
    expected: int = 0
    #: Members of planned returns in later rounds.
    planned: int = 0
    #: Members at the start of the job; 0: unknown.
    start_members: int = 0
    #: Examples without an owner: in groups, including returning ones, and in the open set.
    absent_rows: int = 0
    #: Wanted number of holders of every body.
    holders: int = 1
    #: Whether members own ranges of the file, so that each one's chunks are of few blocks.
    is_contiguous: bool = False
    #: Pending copies of bodies: chunk -> new holder.
    copying: Mapping[ChunkId, MemberId] = field(default_factory=dict)
    #: Number of chunks moving to a new owner; 0 when the boundary is first evaluated.
    moving: int = 0
    #: Chunks on their way to a new owner, including those of returning groups: chunk -> owner.
    coming: Mapping[ChunkId, MemberId] = field(default_factory=dict)
    #: False if no member is near its announced end, so that the members need not be searched.
    has_ending: bool = True
    #: Assumed rate of chunk moves.
    move_bytes_per_s: float = 200e6
    #: The job's seed: with the round, the only source of randomness of a policy.
    seed: int = 0

    @property
    def steady(self) -> Sequence[MemberView]:
        """Working members that are not marked; all working members if all members are marked."""
        steady = tuple(m for m in self.working if not m.is_marked)
        return self.working if not steady and all(m.is_marked for m in self.spares) else steady

    def loads(self) -> dict[MemberId, int]:
        """Return the examples of the working members, without a view of each."""
        return _loads(self.working)

    def steady_loads(self) -> dict[MemberId, int]:
        """Return the examples of the members in ``steady``, without a view of each."""
        unmarked = _loads(self.working, unmarked=True)
        if unmarked or not all(m.is_marked for m in self.spares):
            return unmarked
        return self.loads()

    def limit_bytes(self, id: MemberId) -> int | None:
        """Return the ``limit_bytes`` of a working member, without a view of each."""
        working = self.working
        if isinstance(working, LazyMembers):
            return working.limit_bytes(id)
        return next(m.limit_bytes for m in working if m.id == id)

    @property
    def has_waited(self) -> bool:
        """Whether the last round was idle: no round has used the decisions made before it."""
        return bool(self.history) and self.history[-1].round < self.round - 1


def _loads(members: Sequence[MemberView], unmarked: bool = False) -> dict[MemberId, int]:
    if isinstance(members, LazyMembers):
        return members.loads(unmarked)
    return {m.id: m.rows for m in members if not (unmarked and m.is_marked)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Readmit:
    """Bring a group back: the share of ``former[i]`` goes to ``targets[i]``.

    If ``owners`` is given, every chunk goes to the member that it names instead.
    """

    group: GroupId
    targets: tuple[MemberId, ...]
    why: str
    owners: Mapping[ChunkId, MemberId] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Change owners before the next round; the round waits for it.

    If the target already holds the body, only the chunk's state is sent.
    """

    targets: Mapping[ChunkId, MemberId]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate:
    """Copy bodies to more holders in the background, at a limited rate; owners do not change."""

    targets: Mapping[ChunkId, MemberId]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Drop the copies of a holder that does not own these chunks."""

    member: MemberId
    chunks: tuple[ChunkId, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Drain members before the next round and give their containers back.

    ``targets`` says where the chunks go; others go to the staying members with fewest examples.
    """

    members: tuple[MemberId, ...]
    why: str
    targets: Mapping[ChunkId, MemberId] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request ``count`` more members from the cluster."""

    count: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tune:
    """Change a setting of the algorithm from the next round on."""

    name: str
    value: Scalar
    why: str


Suggestion = Readmit | Move | Replicate | Discard | Retire | Request | Tune


class Policy(Protocol):
    """Decides between rounds."""

    name: str

    def suggest(self, view: View) -> Sequence[Suggestion]:
        """Return suggestions, most urgent first; the driver drops those that have become void.

        Called once per round boundary. A policy may keep state between calls, and must answer the
        same sequence of views with the same suggestions.
        """
        ...


@runtime_checkable
class StatefulPolicy(Policy, Protocol):
    """A policy whose state is checkpointed with the job.

    A policy without these two methods starts from scratch when a job resumes in another process.
    """

    def state(self) -> Mapping[str, Any]:
        """Return its state besides the settings, as plain JSON values.

        :meth:`restore` of another instance receives the same, read back from JSON.
        """
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the :meth:`state` of an earlier instance."""
        ...


@runtime_checkable
class ScalingPolicy(Policy, Protocol):
    """A policy that requests members: until its first decision, those of the start are enough."""

    scales_out: Literal[True]


@runtime_checkable
class StandingPolicy(Policy, Protocol):
    """A policy that is asked every time a boundary is evaluated, until it has no effect.

    Its suggestions must converge: no Request, no Tune, and no chunks moved back and forth.
    """

    is_standing: Literal[True]
