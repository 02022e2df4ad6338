"""Ask the policies, and carry out what they suggest as far as it is still possible.

Standing policies are asked every time a round boundary is evaluated. The others are asked once per
round, when the previous round has ended, so that the settings they tune go out with the answer to
the trainer; their other suggestions are carried out when the boundary is first evaluated.

A policy sees a frozen :class:`~elasticml.control.policy.View` of the driver's state.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import get_args

from elasticml.control.chunk_transfers import ChunkCopies, ChunkMoves
from elasticml.control.job_state import JobState, names
from elasticml.control.membership import MemberRecord
from elasticml.control.placement import MemoryBudget, to_emptiest
from elasticml.control.policy import (
    Discard,
    GroupView,
    LazyMembers,
    MemberView,
    Move,
    Policy,
    Readmit,
    Replicate,
    Request,
    Retire,
    Scalar,
    ScalingPolicy,
    StandingPolicy,
    StatefulPolicy,
    Suggestion,
    Tune,
    View,
)
from elasticml.control.rounds import History, Rounds
from elasticml.errors import ElasticmlError, JobFailedError, fault_of
from elasticml.ids import ChunkId, GroupId, MemberId
from elasticml.protocol.commands import Command, RequestMembers
from elasticml.story import records as story


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


class PolicyViews:
    """Builds the view of a round boundary."""

    def __init__(
        self,
        state: JobState,
        chunk_moves: ChunkMoves,
        copying: ChunkCopies,
        rounds: Rounds,
        history: History,
        tuned: Mapping[str, Scalar],
    ) -> None:
        self._state = state
        self._mobility = chunk_moves
        self._copying = copying
        self._rounds = rounds
        self._history = history
        self._tuned = tuned
        self._chunks = LedgerChunks(state)
        #: The lists of members of the last view, while a policy still refers to it.
        self._last: list[weakref.ref[LazyMembers]] = []

    def settle(self) -> None:
        """Evaluate the last view's members before the state changes, if a policy kept it."""
        for reference in self._last:
            kept = reference()
            if kept is not None:
                kept.seen()
        self._last = []

    def view(self, now_s: float) -> View:
        """Return the view of the current state."""
        state, chunk_moves = self._state, self._mobility
        ledger, membership = state.ledger, state.membership
        coming: dict[MemberId, int] | None = None

        def view_of(record: MemberRecord) -> MemberView:
            nonlocal coming
            if coming is None:
                coming = self._coming_bytes()
            return self._member(record, coming.get(record.id, 0))

        ready = [m for m in membership.stage("spare") if m.configured]
        if ready and chunk_moves.returning:
            promised = {m for owners in chunk_moves.returning.values() for m in owners.values()}
            ready = [m for m in ready if m.id not in promised]
        if any(m.is_marked for m in ready) and state.steady():
            ready = [m for m in ready if not m.is_marked]
        rows_of, n_active = ledger.rows_of, membership.count("active")
        spares = LazyMembers(len(ready), lambda: ready, view_of, rows_of)
        working = LazyMembers(n_active, lambda: membership.stage("active"), view_of, rows_of)
        self._last = [weakref.ref(spares), weakref.ref(working)]
        return View(
            now_s=now_s,
            round=state.round,
            groups=tuple(
                GroupView(
                    id=g.id,
                    former=tuple(sorted(g.shares)),
                    rows=g.rows,
                    absent_since_s=chunk_moves.absent_since_s.get(g.id, now_s),
                    chunks=g.chunks,
                    shares=g.shares,
                )
                for g in ledger.groups.values()
                if g.id not in chunk_moves.returning
            ),
            spares=spares,
            working=working,
            leaving=tuple([view_of(record) for record in membership.stage("leaving")]),
            history=self._history.progress,
            chunks=self._chunks,
            changes=ledger.changes,
            tuned=dict(self._tuned),
            requested=state.requested,
            expected=self._expected(),
            has_ending=bool(membership.ending),
            planned=self._rounds.planned_returns,
            # Hosts that the job has excluded are not expected back.
            start_members=max(0, state.settings.start_members - len(state.excluded)),
            absent_rows=ledger.absent_rows(),
            holders=state.holders,
            is_contiguous=state.settings.placement == "contiguous",
            copying=self._copying.targets(),
            moving=len(chunk_moves.moves),
            coming=chunk_moves.coming(),
            move_bytes_per_s=state.settings.move_bytes_per_s,
            seed=state.settings.seed,
        )

    def _expected(self) -> int:
        """Return how many members of a planned return have not arrived, or warm up."""
        if self._rounds.expected is None:
            return 0
        spares = self._state.membership.stage("spare")
        return self._rounds.expected + sum(not record.configured for record in spares)

    def _coming_bytes(self) -> dict[MemberId, int]:
        """Return the bytes that members are receiving, as moves or as copies."""
        coming = self._mobility.bytes_to() if self._state.stage == "training" else {}
        for chunk, target in self._copying.targets().items():
            coming[target] = coming.get(target, 0) + self._state.ledger.info[chunk].nbytes
        return coming

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
            is_ending=record.is_ending,
            held_bytes=self._state.ledger.held_bytes(record.id) + coming_bytes,
        )


