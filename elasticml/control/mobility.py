"""Chunk moves: transfers to a new owner, returns of absent groups, and copies that are dropped."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from elasticml.control.commands import Command, DropChunks, GiveChunks, LoadChunks
from elasticml.control.copying import Copying
from elasticml.control.events import ChunksDropped, ChunksLoaded, MoveFailed
from elasticml.control.ledger import Group
from elasticml.control.state import JobState
from elasticml.terms import ChunkId, GroupId, MemberId

#: Chunks per GiveChunks order: acknowledged chunks are safe if the rest fails.
BATCH = 16
#: Pause before new moves after a failed one; rounds continue meanwhile.
MOVE_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A chunk on its way to a new owner."""

    source: MemberId
    target: MemberId
    #: Number of the order; reports of other orders do not commit this transfer.
    order: int
    has_body: bool


class Mobility:
    """Pending transfers; a new owner is committed in the ledger only after its acknowledgement."""

    def __init__(self, state: JobState, copying: Copying) -> None:
        self.state = state
        self.copying = copying
        #: Moves in flight.
        self.moves: dict[ChunkId, Transfer] = {}
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
            self.moves[chunk] = Transfer(
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
                    "ChunksMoved",
                    source=source,
                    target=event.member,
                    chunks=len(chunks),
                    examples=ledger.rows(chunks),
                    bytes=event.nbytes,
                    seconds=event.seconds,
                )
            )
            commands += self.drop(source, [c for c in chunks if self._is_surplus(c)])
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
                "MoveFailed",
                source=event.member,
                target=event.target,
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

    def _is_surplus(self, chunk: ChunkId) -> bool:
        """Whether more staying members hold a body than the job wants."""
        members, holders = self.state.membership.members, self.state.ledger.holders[chunk]
        staying = sum(members[m].stage != "leaving" for m in holders)
        return staying > max(self.state.holders, 1)

    def is_spare_copy(self, member: MemberId, chunk: ChunkId) -> bool:
        """Whether a member may drop a chunk: another holds it, and no transfer needs this copy."""
        ledger = self.state.ledger
        if not ledger.holds(member, chunk) or ledger.owner(chunk) == member:
            return False
        if len(ledger.holders[chunk]) < 2 or self.copying.is_source(member, chunk):
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
        members = self.state.takers() if missing else []
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
        return limit - here - self.copying.bytes_to(member)

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
                    self.copying.waive(member)
                here = ledger.held_bytes(member) + coming.get(member, 0)
                lacking = here + self.copying.bytes_to(member) + bodies - limit
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
                    "GroupReturned",
                    group=group_id,
                    chunks=len(owners),
                    examples=group.rows,
                    members=sorted(set(owners.values())),
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

    def __init__(self, mobility: Mobility) -> None:
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
