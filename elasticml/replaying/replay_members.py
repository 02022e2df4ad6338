"""Where chunks and their states were: the workers of the run, their lives as members, their moves.

The story's records are fed to the member machines of the run, and what these command is done to
the chunks here. A chunk that was given takes the state that its giver had then, unless the
receiver's machine refuses it; a copy keeps its last state; a chunk that was read again has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Solver
from elasticml.control import effects as fx
from elasticml.control.member import Member
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import DataError
from elasticml.ids import ChunkId, ExchangeId, Generation, MemberId, member_id
from elasticml.protocol import commands as cmd
from elasticml.protocol.chunk_ranges import parse_chunk_ranges
from elasticml.sim.block_cache import BlockCache

Record = Mapping[str, Any]
State = dict[str, NDArray[Any]]


@dataclass(slots=True)
class ReplayStore:
    """The chunks of a worker process."""

    chunks: dict[ChunkId, Chunk] = field(default_factory=dict)
    #: Chunks whose state the story does not tell.
    unknown: set[ChunkId] = field(default_factory=set)


@dataclass(slots=True, kw_only=True)
class ReplayMember:
    """A member."""

    me: MemberId
    store: ReplayStore
    threads: int
    #: NUMA nodes that these spanned.
    nodes: int
    blas_threads: int
    #: What it computes over, and with.
    chunks: list[Chunk] = field(default_factory=list)
    solver: Solver | None = None
    machine: Member = field(init=False)

    def __post_init__(self) -> None:
        self.machine = Member(self.me, self.store.chunks)


@dataclass(slots=True, kw_only=True)
class PendingGive:
    """Chunks that were ordered from one member to another, with their states at that time."""

    states: dict[ChunkId, tuple[State, int]]
    #: An exchange has begun since: what was sent may be its states, or those before it.
    is_late: bool = False


class ReplayMembers:
    """All workers of one attempt at the job.

    Parameters
    ----------
    library : Library
        The data, read here.
    source : str
        The chunk ids' first part.
    computed : mapping
        The last exchange of lives whose workers came back with their chunks.
    """

    def __init__(
        self, library: BlockCache, source: str, computed: Mapping[MemberId, ExchangeId]
    ) -> None:
        self._library = library
        self._source = source
        self._computed = computed
        self._stores: dict[str, ReplayStore] = {}
        self._lives: dict[MemberId, ReplayMember] = {}
        self._gifts: dict[int, PendingGive] = {}
        #: Who takes part, by slot.
        self.acting: dict[int, ReplayMember] = {}
        #: The algorithm keeps something in the chunks' states.
        self.has_states = False

    def take(self, record: Record) -> None:
        """Take note of what the story says of a member or of chunks; of other records nothing."""
        match record["event"]:
            case "MemberJoined":
                self._joined(record)
            case "BlockRead":
                self._read(record)
            case "ChunksOwned":
                self._owned(record)
            case "ChunksGiven":
                self._given(record)
            case "ChunksLoaded":
                self._loaded(record)
            case "ChunksDropped":
                self._dropped(record)
            case "RoundStarted" | "ExchangeEnded":
                for gift in self._gifts.values():
                    gift.is_late = True

    def has_computed(self, life: ReplayMember, exchange: ExchangeId) -> bool:
        """Whether a member that was given up has computed an exchange, and come back with that."""
        return self._computed.get(life.me) == exchange

    def _ids(self, record: Record, name: str = "chunks") -> tuple[ChunkId, ...]:
        return parse_chunk_ranges(record[name], self._source)

    def _life(self, text: str) -> ReplayMember:
        life = self._lives.get(member_id(text))
        if life is None:
            raise DataError(f"the story speaks of member {text}, of which it does not say it came")
        return life

    def _joined(self, record: Record) -> None:
        me, address = member_id(record["member"]), record["address"]
        kept = set(self._ids(record, "holdings")) if "holdings" in record else set()
        store = self._stores.setdefault(address, ReplayStore())
        for id in store.chunks.keys() - kept:
            del store.chunks[id]
        self._hold(store, kept)
        self._lives[me] = ReplayMember(
            me=me,
            store=store,
            threads=record["threads"],
            nodes=record.get("nodes", 1),
            blas_threads=record["blas_threads"],
        )

    def _hold(self, store: ReplayStore, ids: set[ChunkId] | tuple[ChunkId, ...]) -> None:
        for id in ids:
            if id not in store.chunks:
                # Who came back with a chunk may have read it when nobody waited for it any more.
                self._library.read(id.block)
                store.chunks[id] = self._library.lend(id)
                store.unknown.discard(id)

    def _read(self, record: Record) -> None:
        block = int(record["block"])
        chunks, _ = self._library.read(block)
        digest = self._library.digest(chunks)
        if digest != record["digest"]:
            raise DataError(
                f"block {block} of the data has digest {digest}, the run had {record['digest']}: "
                "the data have changed; put the old files back",
                block=block,
            )
        self._hold(self._life(record["member"]).store, tuple(chunk.id for chunk in chunks))

    def _owned(self, record: Record) -> None:
        life = self._life(record["member"])
        ids = self._ids(record)
        unknown = sorted(life.store.unknown & set(ids))
        if unknown and self.has_states:
            raise DataError(
                f"member {life.me} took over {len(unknown)} chunks of a transfer that broke off: "
                "which state they had the story does not tell; the run cannot be replayed further"
            )
        missing = [id for id in ids if id not in life.store.chunks]
        if missing:
            raise DataError(f"the story does not say how {life.me} came by chunk {missing[0]}")
        life.chunks = [life.store.chunks[id] for id in ids]
        own = cmd.Own(member=life.me, generation=Generation(0), chunks=ids)
        life.machine.handle(own, 0.0)
        self.acting[life.me.slot] = life

    def _given(self, record: Record) -> None:
        life = self._life(record["member"])
        states: dict[ChunkId, tuple[State, int]] = {}
        for id in self._ids(record):
            chunk = life.store.chunks.get(id)
            if chunk is not None:
                copied = {name: np.array(array) for name, array in chunk.state.items()}
                states[id] = (copied, chunk.state_version)
        self._gifts[record["order"]] = PendingGive(states=states)

    def _loaded(self, record: Record) -> None:
        life, ids = self._life(record["member"]), self._ids(record)
        self._hold(life.store, ids)
        gift = None if record.get("order") is None else self._gifts.get(record["order"])
        if gift is None:
            return
        arrival = fx.ChunksArrived(
            source=member_id(record["source"]),
            order=record["order"],
            chunks=ids,
            states=frozenset(gift.states),
        )
        for command in life.machine.handle(fx.ChunksStored(arrival=arrival), 0.0):
            if isinstance(command, fx.SetStates):
                self._set_states(life, command.chunks, gift)
        for id in ids:
            gift.states.pop(id, None)
        if not gift.states:
            del self._gifts[record["order"]]

    def _set_states(self, life: ReplayMember, ids: Sequence[ChunkId], gift: PendingGive) -> None:
        for id in ids:
            chunk = life.store.chunks[id]
            chunk.state, chunk.state_version = gift.states[id]
            if gift.is_late:
                life.store.unknown.add(id)
            else:
                life.store.unknown.discard(id)

    def _dropped(self, record: Record) -> None:
        life = self._life(record["member"])
        store, ids = life.store, self._ids(record)
        life.machine.handle(cmd.DropChunks(member=life.me, chunks=ids), 0.0)
        for id in ids:
            store.chunks.pop(id, None)
            store.unknown.discard(id)


def computed_before(records: Sequence[Record]) -> dict[MemberId, ExchangeId]:
    """List which exchange each life has computed last whose worker came back with its chunks.

    Parameters
    ----------
    records : sequence of dict
        Of one attempt at the job.
    """
    last_at: dict[str, MemberId] = {}
    computed: dict[MemberId, ExchangeId] = {}
    for record in records:
        if record["event"] == "MemberJoined":
            former = last_at.get(record["address"])
            if former is not None and record.get("computed"):
                computed[former] = ExchangeId(record["computed"])
            last_at[record["address"]] = member_id(record["member"])
    return computed
