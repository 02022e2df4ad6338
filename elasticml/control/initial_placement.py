"""Before the first round: survey and read the blocks, place the chunks, start the trainer."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from elasticml.control.chunk_transfers import ChunkMoves
from elasticml.control.job_state import JobState
from elasticml.control.placement import contiguous, evened, scattered
from elasticml.control.round_scheduler import RoundScheduler
from elasticml.control.rounds import Rounds
from elasticml.ids import ChunkId, ChunkInfo, MemberId
from elasticml.protocol.commands import Command, Configure, MergeFacts, ReadBlocks, StartTrainer
from elasticml.protocol.events import BlockRead, BlocksLocated, FactsFixed, Ready
from elasticml.story import records as story


class BlockLoading:
    """Assigns the source's blocks to members and detects when all have been read."""

    def __init__(self, state: JobState) -> None:
        self.state = state
        #: The reader of each block that has not been reported yet; None: unassigned.
        self.pending: dict[int, MemberId | None] = {}
        self.survey = False
        #: Addresses of the workers that hold a block in memory.
        self._holders: Mapping[int, tuple[str, ...]] = {}

    def located(self, event: BlocksLocated) -> None:
        """Record which workers hold blocks; orders that were given stay as they are."""
        self._holders = event.holders

    def start(self, survey: bool) -> list[Command]:
        """Start to survey or to read all blocks."""
        self.survey = survey
        self.pending = dict.fromkeys(range(self.state.settings.n_blocks))
        return self.assign()

    def assign(self) -> list[Command]:
        """Assign every unassigned block to a holder, else to the member with the fewest blocks."""
        waiting = [b for b, reader in self.pending.items() if reader is None]
        members = self.state.recipients() if waiting else []
        if not members:
            return []
        load = dict.fromkeys(members, 0)
        for reader in self.pending.values():
            if reader in load:
                load[reader] += 1
        near = self._assign_to_holders(waiting, load)
        heap = [(n, m) for m, n in load.items()]
        heapq.heapify(heap)
        assigned: dict[MemberId, list[int]] = {}
        for block in waiting:
            reader = near.get(block)
            if reader is None:
                n, reader = heap[0]
                heapq.heapreplace(heap, (n + 1, reader))
            self.pending[block] = reader
            assigned.setdefault(reader, []).append(block)
        return [
            ReadBlocks(cause=self.state.cause, member=m, blocks=tuple(blocks), survey=self.survey)
            for m, blocks in assigned.items()
        ]

    def _assign_to_holders(
        self, blocks: Iterable[int], load: dict[MemberId, int]
    ) -> dict[int, MemberId]:
        """Return a reader for each block that a member holds, and count it in ``load``."""
        if not self._holders:
            return {}
        records = self.state.membership.members
        at = {records[m].address: m for m in load}
        near: dict[int, MemberId] = {}
        for block in blocks:
            holders = [at[a] for a in self._holders.get(block, ()) if a in at]
            if holders:
                reader = near[block] = min(holders, key=lambda m: (load[m], m))
                load[reader] += 1
        return near

    def read(self, event: BlockRead) -> list[Command]:
        """Enter a block's chunks; a report by another than its reader adds copies only."""
        if self.pending.get(event.block) != event.member:
            if not self.survey and event.member in self.state.membership.members:
                self.state.ledger.hold(event.member, [c.id for c in event.chunks])
            return []
        del self.pending[event.block]
        if not self.survey:
            self.state.ledger.add(event.member, event.chunks)
        if self.pending:
            return []
        return [MergeFacts(cause=self.state.cause, survey=self.survey)]

    def lost(self, member: MemberId) -> list[Command]:
        """Reassign the blocks that a lost member was reading."""
        for block, reader in self.pending.items():
            if reader == member:
                self.pending[block] = None
        return self.assign()

    def awaited(self) -> set[MemberId]:
        """Return members that are reading blocks."""
        return {reader for reader in self.pending.values() if reader is not None}


