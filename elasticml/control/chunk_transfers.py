"""Chunk transfers: moves to new owners, returns of absent groups, copies, dropped copies.

A move is committed in the ledger only when the receiver has acknowledged the chunk. Copies add
holders while rounds go on: bodies never change, so that they may be copied during an exchange; a
source sends one batch at a time, and the next is ordered when the last was acknowledged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from elasticml.control.job_state import JobState, names
from elasticml.control.ledger import Group
from elasticml.ids import ChunkId, GroupId, MemberId
from elasticml.protocol.commands import Command, CopyChunks, DropChunks, GiveChunks, LoadChunks
from elasticml.protocol.events import ChunksDropped, ChunksLoaded, MoveFailed
from elasticml.story import records as story

#: Chunks in flight from one source.
COPY_BATCH = 16
#: Pause before new copies after a failed one.
COPY_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCopy:
    """A body on its way to another holder."""

    source: MemberId
    target: MemberId
    order: int


class ChunkCopies:
    """Pending copies; a member becomes a holder when it acknowledges; no round waits for copies."""

    def __init__(self, state: JobState) -> None:
        self.state = state
        #: Accepted, not ordered yet: chunk -> target.
        self.waiting: dict[ChunkId, MemberId] = {}
        #: Ordered, not acknowledged yet; at most one per chunk.
        self.under_way: dict[ChunkId, PendingCopy] = {}
        self._next_s = 0.0

    def targets(self) -> dict[ChunkId, MemberId]:
        """Return all pending copies: chunk -> target."""
        return {**self.waiting, **{c: copy.target for c, copy in self.under_way.items()}}

    def bytes_to(self, member: MemberId) -> int:
        """Return the bytes of copies pending for a member."""
        info = self.state.ledger.info
        return sum(info[c].nbytes for c, target in self.targets().items() if target == member)

    def ordered_bytes_to(self, member: MemberId) -> int:
        """Return the bytes of copies ordered, but not yet acknowledged, for a member."""
        info = self.state.ledger.info
        under_way = self.under_way.items()
        return sum(info[c].nbytes for c, copy in under_way if copy.target == member)

    def is_source(self, member: MemberId, chunk: ChunkId) -> bool:
        """Whether a member is sending a copy of a chunk now."""
        copy = self.under_way.get(chunk)
        return copy is not None and copy.source == member

    def accept(self, targets: Mapping[ChunkId, MemberId], now_s: float) -> int:
        """Accept copies that are new and whose target lacks the body; return their number."""
        if now_s < self._next_s:
            return 0
        ledger, before = self.state.ledger, len(self.waiting)
        for chunk, target in sorted(targets.items()):
            pending = chunk in self.waiting or chunk in self.under_way
            if not pending and not ledger.holds(target, chunk):
                self.waiting[chunk] = target
        return len(self.waiting) - before

    def pump(self) -> list[Command]:
        """Order the next batch of every idle source."""
        if not self.waiting:
            return []
        living, ledger = self.state.membership.members, self.state.ledger
        busy = {copy.source for copy in self.under_way.values()}
        taken: dict[MemberId, int] = {}
        batches: dict[tuple[MemberId, MemberId], list[ChunkId]] = {}
        for chunk, target in list(self.waiting.items()):
            holders = ledger.holders[chunk]
            if not holders or target in holders:
                del self.waiting[chunk]
                continue
            sources = [m for m in holders - busy if taken.get(m, 0) < COPY_BATCH]
            if not sources:
                continue
            source = min(sources, key=lambda m: (taken.get(m, 0), m))
            taken[source] = taken.get(source, 0) + 1
            batches.setdefault((source, target), []).append(chunk)
            del self.waiting[chunk]
        commands: list[Command] = []
        for (source, target), chunks in batches.items():
            order = self.state.next_order()
            copy = PendingCopy(source=source, target=target, order=order)
            self.under_way.update(dict.fromkeys(chunks, copy))
            commands.append(
                CopyChunks(
                    cause=self.state.cause,
                    member=source,
                    target=target,
                    address=living[target].address,
                    chunks=tuple(chunks),
                    nbytes=tuple(ledger.info[chunk].nbytes for chunk in chunks),
                    order=order,
                    bytes_per_s=self.state.settings.copy_bytes_per_s,
                )
            )
        return commands

    def loaded(self, event: ChunksLoaded) -> list[Command]:
        """Record arrived chunks, by whatever order, and order the next copies."""
        came = []
        for chunk in event.chunks:
            if self.waiting.get(chunk) == event.member:
                del self.waiting[chunk]
            copy = self.under_way.get(chunk)
            if copy is not None and copy.target == event.member:
                del self.under_way[chunk]
                if event.order == copy.order:
                    came.append(chunk)
        commands: list[Command] = []
        if came:
            commands.append(
                self.state.record(
                    story.ChunksCopied,
                    source=str(event.source),
                    target=str(event.member),
                    chunks=len(came),
                    bytes=event.nbytes,
                    seconds=event.seconds,
                )
            )
        return commands + self.pump()

    def failed(self, event: MoveFailed, now_s: float) -> list[Command]:
        """Give up copies that could not be sent; a policy may suggest them again."""
        for chunk in event.chunks:
            copy = self.under_way.get(chunk)
            if copy is None or (copy.source, copy.target) != (event.member, event.target):
                continue
            if event.order in (None, copy.order):
                del self.under_way[chunk]
                self._next_s = now_s + COPY_PAUSE_S
        return self.pump()

    def waive(self, member: MemberId) -> None:
        """Give up copies to a member that are not ordered yet: its memory is needed otherwise."""
        self.waiting = {c: m for c, m in self.waiting.items() if m != member}

    def lost(self, member: MemberId) -> None:
        """Forget copies from and to a lost member."""
        self.waiting = {c: m for c, m in self.waiting.items() if m != member}
        self.under_way = {
            c: copy
            for c, copy in self.under_way.items()
            if member not in (copy.source, copy.target)
        }

    def awaited(self) -> set[MemberId]:
        """Return members that are sending or receiving copies."""
        return {m for copy in self.under_way.values() for m in (copy.source, copy.target)}


#: Bytes per second that a move is assumed to reach before any was measured.
ASSUMED_BYTES_PER_S = 50e6
#: Weight of earlier moves at each new one.
SPEED_KEPT = 0.9


class MoveSpeed:
    """The rate at which chunks leave a host, measured by the moves that have arrived from it.

    Bytes and seconds are averaged apart, so that many small moves, whose time is latency, count
    less than a large one. Time in which several moves share the host's link counts once.
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}
        #: When the last move from each host had arrived.
        self._arrived_s: dict[str, float] = {}

    def moved(self, host: str, nbytes: int, seconds: float, now_s: float) -> None:
        """Add a move from a host that has arrived now, after ``seconds`` on the way."""
        if nbytes <= 0 or seconds <= 0:
            return
        alone_s = now_s - max(self._arrived_s.get(host, 0.0), now_s - seconds)
        self._arrived_s[host] = now_s
        total, spent = self._sums.get(host, (0.0, 0.0))
        self._sums[host] = SPEED_KEPT * total + nbytes, SPEED_KEPT * spent + max(0.0, alone_s)

    def bytes_per_s(self, host: str) -> float:
        """Return the rate from a host; from all hosts where none was measured from this one."""
        sums = [self._sums[host]] if host in self._sums else [*self._sums.values()]
        spent = sum(seconds for _, seconds in sums)
        return sum(total for total, _ in sums) / spent if spent else ASSUMED_BYTES_PER_S