class PolicyEngine:
    """Asks the policies in order; if two suggest a move of the same chunk, the first one wins."""

    def __init__(
        self,
        state: JobState,
        chunk_moves: ChunkMoves,
        chunk_copies: ChunkCopies,
        rounds: Rounds,
        history: History,
        policies: Iterable[Policy],
    ) -> None:
        self.state = state
        self.chunk_moves = chunk_moves
        self.chunk_copies = chunk_copies
        #: Settings of the algorithm that policies have changed, by name.
        self.tuned: dict[str, Scalar] = {}
        every = tuple(policies)
        self.standing = tuple(p for p in every if isinstance(p, StandingPolicy))
        self.others = tuple(p for p in every if not isinstance(p, StandingPolicy))
        self.remembering = tuple(p for p in every if isinstance(p, StatefulPolicy))
        if any(isinstance(p, ScalingPolicy) for p in every):
            state.members_worth = state.settings.start_members
        self._views = PolicyViews(state, chunk_moves, chunk_copies, rounds, history, self.tuned)
        #: The last round for which the other policies were asked.
        self._asked_for = -1
        #: Their suggestions that have not been tried yet.
        self._pending: list[tuple[Policy, Suggestion]] = []
        #: Tuned settings that the trainer has not received yet.
        self._unsent: dict[str, Scalar] = {}
        #: Groups already recorded as fitting into no member's memory.
        self._without_room: set[GroupId] = set()

    # --- asking -----------------------------------------------------------------------------------

    def ask(self, now_s: float) -> list[Command]:
        """Ask the policies that are asked once per round, unless this was done for this round."""
        if self._asked_for == self.state.round:
            return []
        self._asked_for = self.state.round
        self._pending.clear()
        commands: list[Command] = []
        view = self._views.view(now_s)
        for policy in self.others:
            for suggestion in self._suggested(policy, view):
                if isinstance(suggestion, Tune):
                    commands += self._tune(policy, suggestion)
                else:
                    self._pending.append((policy, suggestion))
        del view
        self._views.settle()
        return commands

    def take_tuned(self) -> Mapping[str, Scalar]:
        """Return the settings tuned since the last call."""
        unsent, self._unsent = self._unsent, {}
        return unsent

    def apply(self, now_s: float) -> list[Command]:
        """Apply the standing policies' suggestions, and those of the others for this round."""
        commands = self._apply_standing(now_s)
        commands += self.ask(now_s)
        pending, self._pending = self._pending, []
        for policy, suggestion in pending:
            commands += self._apply(policy, suggestion, now_s)
        return commands

    def readmit(self, now_s: float) -> list[Command]:
        """Only bring groups back: all that may be done within a round that has no member left."""
        return self._apply_standing(now_s, (Readmit,))

    def _apply_standing(
        self, now_s: float, kinds: tuple[type, ...] = (Readmit, Move, Replicate, Discard, Retire)
    ) -> list[Command]:
        commands: list[Command] = []
        view: View | None = None
        for policy in self.standing:
            # A policy sees the effect of those before it.
            view = view or self._views.view(now_s)
            suggestions = [s for s in self._suggested(policy, view) if isinstance(s, kinds)]
            if suggestions:
                view = None
                self._views.settle()
            for suggestion in suggestions:
                commands += self._apply(policy, suggestion, now_s)
        view = None
        self._views.settle()
        return commands

    def _suggested(self, policy: Policy, view: View) -> Sequence[Suggestion]:
        try:
            suggestions = list(policy.suggest(view))
        except ElasticmlError:
            raise
        except Exception as error:
            # The policy may be a user's: the job must end with its error and not hang.
            raise fault_of(error, f"policy {policy.name}", policy=policy.name) from error
        for suggestion in suggestions:
            if not isinstance(suggestion, Suggestion):
                raise JobFailedError(
                    f"policy {policy.name} suggested {suggestion!r}, wanted one of "
                    f"{', '.join(kind.__name__ for kind in get_args(Suggestion))} of "
                    "elasticml.control.policy"
                )
        return suggestions

    # --- carrying out -----------------------------------------------------------------------------

    def _apply(self, policy: Policy, suggestion: Suggestion, now_s: float) -> list[Command]:
        """Apply a suggestion and record it; do nothing if it has become void."""
        if isinstance(suggestion, Tune):
            return self._tune(policy, suggestion)
        decision = self._decision(policy, suggestion)
        commands: list[Command]
        copies = 0
        match suggestion:
            case Readmit():
                commands = self._readmit(suggestion)
                decided = decision(group=suggestion.group)
            case Move():
                commands = self._move(suggestion.targets, now_s)
                decided = decision(chunks=len(suggestion.targets))
            case Replicate():
                copies, commands = self._replicate(suggestion, now_s)
                decided = decision(chunks=copies)
            case Discard():
                commands = self.chunk_moves.drop(suggestion.member, sorted(suggestion.chunks))
                decided = decision(member=str(suggestion.member))
            case Retire():
                commands = self._retire(suggestion, now_s)
                decided = decision(members=names(sorted(suggestion.members)))
            case Request():
                count, commands = self._request(suggestion)
                decided = decision(count=count)
        # Copies may be accepted without a command: they wait for earlier ones.
        return [decided, *commands] if commands or copies else []

    def _decision(self, policy: Policy, suggestion: Suggestion) -> Callable[..., Command]:
        """Return the function that records a decision; it takes the fields of the suggestion."""
        return partial(
            self.state.record,
            story.PolicyDecided,
            policy=policy.name,
            suggestion=type(suggestion).__name__,
            why=suggestion.why,
        )

    def _readmit(self, suggestion: Readmit) -> list[Command]:
        group = self.state.ledger.groups.get(suggestion.group)
        if group is None or group.id in self.chunk_moves.returning:
            return []
        named = suggestion.owners or {}
        owners: dict[ChunkId, MemberId] = {c: named[c] for c in group.chunks if c in named}
        for k, former in enumerate(sorted(group.shares)):
            if suggestion.targets:
                target = suggestion.targets[k % len(suggestion.targets)]
                for chunk in group.shares[former]:
                    owners.setdefault(chunk, target)
        if len(owners) < len(group.chunks) or not self._are_staying(owners.values()):
            return []
        if len(self._possible(owners)) < len(owners):
            return []
        if lacking := self._lacking(owners):
            return self._wait_for_room(group.id, lacking, suggestion.why)
        self._without_room.discard(group.id)
        readmitted = self.state.record(
            story.GroupReadmitted,
            group=group.id,
            members=names(suggestion.targets or sorted(set(owners.values()))),
            why=suggestion.why,
        )
        return [readmitted, *self.chunk_moves.readmit(group, owners)]

    def _lacking(self, owners: Mapping[ChunkId, MemberId]) -> int:
        """Return the bytes by which chunks exceed their new owners' memory; 0 if all fit."""
        members, ledger = self.state.membership.members, self.state.ledger
        recipients = {m for c, m in owners.items() if not ledger.holds(m, c)}
        rooms = MemoryBudget(LedgerChunks(self.state), {**self.chunk_moves.coming(), **owners})
        lacking = 0
        for member in sorted(recipients):
            limit = members[member].limit_bytes
            if limit is not None:
                left = rooms.left(member, limit) - self.chunk_copies.ordered_bytes_to(member)
                lacking += max(0, -left)
        return lacking

    def _wait_for_room(self, group: GroupId, lacking: int, why: str) -> list[Command]:
        """Leave a group absent that does not fit into its new owners' memory; record it once."""
        if group in self._without_room:
            return []
        self._without_room.add(group)
        return [
            self.state.record(story.GroupWithoutRoom, group=group, lacking_bytes=lacking, why=why)
        ]

    def _are_staying(self, members: Iterable[MemberId]) -> bool:
        records = [self.state.membership.members.get(m) for m in members]
        return all(r is not None and r.configured and r.stage != "leaving" for r in records)

    def _possible(self, targets: Mapping[ChunkId, MemberId]) -> dict[ChunkId, MemberId]:
        """Leave out unknown chunks, and targets that are gone or leaving.

        Marked members are left out, too, unless all members are marked.
        """
        staying = {m for m in set(targets.values()) if self._are_staying([m])}
        members = self.state.membership.members
        unmarked = {m for m in staying if not members[m].is_marked}
        recipients = unmarked if unmarked or self.state.steady() else staying
        info = self.state.ledger.info
        return {c: m for c, m in targets.items() if c in info and m in recipients}

    def _move(self, targets: Mapping[ChunkId, MemberId], now_s: float) -> list[Command]:
        if now_s < self.chunk_moves.next_move_s:
            return []
        return self.chunk_moves.move(self._possible(targets))

    def _replicate(self, suggestion: Replicate, now_s: float) -> tuple[int, list[Command]]:
        """Accept copies as far as they fit into the targets' memory; return their number, too."""
        coming = self.chunk_moves.bytes_to()
        members, ledger = self.state.membership.members, self.state.ledger
        left: dict[MemberId, int] = {}
        fitting: dict[ChunkId, MemberId] = {}
        for chunk, target in sorted(self._possible(suggestion.targets).items()):
            if chunk in self.chunk_moves.dropping.get(target, ()):
                continue
            limit, nbytes = members[target].in_memory_bytes, ledger.info[chunk].nbytes
            if limit is not None:
                if target not in left:
                    here = ledger.held_bytes(target) + coming.get(target, 0)
                    left[target] = limit - here - self.chunk_copies.bytes_to(target)
                if left[target] < nbytes:
                    continue
                left[target] -= nbytes
            fitting[chunk] = target
        n = self.chunk_copies.accept(fitting, now_s)
        return n, self.chunk_copies.pump() if n else []

    def _retire(self, suggestion: Retire, now_s: float) -> list[Command]:
        """Mark members as leaving and move their chunks; they are released when drained."""
        state = self.state
        members = state.membership.members
        going = [m for m in sorted(set(suggestion.members)) if self._are_staying([m])]
        staying = [
            m.id
            for m in state.membership.stage("active", "spare")
            if m.configured and m.id not in going
        ]
        if not going or len(staying) < max(1, state.settings.members_min):
            return []
        for member in going:
            state.membership.enter(members[member], "leaving")
            members[member].is_retiring = True
        state.stale_layout = True
        self._decide_worth()
        commands: list[Command] = [
            state.record(story.MemberRetiring, member=str(member), why=suggestion.why)
            for member in going
        ]
        owned = [c for member in going for c in state.ledger.chunks_of(member)]
        possible = self._possible(suggestion.targets or {})
        targets = {c: possible[c] for c in owned if c in possible}
        recipients = state.steady().intersection(staying) or staying
        rows = {m: state.ledger.rows_of(m) for m in sorted(recipients)}
        rest = [state.ledger.info[c] for c in owned if c not in targets]
        targets.update(to_emptiest(rest, rows, state.ledger.holders))
        return commands + self._move(targets, now_s)

    def _request(self, suggestion: Request) -> tuple[int, list[Command]]:
        """Request members from the cluster, up to the job's maximum; return their number, too."""
        count, most = suggestion.count, self.state.settings.members_max
        if most is not None:
            here = self.state.membership.count("spare", "active")
            count = min(count, most - here - self.state.requested)
        if count < 1:
            return 0, []
        self.state.requested += count
        self._decide_worth()
        return count, [RequestMembers(cause=self.state.cause, count=count)]

    def _decide_worth(self) -> None:
        """Note the number of members that pay: those that stay or come."""
        staying = self.state.membership.count("spare", "active")
        self.state.members_worth = staying + self.state.requested

    def _tune(self, policy: Policy, suggestion: Tune) -> list[Command]:
        is_tuned = suggestion.name in self.tuned
        if is_tuned and self.tuned[suggestion.name] == suggestion.value:
            return []
        self.tuned[suggestion.name] = self._unsent[suggestion.name] = suggestion.value
        decision = self._decision(policy, suggestion)
        return [decision(setting=suggestion.name, value=suggestion.value)]