class InitialPlacement:
    """Moves every chunk to its owner for the first round."""

    def __init__(
        self,
        state: JobState,
        loading: BlockLoading,
        chunk_moves: ChunkMoves,
        rounds: Rounds,
        boundary: RoundScheduler,
    ) -> None:
        self.state = state
        self._loading = loading
        self._mobility = chunk_moves
        self._rounds = rounds
        self._boundary = boundary
        #: The number of chunks on their way, and since when it has been the same.
        self._moving = (0, 0.0)

    def configure(self, member: MemberId) -> list[Command]:
        """Send a member the data set's statistics."""
        warms_up = self.state.settings.warms_up
        self.state.membership.members[member].configured = not warms_up
        return [Configure(cause=self.state.cause, member=member, warms_up=warms_up)]

    def ready(self, event: Ready) -> list[Command]:
        """Count a member as able to compute; start the trainer if it was the last."""
        record = self.state.membership.members.get(event.member)
        if record is None:
            return []
        record.configured = True
        return self.dealt()

    def ticked(self, now_s: float) -> list[Command]:
        """Leave chunks with their readers if none has arrived for as long as a round would wait.

        Both ends may live and the way between them be cut: no member reports a failed move then.
        """
        moves, (n_moving, since_s) = self._mobility.moves, self._moving
        if self.state.stage != "dealing" or len(moves) != n_moving:
            self._moving = (len(moves), now_s)
            return []
        if not moves or now_s - since_s < self.state.settings.hold_s_max:
            return []
        moves.clear()
        return self.dealt()

    def unready(self) -> set[MemberId]:
        """Return members that still compile their kernels, while the first round waits for them."""
        state = self.state
        if state.stage != "dealing":
            return set()
        # A newcomer without chunks takes part later: the others do not wait for it.
        living = state.membership.members
        owners = [m for m, chunks in state.ledger.owned.items() if chunks]
        return {m for m in owners if m in living and not living[m].configured}

    def facts_fixed(self, event: FactsFixed) -> list[Command]:
        """After the survey read the blocks; after reading place the chunks."""
        state = self.state
        if event.survey:
            state.stage = "surveying" if event.surveys_again else "reading"
            return self._loading.start(survey=event.surveys_again)
        state.stage = "dealing"
        state.settle_holders()
        commands: list[Command] = []
        for member in state.living():
            commands += self.configure(member)
        chunks = list(state.ledger.info.values())
        members = state.recipients()
        commands += self._rounds.due_loss("load")
        if members:
            commands += self._mobility.move(self._owners(chunks, sorted(members)))
        return commands + self._mobility.reread() + self.dealt()

    def _owners(self, chunks: list[ChunkInfo], members: list[MemberId]) -> dict[ChunkId, MemberId]:
        """Return the first owner of each chunk."""
        settings, owner = self.state.settings, self.state.ledger.owner
        if settings.placement == "random":
            return scattered(chunks, members, settings.seed, settings.partitions)
        if settings.placement == "readers":
            return evened(chunks, {c.id: owner(c.id) for c in chunks}, members)
        return contiguous(chunks, members, settings.partitions)

    def dealt(self) -> list[Command]:
        """Start the trainer once every chunk is with its owner for the first round."""
        state, chunk_moves = self.state, self._mobility
        if state.stage != "dealing":
            return []
        if not state.membership.members:
            return self._rounds.due_return()  # no round boundary is reached that would do it
        if chunk_moves.moves or chunk_moves.rereading or state.ledger.open:
            return chunk_moves.reread()
        if not state.ledger.info or self.unready():
            return []
        state.stage = "training"
        commands = self._boundary.activate()
        info = state.ledger.info.values()
        return [
            state.record(
                story.DataDealt,
                chunks=len(info),
                bytes=sum(i.nbytes for i in info),
                rows=state.ledger.total_rows,
                members=state.membership.n_working,
            ),
            *commands,
            StartTrainer(cause=state.cause),
        ]
