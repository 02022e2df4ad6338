"""Chunks on the move: groups that return, newcomers that get a share, leavers that are emptied."""

from __future__ import annotations

from collections.abc import Iterable

from elasticml.control.commands import Command, GiveChunks, LoadChunks
from elasticml.control.events import ChunksLoaded, MoveFailed
from elasticml.control.policy import GroupView, MemberView, Policy, Readmit, View
from elasticml.control.state import JobState
from elasticml.terms import ChunkId, GroupId, MemberId

#: Chunks per GiveChunks order: what has been acknowledged is safe when the rest is not.
BATCH = 16
#: After a move that failed, rounds go on without new moves for so long.
MOVE_PAUSE_S = 1.0


class Mobility:
    """Pending transfers; the ledger commits a new owner only when it has acknowledged."""

    def __init__(self, state: JobState, policies: Iterable[Policy]) -> None:
        self.state = state
        self.policies = tuple(policies)
        #: Moves under way: chunk -> (from, to).
        self.moves: dict[ChunkId, tuple[MemberId, MemberId]] = {}
        #: Groups being brought back: what each chunk's new owner will be.
        self.returning: dict[GroupId, dict[ChunkId, MemberId]] = {}
        #: Chunks of returning groups that have not been acknowledged.
        self.loading: dict[GroupId, set[ChunkId]] = {}
        #: Chunks without owner before the first round, being read again: chunk -> reader.
        self.rereading: dict[ChunkId, MemberId] = {}
        self.absent_since_s: dict[GroupId, float] = {}
        #: No move is begun before this time.
        self.next_move_s = 0.0

    # --- moves between living members -----------------------------------------------------------

    def move(self, targets: dict[ChunkId, MemberId]) -> list[Command]:
        """Order chunks from their owners to other members, in batches, peer to peer."""
        batches: dict[tuple[MemberId, MemberId], list[ChunkId]] = {}
        for chunk in sorted(targets):
            source = self.state.ledger.owner(chunk)
            if source is None or source == targets[chunk] or chunk in self.moves:
                continue
            self.moves[chunk] = (source, targets[chunk])
            batches.setdefault((source, targets[chunk]), []).append(chunk)
        commands: list[Command] = []
        for (source, target), chunks in batches.items():
            address = self.state.membership.members[target].address
            for k in range(0, len(chunks), BATCH):
                commands.append(
                    GiveChunks(
                        cause=self.state.cause,
                        member=source,
                        target=target,
                        address=address,
                        chunks=tuple(chunks[k : k + BATCH]),
                    )
                )
        return commands

    def loaded(self, event: ChunksLoaded) -> list[Command]:
        """Commit what a member acknowledges: it holds these chunks now."""
        ledger = self.state.ledger
        if event.member not in self.state.membership.members:
            return []
        ledger.hold(event.member, event.chunks)
        moved = []
        for chunk in event.chunks:
            move = self.moves.get(chunk)
            if move is not None and move[1] == event.member:
                del self.moves[chunk]
                ledger.move(chunk, event.member)
                ledger.release(move[0], [chunk])
                self.state.stale_layout = True
                moved.append(chunk)
            if self.rereading.get(chunk) == event.member:
                del self.rereading[chunk]
                self._reown(chunk, event.member)
            for group, owners in self.returning.items():
                if owners.get(chunk) == event.member:
                    self.loading[group].discard(chunk)
        if not moved:
            return []
        return [
            self.state.record(
                "ChunksMoved",
                source=event.source,
                target=event.member,
                chunks=len(moved),
                examples=ledger.rows(moved),
                bytes=event.nbytes,
                seconds=event.seconds,
            )
        ]

    def failed(self, event: MoveFailed, now_s: float) -> list[Command]:
        """Leave chunks that could not be sent with their owner, for now."""
        for chunk in event.chunks:
            if self.moves.get(chunk) == (event.member, event.target):
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
        """Stop waiting for what took too long: chunks stay where they are, or absent.

        Nothing may be committed in an exchange that starts without it.
        """
        self.moves.clear()
        self.rereading.clear()

    # --- chunks that were lost ------------------------------------------------------------------

    def reread(self, readers_max: int | None = None) -> list[Command]:
        """Have chunks that lost their owner read again on others, by no more than so many."""
        ledger = self.state.ledger
        missing = [
            c for chunks in ledger.open.values() for c in sorted(chunks) if c not in self.rereading
        ]
        members = [m.id for m in self.state.membership.stage("spare", "active")]
        if not members or not missing:
            return []
        readers = sorted(members, key=lambda m: (ledger.rows_of(m), m))[:readers_max]
        rows = {m: ledger.rows_of(m) for m in readers}
        given: dict[MemberId, list[ChunkId]] = {}
        for chunk in missing:
            reader = min(rows, key=lambda m: (rows[m], m))
            rows[reader] += ledger.info[chunk].rows
            self.rereading[chunk] = reader
            given.setdefault(reader, []).append(chunk)
        return [
            LoadChunks(cause=self.state.cause, member=m, chunks=tuple(chunks))
            for m, chunks in given.items()
        ]

    def _reown(self, chunk: ChunkId, member: MemberId) -> None:
        ledger = self.state.ledger
        for former, chunks in list(ledger.open.items()):
            if chunk in chunks:
                chunks.discard(chunk)
                # What is left is no longer what the vanished member's kept partials contain.
                ledger.last_versions.pop(former, None)
                if not chunks:
                    del ledger.open[former]
                ledger.adopt(chunk, member)
                self.state.stale_layout = True

    def view(self, now_s: float) -> View:
        """Show the policies what they may see."""
        promised = {m for owners in self.returning.values() for m in owners.values()}
        membership, ledger = self.state.membership, self.state.ledger

        def seen(stage: str) -> tuple[MemberView, ...]:
            records = membership.stage("spare" if stage == "spare" else "active")
            return tuple(
                MemberView(id=m.id, host=m.host, rows=ledger.rows_of(m.id))
                for m in records
                if stage != "spare" or (m.id not in promised and m.configured)
            )

        return View(
            now_s=now_s,
            round=self.state.round,
            groups=tuple(
                GroupView(
                    id=g.id,
                    former=tuple(sorted(g.shares)),
                    rows=g.rows,
                    absent_since_s=self.absent_since_s.get(g.id, now_s),
                )
                for g in ledger.groups.values()
                if g.id not in self.returning
            ),
            spares=seen("spare"),
            working=seen("working"),
        )

    def readmit(self, now_s: float) -> list[Command]:
        """Ask the policies which groups to bring back, and have their chunks loaded."""
        commands: list[Command] = []
        for policy in self.policies:
            for suggestion in policy.suggest(self.view(now_s)):
                if not isinstance(suggestion, Readmit):
                    continue
                group = self.state.ledger.groups.get(suggestion.group)
                living = self.state.membership.members
                if group is None or group.id in self.returning:
                    continue
                if not all(t in living for t in suggestion.targets):
                    continue
                owners: dict[ChunkId, MemberId] = {}
                for k, former in enumerate(sorted(group.shares)):
                    target = suggestion.targets[k % len(suggestion.targets)]
                    owners.update(dict.fromkeys(group.shares[former], target))
                self.returning[group.id] = owners
                self.loading[group.id] = set(owners)
                commands.append(
                    self.state.record(
                        "GroupReadmitted",
                        group=group.id,
                        members=suggestion.targets,
                        why=suggestion.why,
                    )
                )
                for target in dict.fromkeys(suggestion.targets):
                    chunks = tuple(c for c in sorted(owners) if owners[c] == target)
                    commands.append(
                        LoadChunks(cause=self.state.cause, member=target, chunks=chunks)
                    )
        return commands

    def commit_returns(self, now_s: float) -> list[Command]:
        """At a round boundary: groups whose chunks are all there take part again."""
        commands: list[Command] = []
        for group_id in [g for g, missing in self.loading.items() if not missing]:
            owners = self.returning.pop(group_id)
            del self.loading[group_id]
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

    def awaited(self) -> set[MemberId]:
        """Members that shall send, receive or read chunks."""
        members = {m for move in self.moves.values() for m in move}
        members |= set(self.rereading.values())
        for group, missing in self.loading.items():
            members |= {self.returning[group][chunk] for chunk in missing}
        return members

    def lost(self, member: MemberId) -> None:
        """Forget transfers from and to a vanished member; its groups are readmitted anew."""
        self.moves = {c: m for c, m in self.moves.items() if member not in m}
        self.rereading = {c: m for c, m in self.rereading.items() if m != member}
        for group in [g for g, owners in self.returning.items() if member in owners.values()]:
            del self.returning[group], self.loading[group]
