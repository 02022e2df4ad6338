"""Assignment of the data source's blocks to members that survey or read them."""

from __future__ import annotations

import heapq

from elasticml.control.commands import Command, MergeFacts, ReadBlocks
from elasticml.control.events import BlockRead
from elasticml.control.state import JobState
from elasticml.terms import MemberId


class Loading:
    """Assigns the source's blocks to members and detects when all have been read."""

    def __init__(self, state: JobState) -> None:
        self.state = state
        #: The reader of each block that has not been reported yet; None: unassigned.
        self.pending: dict[int, MemberId | None] = {}
        self.survey = False

    def start(self, survey: bool) -> list[Command]:
        """Start to survey or to read all blocks."""
        self.survey = survey
        self.pending = dict.fromkeys(range(self.state.settings.n_blocks))
        return self.assign()

    def assign(self) -> list[Command]:
        """Assign every unassigned block to the member with the fewest blocks to read."""
        waiting = [b for b, reader in self.pending.items() if reader is None]
        members = self.state.takers() if waiting else []
        if not members:
            return []
        load = dict.fromkeys(members, 0)
        for reader in self.pending.values():
            if reader in load:
                load[reader] += 1
        heap = [(n, m) for m, n in load.items()]
        heapq.heapify(heap)
        assigned: dict[MemberId, list[int]] = {}
        for block in waiting:
            n, reader = heap[0]
            heapq.heapreplace(heap, (n + 1, reader))
            self.pending[block] = reader
            assigned.setdefault(reader, []).append(block)
        return [
            ReadBlocks(cause=self.state.cause, member=m, blocks=tuple(blocks), survey=self.survey)
            for m, blocks in assigned.items()
        ]

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