#: Chunks per GiveChunks order: acknowledged chunks are safe if the rest fails.
BATCH = 16
#: Pause before new moves after a failed one; rounds continue meanwhile.
MOVE_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMove:
    """A chunk on its way to a new owner."""

    source: MemberId
    target: MemberId
    #: Number of the order; reports of other orders do not commit this transfer.
    order: int
    has_body: bool


class ChunkMoves:
    """Pending transfers; a new owner is committed in the ledger only after its acknowledgement."""

    def __init__(self, state: JobState, chunk_copies: ChunkCopies) -> None:
        self.state = state
        self.chunk_copies = chunk_copies
        #: Moves in flight.
        self.moves: dict[ChunkId, PendingMove] = {}
        #: Returning groups: the future owner of each chunk.
        self.returning: dict[GroupId, dict[ChunkId, MemberId]] = {}
        #: Chunks of returning groups that have not been acknowledged.
        self.loading: dict[GroupId, set[ChunkId]] = {}
        #: Returning groups whose new owners hold all bodies already: the round waits for them.
        self.at_hand: set[GroupId] = set()
        #: Chunks without an owner that are being loaded again: chunk -> reader.
        self.rereading: dict[ChunkId, MemberId] = {}
        #: Copies that members were told to drop and have not reported as dropped.
        self.dropping: dict[MemberId, set[ChunkId]] = {}
        self.absent_since_s: dict[GroupId, float] = {}
        self.speed = MoveSpeed()
        #: No move starts before this time.
        self.next_move_s = 0.0

    # --- moves between living members -----------------------------------------------------------

    def move(self, targets: Mapping[ChunkId, MemberId]) -> list[Command]:
        """Order moves of chunks from their owners to other members, in batches, peer to peer.

        Impossible moves are skipped: chunks that are absent or already moving, targets that are
        gone or still dropping their copy, and bodies that exceed the target's memory. In the last
        case the target is told to drop spare copies, so that a later attempt fits.
        """
        ledger, living = self.state.ledger, self.state.membership.members
        room = _Room(self)
        batches: dict[tuple[MemberId, MemberId], list[ChunkId]] = {}
        for chunk in sorted(targets):
            source, target = ledger.owner(chunk), targets[chunk]
            if source is None or source == target or chunk in self.moves:
                continue
            if target not in living or chunk in self.dropping.get(target, ()):
                continue
            if ledger.holds(target, chunk) or room.takes(target, ledger.info[chunk].nbytes):
                batches.setdefault((source, target), []).append(chunk)
        commands: list[Command] = []
        for (source, target), chunks in batches.items():
            for k in range(0, len(chunks), BATCH):
                commands.append(self._give(source, target, chunks[k : k + BATCH]))
        for member, nbytes in room.lacking.items():
            commands += self._make_room(member, nbytes)
        return commands

    def _give(self, source: MemberId, target: MemberId, chunks: list[ChunkId]) -> GiveChunks:
        ledger, order = self.state.ledger, self.state.next_order()
        bodies = tuple(c for c in chunks if not ledger.holds(target, c))
        for chunk in chunks:
            self.moves[chunk] = PendingMove(
                source=source, target=target, order=order, has_body=chunk in bodies
            )
        return GiveChunks(
            cause=self.state.cause,
            member=source,
            target=target,
            address=self.state.membership.members[target].address,
            chunks=tuple(chunks),
            bodies=bodies,
            order=order,
        )

    def measure(self, event: ChunksLoaded, now_s: float) -> None:
        """Measure the speed of a move that has arrived; not of a copy, whose rate is limited."""
        sender = None if event.source is None else self.state.membership.members.get(event.source)
        move = self.moves.get(event.chunks[0]) if event.chunks else None
        if sender is not None and move is not None and move.order == event.order:
            self.speed.moved(sender.host, event.nbytes, event.seconds, now_s)

    def loaded(self, event: ChunksLoaded) -> list[Command]:
        """Commit chunks that a member acknowledges to hold."""
        ledger = self.state.ledger
        if event.member not in self.state.membership.members:
            return []
        # A chunk that it was told to drop is from before that order: reports arrive in order.
        came = [c for c in event.chunks if c not in self.dropping.get(event.member, ())]
        ledger.hold(event.member, came)
        moved: dict[MemberId, list[ChunkId]] = {}
        for chunk in came:
            move = self.moves.get(chunk)
            is_of = move is not None and event.order == move.order
            if move is not None and is_of and move.target == event.member:
                del self.moves[chunk]
                ledger.move(chunk, event.member)
                self.state.stale_layout = True
                moved.setdefault(move.source, []).append(chunk)
            if self.rereading.get(chunk) == event.member:
                del self.rereading[chunk]
                self._reown(chunk, event.member)
            for group, owners in self.returning.items():
                if owners.get(chunk) == event.member:
                    self.loading[group].discard(chunk)
        commands: list[Command] = []
        for source, chunks in moved.items():
            commands.append(
                self.state.record(
                    story.ChunksMoved,
                    source=str(source),
                    target=str(event.member),
                    chunks=len(chunks),
                    examples=ledger.rows(chunks),
                    bytes=event.nbytes,
                    seconds=event.seconds,
                )
            )
            kept = max(self.state.holders, 2 if self._keeps_given(source) else 1)
            commands += self.drop(source, [c for c in chunks if self._n_staying(c) > kept])
        return commands

    def failed(self, event: MoveFailed, now_s: float) -> list[Command]:
        """Leave chunks that could not be sent with their owner for now."""
        for chunk in event.chunks:
            move = self.moves.get(chunk)
            if move is None or (move.source, move.target) != (event.member, event.target):
                continue
            if event.order == move.order:
                del self.moves[chunk]
                self.next_move_s = now_s + MOVE_PAUSE_S
        return [
            self.state.record(
                story.MoveFailed,
                source=str(event.member),
                target=str(event.target),
                chunks=len(event.chunks),
                reason=event.reason,
            )
        ]

    def abandon_moves(self) -> None:
        """Give up transfers that took too long: chunks stay with their owner, or absent.

        They must not be committed during the exchange that starts without them.
        """
        self.moves.clear()
        self.rereading.clear()
        self.at_hand.clear()

    def coming(self) -> dict[ChunkId, MemberId]:
        """Return chunks on their way to a new owner: chunk -> owner."""
        targets = {chunk: move.target for chunk, move in self.moves.items()}
        for owners in (self.rereading, *self.returning.values()):
            targets.update(owners)
        return targets

    def bytes_to(self) -> dict[MemberId, int]:
        """Return bytes on their way to new owners, plus bytes still being dropped there."""
        info = self.state.ledger.info
        coming: dict[MemberId, int] = {}
        for chunk, move in self.moves.items():
            if move.has_body:
                coming[move.target] = coming.get(move.target, 0) + info[chunk].nbytes
        for group, missing in self.loading.items():
            for chunk in missing:
                target = self.returning[group][chunk]
                if not self.state.ledger.holds(target, chunk):
                    coming[target] = coming.get(target, 0) + info[chunk].nbytes
        for chunk, reader in self.rereading.items():
            if not self.state.ledger.holds(reader, chunk):
                coming[reader] = coming.get(reader, 0) + info[chunk].nbytes
        for member, chunks in self.dropping.items():
            coming[member] = coming.get(member, 0) + sum(info[c].nbytes for c in chunks)
        return coming

    # --- copies that are not owned --------------------------------------------------------------

    def _n_staying(self, chunk: ChunkId) -> int:
        """Count the staying members that hold a body."""
        members = self.state.membership.members
        return sum(members[m].stage != "leaving" for m in self.state.ledger.holders[chunk])

    def _keeps_given(self, source: MemberId) -> bool:
        """Whether a member keeps the bodies of chunks that it gives to another, as second copies.

        If the new owner is lost, they need not be read again. Only a member that has memory for all
        chunks keeps them: there the copies are never in the way of chunks that it will own.
        """
        state = self.state
        if state.stage != "training" or state.settings.absent not in ("auto", "reload"):
            return False
        limit = state.membership.members[source].in_memory_bytes
        return limit is None or state.ledger.total_bytes <= limit

    def is_spare_copy(self, member: MemberId, chunk: ChunkId) -> bool:
        """Whether a member may drop a chunk: another holds it, and no transfer needs this copy."""
        ledger = self.state.ledger
        if not ledger.holds(member, chunk) or ledger.owner(chunk) == member:
            return False
        if len(ledger.holders[chunk]) < 2 or self.chunk_copies.is_source(member, chunk):
            return False
        move = self.moves.get(chunk)
        if move is not None and member in (move.source, move.target):
            return False
        if self.rereading.get(chunk) == member:
            return False
        return all(owners.get(chunk) != member for owners in self.returning.values())

    def drop(self, member: MemberId, chunks: Iterable[ChunkId]) -> list[Command]:
        """Order a member to drop its copies, as far as it may; they no longer count as held."""
        dropped = [c for c in chunks if self.is_spare_copy(member, c)]
        if not dropped:
            return []
        self.state.ledger.release(member, dropped)
        self.dropping.setdefault(member, set()).update(dropped)
        return [DropChunks(cause=self.state.cause, member=member, chunks=tuple(dropped))]

    def dropped(self, event: ChunksDropped) -> None:
        """Record that copies are gone: the chunks may be sent there again."""
        pending = self.dropping.get(event.member)
        if pending is not None:
            pending.difference_update(event.chunks)
            if not pending:
                del self.dropping[event.member]

    def _make_room(self, member: MemberId, nbytes: int) -> list[Command]:
        info = self.state.ledger.info
        freed, chosen = sum(info[c].nbytes for c in self.dropping.get(member, ())), []
        for chunk in sorted(self.state.ledger.held.get(member, ())):
            if freed >= nbytes:
                break
            if self.is_spare_copy(member, chunk):
                chosen.append(chunk)
                freed += info[chunk].nbytes
        return self.drop(member, chosen)

    # --- chunks that were lost ------------------------------------------------------------------

    def reread(self, readers_max: int | None = None) -> list[Command]:
        """Order other members, at most ``readers_max``, to load chunks that lost their owner.

        Holders of a body come first, then members with enough free memory.
        """
        ledger = self.state.ledger
        missing = [
            c for chunks in ledger.open.values() for c in sorted(chunks) if c not in self.rereading
        ]
        members = self.state.recipients() if missing else []
        if not members:
            return []
        readers = sorted(members, key=lambda m: (ledger.rows_of(m), m))[:readers_max]
        rows, coming = {m: ledger.rows_of(m) for m in readers}, self.bytes_to()
        left = {m: self.left_of(m, coming) for m in readers}
        loads: dict[MemberId, list[ChunkId]] = {}
        for chunk in missing:
            info, holders = ledger.info[chunk], [m for m in readers if ledger.holds(m, chunk)]
            among = holders or [m for m in readers if left[m] >= info.nbytes] or readers
            reader = min(among, key=lambda m: (rows[m], m))
            rows[reader] += info.rows
            left[reader] -= 0 if holders else info.nbytes
            self.rereading[chunk] = reader
            loads.setdefault(reader, []).append(chunk)
        return self._load(loads, coming)

    def left_of(self, member: MemberId, coming: Mapping[MemberId, int]) -> float:
        """Return a member's free bytes beside what it holds and what is on its way to it."""
        limit = self.state.membership.members[member].limit_bytes
        if limit is None:
            return math.inf
        here = self.state.ledger.held_bytes(member) + coming.get(member, 0)
        return limit - here - self.chunk_copies.bytes_to(member)

    def _load(
        self, loads: Mapping[MemberId, Collection[ChunkId]], coming: Mapping[MemberId, int]
    ) -> list[Command]:
        """Order members to load chunks, and to drop spare copies first if memory is short.

        ``coming`` are the bytes that were already on their way to them.
        """
        ledger = self.state.ledger
        commands: list[Command] = []
        for member, chunks in loads.items():
            limit = self.state.membership.members[member].limit_bytes
            if limit is not None:
                bodies = sum(ledger.info[c].nbytes for c in chunks if not ledger.holds(member, c))
                if bodies:
                    self.chunk_copies.waive(member)
                here = ledger.held_bytes(member) + coming.get(member, 0)
                lacking = here + self.chunk_copies.bytes_to(member) + bodies - limit
                commands += self._make_room(member, lacking) if bodies and lacking > 0 else []
            load = LoadChunks(cause=self.state.cause, member=member, chunks=tuple(chunks))
            commands.append(load)
        return commands

    def _reown(self, chunk: ChunkId, member: MemberId) -> None:
        ledger = self.state.ledger
        for former, chunks in list(ledger.open.items()):
            if chunk in chunks:
                chunks.discard(chunk)
                # The rest is no longer the chunk set that the lost member's kept partials cover.
                ledger.last_versions.pop(former, None)
                if not chunks:
                    del ledger.open[former]
                ledger.adopt(chunk, member)
                self.state.stale_layout = True

    def readmit(self, group: Group, owners: dict[ChunkId, MemberId]) -> list[Command]:
        """Order the future owners of an absent group's chunks to load them."""
        ledger, coming = self.state.ledger, self.bytes_to()
        self.returning[group.id] = owners
        self.loading[group.id] = set(owners)
        if all(ledger.holds(target, chunk) for chunk, target in owners.items()):
            self.at_hand.add(group.id)
        loads: dict[MemberId, list[ChunkId]] = {}
        for chunk in sorted(owners):
            loads.setdefault(owners[chunk], []).append(chunk)
        return self._load(loads, coming)

    def commit_returns(self, now_s: float) -> list[Command]:
        """End the absence of every group whose chunks have all been acknowledged."""
        commands: list[Command] = []
        for group_id in [g for g, missing in self.loading.items() if not missing]:
            owners = self.returning.pop(group_id)
            del self.loading[group_id]
            self.at_hand.discard(group_id)
            group = self.state.ledger.readmit(group_id, owners)
            since = self.absent_since_s.pop(group_id, now_s)
            self.state.stale_layout = True
            commands.append(
                self.state.record(
                    story.GroupReturned,
                    group=group_id,
                    chunks=len(owners),
                    examples=group.rows,
                    members=names(sorted(set(owners.values()))),
                    absent_s=now_s - since,
                )
            )
        return commands

    # --- both -----------------------------------------------------------------------------------

    def awaited(self) -> set[MemberId]:
        """Return members that have to send, receive or load chunks."""
        members = {m for move in self.moves.values() for m in (move.source, move.target)}
        members |= set(self.rereading.values())
        for group, missing in self.loading.items():
            members |= {self.returning[group][chunk] for chunk in missing}
        return members

    def is_target(self, member: MemberId) -> bool:
        """Whether chunks are on their way to a member that will own them."""
        return any(move.target == member for move in self.moves.values())

    def lost(self, member: MemberId) -> None:
        """Forget transfers from and to a lost member; groups returning to it start over."""
        self.moves = {
            c: move for c, move in self.moves.items() if member not in (move.source, move.target)
        }
        self.rereading = {c: m for c, m in self.rereading.items() if m != member}
        self.dropping.pop(member, None)
        for group in [g for g, owners in self.returning.items() if member in owners.values()]:
            del self.returning[group], self.loading[group]
            self.at_hand.discard(group)


class _Room:
    """Free memory of targets while moves are being selected."""

    def __init__(self, mobility: ChunkMoves) -> None:
        self._mobility = mobility
        self._coming = mobility.bytes_to()
        self._left: dict[MemberId, float] = {}
        #: Bytes that did not fit, by member.
        self.lacking: dict[MemberId, int] = {}

    def takes(self, member: MemberId, nbytes: int) -> bool:
        """Reserve memory of a member; return False if too little is free."""
        if self._mobility.state.stage != "training":
            return True
        if member not in self._left:
            self._left[member] = self._mobility.left_of(member, self._coming)
        if self._left[member] < nbytes:
            self.lacking[member] = self.lacking.get(member, 0) + nbytes
            return False
        self._left[member] -= nbytes
        return True
