"""What a policy may see and what it may ask for. Policies are pure: a view in, suggestions out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, overload, runtime_checkable

from elasticml.terms import ChunkId, GroupId, MemberId

Scalar = float | int | str | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A living member, as a policy sees it."""

    id: MemberId
    host: str
    #: Examples that it owns.
    rows: int
    stage: Literal["spare", "active", "leaving"] = "active"
    #: When it will go, if it has a notice; seconds since the job began.
    deadline_s: float | None = None
    #: Compute seconds of the last rounds in which it took part, newest last.
    seconds: tuple[float, ...] = ()
    #: The same divided by the examples that it owned in that round.
    seconds_per_row: tuple[float, ...] = ()
    #: Bytes of chunk bodies that it can hold; None where unknown.
    limit_bytes: int | None = None
    #: Bytes of those that fit into its memory; None where that is the same.
    memory_bytes: int | None = None
    #: Bytes of the bodies that it holds, or is about to get.
    held_bytes: int = 0
    #: Its container is asked for back: it works on, and is given nothing.
    is_marked: bool = False

    @property
    def in_memory_bytes(self) -> int | None:
        """Bytes of chunk bodies that fit into its memory; None where unknown."""
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
    #: What each of the former owned; they come back to the same target.
    shares: Mapping[MemberId, tuple[ChunkId, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One finished round, as the history has it."""

    round: int
    #: Seconds since the job began, at its end.
    seconds: float
    #: Members that took part.
    members: int
    objective: float | None = None
    #: Certified gap at the model with which the round ended; None where none was taken.
    gap: float | None = None
    gap_is_bound: bool = False


class Chunks(Protocol):
    """Looks chunks up in the ledger as it stands at this boundary; changes nothing."""

    def of(self, member: MemberId) -> tuple[ChunkId, ...]:
        """Chunks that a member owns, ascending."""
        ...

    def held_by(self, member: MemberId) -> frozenset[ChunkId]:
        """Chunks whose body a member has, owned or not."""
        ...

    def holders(self, chunk: ChunkId) -> frozenset[MemberId]:
        """Members that have a chunk's body."""
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


class Shown(Sequence[MemberView]):
    """Members whose facts are put together when a policy first looks at one of them.

    A policy that only counts members, as most do at most boundaries, does not wait for thousands
    of facts. A view that a policy keeps is completed before anything changes.

    Parameters
    ----------
    n : int
        How many there are.
    make : callable
        Puts their facts together.
    """

    def __init__(self, n: int, make: Callable[[], tuple[MemberView, ...]]) -> None:
        self._n = n
        self._make = make
        self._members: tuple[MemberView, ...] | None = None

    def seen(self) -> tuple[MemberView, ...]:
        """Put the facts together, if they are not yet."""
        if self._members is None:
            self._members = self._make()
        return self._members

    def __len__(self) -> int:
        """Count the members."""
        return self._n

    def __iter__(self) -> Iterator[MemberView]:
        """Go through the members."""
        return iter(self.seen())

    @overload
    def __getitem__(self, k: int) -> MemberView: ...

    @overload
    def __getitem__(self, k: slice) -> tuple[MemberView, ...]: ...

    def __getitem__(self, k: int | slice) -> MemberView | tuple[MemberView, ...]:
        """Return one member, or some of them."""
        return self.seen()[k]

    # As with a tuple of members, which other fields of a view are.

    def __add__(self, other: object) -> tuple[MemberView, ...]:
        """Append the members of another field."""
        if not isinstance(other, tuple | Shown):
            return NotImplemented
        return (*self.seen(), *other)

    def __radd__(self, other: object) -> tuple[MemberView, ...]:
        """Append these members to another field's."""
        if not isinstance(other, tuple):
            return NotImplemented
        return (*other, *self.seen())

    def __eq__(self, other: object) -> bool:
        """Whether these are the same members with the same facts."""
        if not isinstance(other, tuple | Shown):
            return NotImplemented
        return self.seen() == tuple(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The facts at a round boundary."""

    now_s: float
    round: int
    #: Oldest first.
    groups: tuple[GroupView, ...]
    #: Ready members without chunks, and not promised any; marked ones only where nobody is steady.
    spares: tuple[MemberView, ...]
    #: Members that own chunks and stay.
    working: Sequence[MemberView]
    #: Members with a notice.
    leaving: tuple[MemberView, ...] = ()
    #: Finished rounds, oldest first.
    history: Sequence[Progress] = ()
    chunks: Chunks | None = None
    #: Changes of owners and holders so far: at the same number all chunks are where they were.
    changes: int = 0
    #: The settings that policies have tuned so far.
    tuned: Mapping[str, Scalar] = field(default_factory=dict)
    #: Members asked for that have not come yet.
    requested: int = 0
    #: Members that a planned return brings at this boundary, and that are not here yet.
    expected: int = 0
    #: Members that planned returns of later rounds bring.
    planned: int = 0
    #: Members with which the job began; 0 where that is not known.
    start_members: int = 0
    #: Examples that nobody owns: of groups, returning ones too, and of the open set.
    absent_rows: int = 0
    #: Copies of every body that the job wants.
    holders: int = 1
    #: Bodies that are being copied to further holders: chunk -> to whom.
    copying: Mapping[ChunkId, MemberId] = field(default_factory=dict)
    #: Chunks that are changing their owner; none at the beginning of a boundary.
    moving: int = 0
    #: Chunks on their way to a new owner, those of groups that return included: chunk -> to whom.
    coming: Mapping[ChunkId, MemberId] = field(default_factory=dict)
    #: Bytes a second that chunk moves are taken to reach.
    move_bytes_per_s: float = 200e6
    #: Of the job: with the round it is the only source of chance that a policy has.
    seed: int = 0

    @property
    def steady(self) -> Sequence[MemberView]:
        """Members that work and that nobody asks back; all that work where everybody is marked."""
        steady = tuple(m for m in self.working if not m.is_marked)
        return self.working if all(m.is_marked for m in (*steady, *self.spares)) else steady

    @property
    def has_waited(self) -> bool:
        """Whether the last round did nothing but wait: nobody has used what was done before it."""
        return bool(self.history) and self.history[-1].round < self.round - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Readmit:
    """Bring a group back: the share of ``former[i]`` goes to ``targets[i]``.

    With ``owners`` every chunk goes to the member that it names instead.
    """

    group: GroupId
    targets: tuple[MemberId, ...]
    why: str
    owners: Mapping[ChunkId, MemberId] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Change owners before the next round; the round waits for it.

    Where the target holds the body already, only the chunk's state travels.
    """

    targets: Mapping[ChunkId, MemberId]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate:
    """Copy bodies to further holders while rounds go on, at a limited rate; owners stay."""

    targets: Mapping[ChunkId, MemberId]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Have a holder that does not own these chunks drop its copies."""

    member: MemberId
    chunks: tuple[ChunkId, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Empty members before the next round and give their containers back.

    ``targets`` says where the chunks go; without it they go round-robin to those that stay.
    """

    members: tuple[MemberId, ...]
    why: str
    targets: Mapping[ChunkId, MemberId] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Ask the cluster for so many more members."""

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
        """Return what shall be done, most urgent first; the driver drops what has become void.

        Asked once at every round boundary; a policy may keep what it has seen from call to call,
        and must give the same answers to the same views.
        """
        ...


@runtime_checkable
class RememberingPolicy(Policy, Protocol):
    """A policy that keeps what it has seen when a job goes on in another process.

    One without these two methods begins anew there.
    """

    def state(self) -> Mapping[str, Any]:
        """Return what it goes by besides its settings: numbers, words, lists, mappings of words.

        Another life of the policy is given the same, read back from JSON.
        """
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a former life's :meth:`state`."""
        ...


@runtime_checkable
class StandingPolicy(Policy, Protocol):
    """A policy that is asked whenever a boundary is looked at, until nothing more follows.

    Its suggestions must come to an end: no Request, no Tune, and no chunks moved to and fro.
    """

    is_standing: Literal[True]
