"""A minimal world for policies: members with speeds, chunks, a gap that falls.

Times are examples times seconds per example; moves and requested members arrive at once; the
progress of a round is a function of the number of members and the gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from elasticml.control.placement import to_newcomers
from elasticml.control.policy import (
    Discard,
    MemberView,
    Move,
    Policy,
    Progress,
    Readmit,
    Replicate,
    Request,
    Retire,
    Suggestion,
    Tune,
    View,
)
from elasticml.control.seeded_random import shuffled
from elasticml.ids import ChunkId, ChunkInfo, MemberId


def member(slot: int) -> MemberId:
    return MemberId(slot, 1)


def chunk(ordinal: int) -> ChunkId:
    return ChunkId("data", 0, ordinal)


@dataclass
class FakeChunks:
    """A ledger of chunks in two dicts."""

    infos: dict[ChunkId, ChunkInfo]
    owners: dict[ChunkId, MemberId]
    held: dict[ChunkId, set[MemberId]]

    def of(self, member: MemberId) -> tuple[ChunkId, ...]:
        return tuple(sorted(c for c, m in self.owners.items() if m == member))

    def held_by(self, member: MemberId) -> frozenset[ChunkId]:
        return frozenset(c for c, members in self.held.items() if member in members)

    def holders(self, chunk: ChunkId) -> frozenset[MemberId]:
        return frozenset(self.held[chunk])

    def owner(self, chunk: ChunkId) -> MemberId | None:
        return self.owners.get(chunk)

    def rows(self, chunk: ChunkId) -> int:
        return self.infos[chunk].rows

    def nbytes(self, chunk: ChunkId) -> int:
        return self.infos[chunk].nbytes


@dataclass
class PolicyWorld:
    """Members, their chunks and the policies' effect on them, round by round."""

    policies: Sequence[Policy]
    #: Seconds per example of each member, by slot.
    cost: dict[int, float]
    n_chunks: int = 64
    rows: int = 100
    holders: int = 1
    seed: int = 0
    #: Decades of the gap in a round with this many members at this gap and with these settings.
    brings: Callable[[int, float, dict], float] = lambda members, gap, tuned: 0.1
    #: How much is computed in a round with these settings.
    work: Callable[[dict], float] = lambda tuned: 1.0
    #: Seconds of a round besides its computation.
    overhead_s: float = 0.0
    limit_bytes: int | None = None
    chunk_bytes: int = 1000
    gap_every: int = 1
    round: int = 0
    now_s: float = 0.0
    gap: float = 1.0
    moved_bodies: int = 0
    tuned: dict = field(default_factory=dict)
    history: list[Progress] = field(default_factory=list)
    suggestions: list[tuple[int, Suggestion]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = [member(slot) for slot in sorted(self.cost)]
        self.seconds = {m: [] for m in self.members}
        self.per_row = {m: [] for m in self.members}
        ids = [chunk(i) for i in range(self.n_chunks)]
        infos = {c: ChunkInfo(id=c, rows=self.rows, nbytes=self.chunk_bytes) for c in ids}
        count = len(self.members)
        owners = {c: self.members[i * count // self.n_chunks] for i, c in enumerate(ids)}
        held = {c: {owner} for c, owner in owners.items()}
        if self.holders > 1:
            for c, owner in owners.items():
                others = [m for m in self.members if m != owner]
                held[c].add(shuffled(others, self.seed, c.ordinal)[0])
        self.chunks = FakeChunks(infos, owners, held)

    # --- the view of policies ---------------------------------------------------------------------

    def view(self) -> View:
        return View(
            now_s=self.now_s,
            round=self.round,
            groups=(),
            spares=tuple(self._member(m) for m in self.members if not self.chunks.of(m)),
            working=tuple(self._member(m) for m in self.members if self.chunks.of(m)),
            history=tuple(self.history),
            chunks=self.chunks,
            tuned=dict(self.tuned),
            holders=self.holders,
            seed=self.seed,
            move_bytes_per_s=1e6,
        )

    def _member(self, m: MemberId) -> MemberView:
        owned = sum(self.chunks.rows(c) for c in self.chunks.of(m))
        return MemberView(
            id=m,
            host="h",
            rows=owned,
            seconds=tuple(self.seconds[m][-8:]),
            seconds_per_row=tuple(self.per_row[m][-8:]),
            limit_bytes=self.limit_bytes,
        )

    # --- effects ----------------------------------------------------------------------------------

    def times(self) -> dict[MemberId, float]:
        return {
            m: sum(self.chunks.rows(c) for c in self.chunks.of(m))
            * self.cost[m.slot]
            * self.work(self.tuned)
            for m in self.members
        }

    @property
    def imbalance(self) -> float:
        times = self.times()
        return max(times.values()) * len(times) / sum(times.values())

    def play(self, rounds: int) -> list[float]:
        """Play this many rounds and return the imbalance of each, as it was computed."""
        return [self._round() for _ in range(rounds)]

    def _round(self) -> float:
        self.decide()
        times, imbalance = self.times(), self.imbalance
        for m, seconds in times.items():
            rows = sum(self.chunks.rows(c) for c in self.chunks.of(m))
            if rows:
                self.seconds[m].append(seconds)
                self.per_row[m].append(seconds / rows)
        self.now_s += max(times.values()) + self.overhead_s
        self.gap *= 10 ** -self.brings(len(self.members), self.gap, self.tuned)
        measured = self.round % self.gap_every == self.gap_every - 1
        self.history.append(
            Progress(
                round=self.round,
                seconds=self.now_s,
                members=len(self.members),
                gap=self.gap if measured else None,
            )
        )
        self.round += 1
        return imbalance

    def decide(self) -> None:
        taken: set[ChunkId] = set()
        for policy in self.policies:
            for suggestion in policy.suggest(self.view()):
                self.suggestions.append((self.round, suggestion))
                self._carry_out(suggestion, taken)

    def _carry_out(self, suggestion: Suggestion, taken: set[ChunkId]) -> None:
        match suggestion:
            case Move():
                self._move(suggestion.targets.items(), taken)
            case Replicate():
                for c, target in suggestion.targets.items():
                    self.chunks.held[c].add(target)
            case Discard():
                for c in suggestion.chunks:
                    assert self.chunks.owners[c] != suggestion.member
                    self.chunks.held[c].discard(suggestion.member)
            case Retire():
                assert suggestion.targets is not None
                self._move(suggestion.targets.items(), taken)
                for m in suggestion.members:
                    assert not self.chunks.of(m)
                    self.members.remove(m)
                    for members in self.chunks.held.values():
                        members.discard(m)
            case Request():
                self._join(suggestion.count)
            case Tune():
                self.tuned[suggestion.name] = suggestion.value
            case Readmit():
                raise AssertionError("nothing is absent here")

    def _move(self, targets: Iterable[tuple[ChunkId, MemberId]], taken: set[ChunkId]) -> None:
        for c, target in targets:
            if c in taken:
                continue
            taken.add(c)
            assert target in self.members
            giver = self.chunks.owners[c]
            self.moved_bodies += target not in self.chunks.held[c]
            self.chunks.held[c].add(target)
            self.chunks.owners[c] = target
            if self.holders == 1:
                self.chunks.held[c].discard(giver)

    def _join(self, count: int) -> None:
        owned = {m: [self.chunks.infos[c] for c in self.chunks.of(m)] for m in self.members}
        slots = [s for s in self.cost if member(s) not in self.members][:count]
        newcomers = [member(s) for s in slots]
        self.members += newcomers
        for m in newcomers:
            self.seconds[m], self.per_row[m] = [], []
        self._move(to_newcomers(owned, newcomers).items(), set())
