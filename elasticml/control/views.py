"""The view of a round boundary that policies see, built from the driver's state."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping

from elasticml.control.copying import Copying
from elasticml.control.history import History
from elasticml.control.membership import MemberRecord
from elasticml.control.mobility import Mobility
from elasticml.control.policy import GroupView, MemberView, Scalar, Shown, View
from elasticml.control.rounds import Rounds
from elasticml.control.state import JobState
from elasticml.terms import ChunkId, MemberId


class LedgerChunks:
    """Read-only chunk lookups in the current ledger."""

    def __init__(self, state: JobState) -> None:
        self._ledger = state.ledger

    def of(self, member: MemberId) -> tuple[ChunkId, ...]:
        """Chunks that a member owns, ascending."""
        return self._ledger.chunks_of(member)

    def held_by(self, member: MemberId) -> frozenset[ChunkId]:
        """Chunks whose body a member holds, owned or not."""
        return frozenset(self._ledger.held.get(member, ()))

    def holders(self, chunk: ChunkId) -> frozenset[MemberId]:
        """Members that hold a chunk's body."""
        return frozenset(self._ledger.holders.get(chunk, ()))

    def owner(self, chunk: ChunkId) -> MemberId | None:
        """Owner of a chunk, or None while it is absent."""
        return self._ledger.owner(chunk)

    def rows(self, chunk: ChunkId) -> int:
        """Examples in a chunk."""
        return self._ledger.info[chunk].rows

    def nbytes(self, chunk: ChunkId) -> int:
        """Bytes of a chunk's body."""
        return self._ledger.info[chunk].nbytes


class Views:
    """Builds the view of a round boundary."""

    def __init__(
        self,
        state: JobState,
        mobility: Mobility,
        copying: Copying,
        rounds: Rounds,
        history: History,
        tuned: Mapping[str, Scalar],
    ) -> None:
        self._state = state
        self._mobility = mobility
        self._copying = copying
        self._rounds = rounds
        self._history = history
        self._tuned = tuned
        self._chunks = LedgerChunks(state)
        #: The members of the last view, while a policy still refers to it.
        self._last: weakref.ref[Shown] | None = None

    def settle(self) -> None:
        """Evaluate the last view's members before the state changes, if a policy kept it."""
        kept = None if self._last is None else self._last()
        if kept is not None:
            kept.seen()
        self._last = None

    def view(self, now_s: float) -> View:
        """Return the view of the current state."""
        state, mobility = self._state, self._mobility
        ledger, membership = state.ledger, state.membership
        promised = {m for owners in mobility.returning.values() for m in owners.values()}
        coming = mobility.bytes_to() if state.stage == "training" else {}
        for chunk, target in self._copying.targets().items():
            coming[target] = coming.get(target, 0) + ledger.info[chunk].nbytes

        def views_of(records: Iterable[MemberRecord]) -> tuple[MemberView, ...]:
            return tuple(self._member(m, coming.get(m.id, 0)) for m in records)

        ready = [m for m in membership.stage("spare") if m.configured and m.id not in promised]
        if any(m.is_marked for m in ready) and state.steady():
            ready = [m for m in ready if not m.is_marked]
        active = membership.stage("active")
        working = Shown(len(active), lambda: views_of(active))
        self._last = weakref.ref(working)
        return View(
            now_s=now_s,
            round=state.round,
            groups=tuple(
                GroupView(
                    id=g.id,
                    former=tuple(sorted(g.shares)),
                    rows=g.rows,
                    absent_since_s=mobility.absent_since_s.get(g.id, now_s),
                    chunks=g.chunks,
                    shares=g.shares,
                )
                for g in ledger.groups.values()
                if g.id not in mobility.returning
            ),
            spares=views_of(ready),
            working=working,
            leaving=views_of(membership.stage("leaving")),
            history=self._history.progress,
            chunks=self._chunks,
            changes=ledger.changes,
            tuned=dict(self._tuned),
            requested=state.requested,
            expected=self._rounds.expected or 0,
            planned=self._rounds.planned_returns,
            start_members=state.settings.start_members,
            absent_rows=ledger.absent_rows(),
            holders=state.holders,
            copying=self._copying.targets(),
            moving=len(mobility.moves),
            coming=mobility.coming(),
            move_bytes_per_s=state.settings.move_bytes_per_s,
            seed=state.settings.seed,
        )

    def _member(self, record: MemberRecord, coming_bytes: int) -> MemberView:
        return MemberView(
            id=record.id,
            host=record.host,
            rows=self._state.ledger.rows_of(record.id),
            stage=record.stage,
            deadline_s=record.deadline_s,
            seconds=self._history.seconds(record.id),
            seconds_per_row=self._history.seconds_per_row(record.id),
            limit_bytes=record.limit_bytes,
            memory_bytes=record.memory_bytes,
            is_marked=record.is_marked,
            held_bytes=self._state.ledger.held_bytes(record.id) + coming_bytes,
        )
