"""Background copies of chunk bodies to more holders: accepted, ordered in batches, acknowledged.

Bodies are immutable, so they may be copied while an exchange runs. A source sends one batch at a
time; the next one is ordered when the last was acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elasticml.control.commands import Command, CopyChunks
from elasticml.control.events import ChunksLoaded, MoveFailed
from elasticml.control.state import JobState
from elasticml.terms import ChunkId, MemberId

#: Chunks in flight from one source.
COPY_BATCH = 16
#: Pause before new copies after a failed one.
COPY_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A body on its way to another holder."""

    source: MemberId
    target: MemberId
    order: int


class Copying:
    """Pending copies; a member becomes a holder when it acknowledges; no round waits for copies."""

    def __init__(self, state: JobState) -> None:
        self.state = state
        #: Accepted, not ordered yet: chunk -> target.
        self.waiting: dict[ChunkId, MemberId] = {}
        #: Ordered, not acknowledged yet; at most one per chunk.
        self.under_way: dict[ChunkId, Copy] = {}
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
            copy = Copy(source=source, target=target, order=order)
            self.under_way.update(dict.fromkeys(chunks, copy))
            commands.append(
                CopyChunks(
                    cause=self.state.cause,
                    member=source,
                    target=target,
                    address=living[target].address,
                    chunks=tuple(chunks),
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
                    "ChunksCopied",
                    source=event.source,
                    target=event.member,
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
