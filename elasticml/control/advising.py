"""Policies asked, and what they suggest carried out as far as it is still possible.

Standing policies are asked whenever a boundary is looked at. The others are asked once for every
round: when the last one has ended, so that what they tune goes out with the answer to the trainer;
the rest is carried out when the boundary is looked at for the first time.
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
    """Asks the policies in their order; where two want the same chunk, the first has its way."""

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
        given = tuple(policies)
        self.standing = tuple(p for p in given if isinstance(p, StandingPolicy))
        self.others = tuple(p for p in given if not isinstance(p, StandingPolicy))
        self.remembering = tuple(p for p in given if isinstance(p, RememberingPolicy))
        self._views = Views(state, mobility, copying, rounds, history, self.tuned)
        #: The round for which the others have been asked last.
        self._asked_for = -1
        #: What they said and has not been tried yet.
        self._pending: list[tuple[Policy, Suggestion]] = []
        self._untold: dict[str, Scalar] = {}
        #: Groups of which it has been told that there is no room for them.
        self._without_room: set[GroupId] = set()

    # --- asking -----------------------------------------------------------------------------------

    def ask(self, now_s: float) -> list[Command]:
        """Ask the policies that are asked once a round, if this round they have not been."""
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
        """Return what was tuned since the trainer was told last."""
        untold, self._untold = self._untold, {}
        return untold

    def apply(self, now_s: float) -> list[Command]:
        """Carry out what the standing policies say now, and what the others said for this round."""
        commands = self._apply_standing(now_s)
        commands += self.ask(now_s)
        pending, self._pending = self._pending, []
        for policy, suggestion in pending:
            commands += self._apply(policy, suggestion, now_s)
        return commands

    def readmit(self, now_s: float) -> list[Command]:
        """Only bring groups back: what may be done within a round that nobody is left in."""
        return self._apply_standing(now_s, (Readmit,))

    def _apply_standing(
        self, now_s: float, kinds: tuple[type, ...] = (Readmit, Move, Replicate, Discard, Retire)
    ) -> list[Command]:
        commands: list[Command] = []
        view: View | None = None
        for policy in self.standing:
            # What one policy has had done the next one sees.
            view = view or self._views.view(now_s)
            wanted = [s for s in self._suggested(policy, view) if isinstance(s, kinds)]
            if wanted:
                view = None
                self._views.settle()
            for suggestion in wanted:
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
            # A policy may be a user's own; the job must end with its error and not hang.
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
        """Do what is suggested and tell of it; nothing where it has become void."""
        told: dict[str, object] = {}
        commands: list[Command]
        match suggestion:
            case Readmit():
                commands = self._readmit(suggestion)
                told["group"] = suggestion.group
            case Move():
                commands = self._move(suggestion.targets, now_s)
                if commands:
                    told["chunks"] = len(suggestion.targets)
            case Replicate():
                commands = self._replicate(suggestion, now_s, told)
            case Discard():
                commands = self.mobility.drop(suggestion.member, sorted(suggestion.chunks))
                told["member"] = suggestion.member
            case Retire():
                commands = self._retire(suggestion, now_s)
                told["members"] = sorted(suggestion.members)
            case Request():
                commands = self._request(suggestion, told)
            case Tune():
                return self._tune(policy, suggestion)
        # Copies may be accepted and wait for those before them.
        if not commands and "chunks" not in told:
            return []
        return [self._decided(policy, suggestion, told), *commands]

    def _decided(self, policy: Policy, suggestion: Suggestion, told: dict[str, object]) -> Command:
        return self.state.record(
            "PolicyDecided",
            policy=policy.name,
            suggestion=type(suggestion).__name__,
            why=suggestion.why,
            **told,
        )

    def _readmit(self, suggestion: Readmit) -> list[Command]:
        group = self.state.ledger.groups.get(suggestion.group)
        if group is None or group.id in self.mobility.returning:
            return []
        given = suggestion.owners or {}
        owners: dict[ChunkId, MemberId] = {c: given[c] for c in group.chunks if c in given}
        for k, former in enumerate(sorted(group.shares)):
            if suggestion.targets:
                target = suggestion.targets[k % len(suggestion.targets)]
                for chunk in group.shares[former]:
                    owners.setdefault(chunk, target)
        if len(owners) < len(group.chunks) or not self._are_staying(owners.values()):
            return []
        if len(self._known(owners)) < len(owners):
            return []
        if lacking := self._lacking(owners):
            return self._wait_for_room(group.id, lacking, suggestion.why)
        self._without_room.discard(group.id)
        told = self.state.record(
            "GroupReadmitted",
            group=group.id,
            members=list(suggestion.targets or sorted(set(owners.values()))),
            why=suggestion.why,
        )
        return [told, *self.mobility.readmit(group, owners)]

    def _lacking(self, owners: Mapping[ChunkId, MemberId]) -> int:
        """Bytes by which chunks exceed their new owners' memory; 0 where all of them fit."""
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
        """Leave a group absent that its new owners' memory does not take; tell of it once."""
        if group in self._without_room:
            return []
        self._without_room.add(group)
        return [self.state.record("GroupWithoutRoom", group=group, lacking_bytes=lacking, why=why)]

    def _are_staying(self, members: Iterable[MemberId]) -> bool:
        found = [self.state.membership.members.get(m) for m in members]
        return all(r is not None and r.configured and r.stage != "leaving" for r in found)

    def _known(self, targets: Mapping[ChunkId, MemberId]) -> dict[ChunkId, MemberId]:
        """Leave out unknown chunks, and targets that are gone or about to go.

        Members whose containers are asked for back get nothing, as long as there are others.
        """
        staying = {m for m in set(targets.values()) if self._are_staying([m])}
        steady = self.state.steady()
        takers = staying & steady if steady else staying
        info = self.state.ledger.info
        return {c: m for c, m in targets.items() if c in info and m in takers}

    def _move(self, targets: Mapping[ChunkId, MemberId], now_s: float) -> list[Command]:
        if now_s < self.mobility.next_move_s:
            return []
        return self.mobility.move(self._known(targets))

    def _replicate(
        self, suggestion: Replicate, now_s: float, told: dict[str, object]
    ) -> list[Command]:
        """Take copies on as far as they fit the targets' memory."""
        coming = self.mobility.bytes_to()
        members, ledger = self.state.membership.members, self.state.ledger
        left: dict[MemberId, int] = {}
        fitting: dict[ChunkId, MemberId] = {}
        for chunk, target in sorted(self._known(suggestion.targets).items()):
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
        told["chunks"] = n
        return self.copying.pump()

    def _retire(self, suggestion: Retire, now_s: float) -> list[Command]:
        """Mark members as leaving and move what they own; the boundary lets them go when empty."""
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
        wanted = self._known(suggestion.targets or {})
        targets = {c: wanted[c] for c in owned if c in wanted}
        takers = state.steady().intersection(staying) or staying
        rows = {m: state.ledger.rows_of(m) for m in sorted(takers)}
        rest = [state.ledger.info[c] for c in owned if c not in targets]
        targets.update(to_emptiest(rest, rows, state.ledger.holders))
        return commands + self._move(targets, now_s)

    def _request(self, suggestion: Request, told: dict[str, object]) -> list[Command]:
        """Ask for members, no more than the job may have."""
        count, most = suggestion.count, self.state.settings.members_max
        if most is not None:
            here = self.state.membership.count("spare", "active")
            count = min(count, most - here - self.state.requested)
        if count < 1:
            return []
        told["count"] = count
        self.state.requested += count
        return [RequestMembers(cause=self.state.cause, count=count)]

    def _tune(self, policy: Policy, suggestion: Tune) -> list[Command]:
        known = suggestion.name in self.tuned
        if known and self.tuned[suggestion.name] == suggestion.value:
            return []
        self.tuned[suggestion.name] = self._untold[suggestion.name] = suggestion.value
        told: dict[str, object] = {"setting": suggestion.name, "value": suggestion.value}
        return [self._decided(policy, suggestion, told)]
