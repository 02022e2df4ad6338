"""Ask the policies, and apply their suggestions as far as they are still possible.

Standing policies are asked every time a round boundary is evaluated. The others are asked once per
round: when the previous round has ended, so that the settings they tune go out with the answer to
the trainer. Their other suggestions are applied when the boundary is first evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from elasticml.control.commands import Command, RequestMembers
from elasticml.control.copying import Copying
from elasticml.control.history import History
from elasticml.control.mobility import Mobility
from elasticml.control.placement import to_emptiest
from elasticml.control.policy import (
    Discard,
    Move,
    Policy,
    Readmit,
    RememberingPolicy,
    Replicate,
    Request,
    Retire,
    Scalar,
    StandingPolicy,
    Suggestion,
    Tune,
    View,
)
from elasticml.control.room import Rooms
from elasticml.control.rounds import Rounds
from elasticml.control.state import JobState
from elasticml.control.views import LedgerChunks, Views
from elasticml.errors import ElasticmlError, JobFailedError
from elasticml.terms import ChunkId, GroupId, MemberId


class Advising:
    """Asks the policies in order; if two suggest a move of the same chunk, the first one wins."""

    def __init__(
        self,
        state: JobState,
        mobility: Mobility,
        copying: Copying,
        rounds: Rounds,
        history: History,
        policies: Iterable[Policy],
    ) -> None:
        self.state = state
        self.mobility = mobility
        self.copying = copying
        #: Settings of the algorithm that policies have changed, by name.
        self.tuned: dict[str, Scalar] = {}
        every = tuple(policies)
        self.standing = tuple(p for p in every if isinstance(p, StandingPolicy))
        self.others = tuple(p for p in every if not isinstance(p, StandingPolicy))
        self.remembering = tuple(p for p in every if isinstance(p, RememberingPolicy))
        self._views = Views(state, mobility, copying, rounds, history, self.tuned)
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
            raise JobFailedError(
                f"policy {policy.name} failed: {type(error).__name__}: {error}", policy=policy.name
            ) from error
        for suggestion in suggestions:
            if not isinstance(suggestion, Suggestion):
                raise JobFailedError(
                    f"policy {policy.name} suggested {suggestion!r}, wanted one of "
                    f"{', '.join(kind.__name__ for kind in get_args(Suggestion))} of "
                    "elasticml.control.policy",
                    policy=policy.name,
                )
        return suggestions

    # --- carrying out -----------------------------------------------------------------------------

    def _apply(self, policy: Policy, suggestion: Suggestion, now_s: float) -> list[Command]:
        """Apply a suggestion and record it; do nothing if it has become void."""
        fields: dict[str, object] = {}
        commands: list[Command]
        match suggestion:
            case Readmit():
                commands = self._readmit(suggestion)
                fields["group"] = suggestion.group
            case Move():
                commands = self._move(suggestion.targets, now_s)
                if commands:
                    fields["chunks"] = len(suggestion.targets)
            case Replicate():
                commands = self._replicate(suggestion, now_s, fields)
            case Discard():
                commands = self.mobility.drop(suggestion.member, sorted(suggestion.chunks))
                fields["member"] = suggestion.member
            case Retire():
                commands = self._retire(suggestion, now_s)
                fields["members"] = sorted(suggestion.members)
            case Request():
                commands = self._request(suggestion, fields)
            case Tune():
                return self._tune(policy, suggestion)
        # Copies may be accepted without a command: they wait for earlier ones.
        if not commands and "chunks" not in fields:
            return []
        return [self._decision(policy, suggestion, fields), *commands]

    def _decision(
        self, policy: Policy, suggestion: Suggestion, fields: dict[str, object]
    ) -> Command:
        return self.state.record(
            "PolicyDecided",
            policy=policy.name,
            suggestion=type(suggestion).__name__,
            why=suggestion.why,
            **fields,
        )

    def _readmit(self, suggestion: Readmit) -> list[Command]:
        group = self.state.ledger.groups.get(suggestion.group)
        if group is None or group.id in self.mobility.returning:
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
            "GroupReadmitted",
            group=group.id,
            members=list(suggestion.targets or sorted(set(owners.values()))),
            why=suggestion.why,
        )
        return [readmitted, *self.mobility.readmit(group, owners)]

    def _lacking(self, owners: Mapping[ChunkId, MemberId]) -> int:
        """Return the bytes by which chunks exceed their new owners' memory; 0 if all fit."""
        members, ledger = self.state.membership.members, self.state.ledger
        takers = {m for c, m in owners.items() if not ledger.holds(m, c)}
        rooms = Rooms(LedgerChunks(self.state), {**self.mobility.coming(), **owners})
        lacking = 0
        for member in sorted(takers):
            limit = members[member].limit_bytes
            if limit is not None:
                left = rooms.left(member, limit) - self.copying.ordered_bytes_to(member)
                lacking += max(0, -left)
        return lacking

    def _wait_for_room(self, group: GroupId, lacking: int, why: str) -> list[Command]:
        """Leave a group absent that does not fit into its new owners' memory; record it once."""
        if group in self._without_room:
            return []
        self._without_room.add(group)
        return [self.state.record("GroupWithoutRoom", group=group, lacking_bytes=lacking, why=why)]

    def _are_staying(self, members: Iterable[MemberId]) -> bool:
        records = [self.state.membership.members.get(m) for m in members]
        return all(r is not None and r.configured and r.stage != "leaving" for r in records)

    def _possible(self, targets: Mapping[ChunkId, MemberId]) -> dict[ChunkId, MemberId]:
        """Leave out unknown chunks, and targets that are gone or leaving.

        Marked members are left out, too, unless all members are marked.
        """
        staying = {m for m in set(targets.values()) if self._are_staying([m])}
        steady = self.state.steady()
        takers = staying & steady if steady else staying
        info = self.state.ledger.info
        return {c: m for c, m in targets.items() if c in info and m in takers}

    def _move(self, targets: Mapping[ChunkId, MemberId], now_s: float) -> list[Command]:
        if now_s < self.mobility.next_move_s:
            return []
        return self.mobility.move(self._possible(targets))

    def _replicate(
        self, suggestion: Replicate, now_s: float, fields: dict[str, object]
    ) -> list[Command]:
        """Accept copies as far as they fit into the targets' memory."""
        coming = self.mobility.bytes_to()
        members, ledger = self.state.membership.members, self.state.ledger
        left: dict[MemberId, int] = {}
        fitting: dict[ChunkId, MemberId] = {}
        for chunk, target in sorted(self._possible(suggestion.targets).items()):
            if chunk in self.mobility.dropping.get(target, ()):
                continue
            limit, nbytes = members[target].in_memory_bytes, ledger.info[chunk].nbytes
            if limit is not None:
                if target not in left:
                    here = ledger.held_bytes(target) + coming.get(target, 0)
                    left[target] = limit - here - self.copying.bytes_to(target)
                if left[target] < nbytes:
                    continue
                left[target] -= nbytes
            fitting[chunk] = target
        n = self.copying.accept(fitting, now_s)
        if n == 0:
            return []
        fields["chunks"] = n
        return self.copying.pump()

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
        commands: list[Command] = [
            state.record("MemberRetiring", member=member, why=suggestion.why) for member in going
        ]
        owned = [c for member in going for c in state.ledger.chunks_of(member)]
        possible = self._possible(suggestion.targets or {})
        targets = {c: possible[c] for c in owned if c in possible}
        takers = state.steady().intersection(staying) or staying
        rows = {m: state.ledger.rows_of(m) for m in sorted(takers)}
        rest = [state.ledger.info[c] for c in owned if c not in targets]
        targets.update(to_emptiest(rest, rows, state.ledger.holders))
        return commands + self._move(targets, now_s)

    def _request(self, suggestion: Request, fields: dict[str, object]) -> list[Command]:
        """Request members from the cluster, up to the job's maximum."""
        count, most = suggestion.count, self.state.settings.members_max
        if most is not None:
            here = self.state.membership.count("spare", "active")
            count = min(count, most - here - self.state.requested)
        if count < 1:
            return []
        fields["count"] = count
        self.state.requested += count
        return [RequestMembers(cause=self.state.cause, count=count)]

    def _tune(self, policy: Policy, suggestion: Tune) -> list[Command]:
        is_tuned = suggestion.name in self.tuned
        if is_tuned and self.tuned[suggestion.name] == suggestion.value:
            return []
        self.tuned[suggestion.name] = self._unsent[suggestion.name] = suggestion.value
        fields: dict[str, object] = {"setting": suggestion.name, "value": suggestion.value}
        return [self._decision(policy, suggestion, fields)]
