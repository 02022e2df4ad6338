"""The members of a replayed run: their chunks, the states of these, and their transfers.

The story's records are fed to the members' machines, and their commands are applied to the chunks.
A chunk that is moved takes the state that it had at its giver, unless the receiver's machine
refuses it. A copy keeps its last state; a chunk that is read again has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Solver
from elasticml.control import effects as fx
from elasticml.control.member_machine import Member
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import DataError
from elasticml.ids import ChunkId, ExchangeId, Generation, MemberId, member_id
from elasticml.protocol import commands as cmd
from elasticml.protocol.chunk_ranges import parse_chunk_ranges
from elasticml.sim.block_cache import BlockCache
from elasticml.story.records import (
    BlockRead,
    ChunksDropped,
    ChunksGiven,
    ChunksLoaded,
    ChunksOwned,
    ExchangeEnded,
    MemberJoined,
    RoundStarted,
    StoryRecord,
)

State = dict[str, NDArray[Any]]


@dataclass(slots=True)
class ReplayStore:
    """The chunks of a worker process."""

    chunks: dict[ChunkId, Chunk] = field(default_factory=dict)
    #: Chunks whose state the story does not determine.
    unknown: set[ChunkId] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class ReplayMember:
    """A member of the run."""

    me: MemberId
    store: ReplayStore
    threads: int
    #: Number of NUMA nodes that the threads spanned.
    nodes: int
    blas_threads: int
    #: The chunks that it computes on.
    chunks: list[Chunk] = field(default_factory=list)
    solver: Solver | None = None
    machine: Member = field(init=False)

    def __post_init__(self) -> None:
        self.machine = Member(self.me, self.store.chunks)


@dataclass(slots=True, kw_only=True)
class PendingGive:
    """A move that was ordered, with the states of its chunks at that time."""

    states: dict[ChunkId, tuple[State, int]]
    #: Whether an exchange has started since: the states sent may be those before or after it.
    is_late: bool = False


class ReplayMembers:
    """All members of one attempt of the job.

    Parameters
    ----------
    blocks : BlockCache
        The data.
    source : str
        The first part of chunk ids.
    computed : mapping
        The last exchange of members whose workers returned with their chunks.
    """

    def __init__(
        self, blocks: BlockCache, source: str, computed: Mapping[MemberId, ExchangeId]
    ) -> None:
        self._blocks = blocks
        self._source = source
        self._computed = computed
        self._stores: dict[str, ReplayStore] = {}
        self._all: dict[MemberId, ReplayMember] = {}
        self._gives: dict[int, PendingGive] = {}
        #: Participating members, by slot.
        self.acting: dict[int, ReplayMember] = {}
        #: Whether the algorithm keeps chunk states.
        self.has_states = False

    def take(self, record: StoryRecord) -> None:
        """Apply a record about members or chunks; ignore other records."""
        match record:
            case MemberJoined():
                self._joined(record)
            case BlockRead():
                self._read(record)
            case ChunksOwned():
                self._owned(record)
            case ChunksGiven():
                self._given(record)
            case ChunksLoaded():
                self._loaded(record)
            case ChunksDropped():
                self._dropped(record)
            case RoundStarted() | ExchangeEnded():
                for give in self._gives.values():
                    give.is_late = True

    def has_computed(self, member: ReplayMember, exchange: ExchangeId) -> bool:
        """Whether a lost member computed an exchange and its worker returned with the chunks."""
        return self._computed.get(member.me) == exchange

    def _ids(self, chunks: str) -> tuple[ChunkId, ...]:
        return parse_chunk_ranges(chunks, self._source)

    def _member(self, text: str) -> ReplayMember:
        member = self._all.get(member_id(text))
        if member is None:
            raise DataError(f"the story names member {text}, but does not say that it joined")
        return member

    def _joined(self, record: MemberJoined) -> None:
        me, address = member_id(record.member), record.address
        kept = set() if record.holdings is None else set(self._ids(record.holdings))
        store = self._stores.setdefault(address, ReplayStore())
        for id in store.chunks.keys() - kept:
            del store.chunks[id]
        self._hold(store, kept)
        self._all[me] = ReplayMember(
            me=me,
            store=store,
            threads=record.threads,
            nodes=record.nodes,
            blas_threads=record.blas_threads,
        )

    def _hold(self, store: ReplayStore, ids: set[ChunkId] | tuple[ChunkId, ...]) -> None:
        for id in ids:
            if id not in store.chunks:
                # A returning worker may have read a chunk after its read was no longer needed.
                self._blocks.read(id.block)
                store.chunks[id] = self._blocks.lend(id)
                store.unknown.discard(id)

    def _read(self, record: BlockRead) -> None:
        block = int(record.block)
        chunks, _ = self._blocks.read(block)
        digest = self._blocks.digest(chunks)
        if digest != record.digest:
            raise DataError(
                f"block {block} of the data has digest {digest}, the run had {record.digest}: "
                "the data have changed; put the old files back",
                block=block,
            )
        self._hold(self._member(record.member).store, tuple(chunk.id for chunk in chunks))

    def _owned(self, record: ChunksOwned) -> None:
        member = self._member(record.member)
        ids = self._ids(record.chunks)
        unknown = sorted(member.store.unknown & set(ids))
        if unknown and self.has_states:
            raise DataError(
                f"member {member.me} took over {len(unknown)} chunks of an interrupted transfer, "
                "whose states the story does not determine; the run cannot be replayed further"
            )
        missing = [id for id in ids if id not in member.store.chunks]
        if missing:
            raise DataError(f"the story does not say how {member.me} got chunk {missing[0]}")
        member.chunks = [member.store.chunks[id] for id in ids]
        own = cmd.Own(member=member.me, generation=Generation(0), chunks=ids)
        member.machine.handle(own, 0.0)
        self.acting[member.me.slot] = member

    def _given(self, record: ChunksGiven) -> None:
        member = self._member(record.member)
        states: dict[ChunkId, tuple[State, int]] = {}
        for id in self._ids(record.chunks):
            chunk = member.store.chunks.get(id)
            if chunk is not None:
                copied = {name: np.array(array) for name, array in chunk.state.items()}
                states[id] = (copied, chunk.state_version)
        self._gives[record.order] = PendingGive(states=states)

    def _loaded(self, record: ChunksLoaded) -> None:
        member, ids = self._member(record.member), self._ids(record.chunks)
        self._hold(member.store, ids)
        source, order = record.source, record.order
        if source is None or order is None or order not in self._gives:
            return
        give = self._gives[order]
        arrival = fx.ChunksArrived(
            source=member_id(source),
            order=order,
            chunks=ids,
            states=frozenset(give.states),
        )
        for command in member.machine.handle(fx.ChunksStored(arrival=arrival), 0.0):
            if isinstance(command, fx.SetStates):
                self._set_states(member, command.chunks, give)
        for id in ids:
            give.states.pop(id, None)
        if not give.states:
            del self._gives[order]

    def _set_states(self, member: ReplayMember, ids: Sequence[ChunkId], give: PendingGive) -> None:
        for id in ids:
            chunk = member.store.chunks[id]
            chunk.state, chunk.state_version = give.states[id]
            if give.is_late:
                member.store.unknown.add(id)
            else:
                member.store.unknown.discard(id)

    def _dropped(self, record: ChunksDropped) -> None:
        member = self._member(record.member)
        store, ids = member.store, self._ids(record.chunks)
        member.machine.handle(cmd.DropChunks(member=member.me, chunks=ids), 0.0)
        for id in ids:
            store.chunks.pop(id, None)
            store.unknown.discard(id)


def computed_before(records: Iterable[StoryRecord]) -> dict[MemberId, ExchangeId]:
    """Return the last exchange computed by each member whose worker returned with its chunks.

    Parameters
    ----------
    records : iterable of StoryRecord
        The records of one attempt of the job.
    """
    last_at: dict[str, MemberId] = {}
    computed: dict[MemberId, ExchangeId] = {}
    for record in records:
        if isinstance(record, MemberJoined):
            former = last_at.get(record.address)
            if former is not None and record.computed:
                computed[former] = ExchangeId(record.computed)
            last_at[record.address] = member_id(record.member)
    return computed
