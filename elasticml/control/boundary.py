"""What happens between rounds: returns take effect, leavers are emptied, newcomers get a share."""

from __future__ import annotations

from collections.abc import Callable

from elasticml.control.commands import Command
from elasticml.control.mobility import Mobility
from elasticml.control.placement import fitting, to_emptiest, to_newcomers
from elasticml.control.rounds import Rounds
from elasticml.control.state import JobState
from elasticml.terms import ChunkId, MemberId


class Boundary:
    """Applies at the start of a round what could not be done within one.

    Parameters
    ----------
    state, mobility, rounds
        The driver's parts.
    release : callable
        Lets a member go that owns nothing.
    """

    def __init__(
        self,
        state: JobState,
        mobility: Mobility,
        rounds: Rounds,
        release: Callable[[MemberId, float], list[Command]],
    ) -> None:
        self.state = state
        self.mobility = mobility
        self.rounds = rounds
        self._release = release
        self._hold_since_s: float | None = None

    def apply(self, now_s: float) -> list[Command]:
        """Apply what waits for the end of a round: returns, moves, planned faults."""
        state, mobility = self.state, self.mobility
        commands = self.rounds.due_return()
        commands += mobility.commit_returns(now_s)
        for record in state.membership.stage("leaving"):
            if not state.ledger.owned.get(record.id) and not self._moving_to(record.id):
                commands += self._release(record.id, now_s)
        commands += self.activate()
        if not mobility.moves and now_s >= mobility.next_move_s:
            moving = self._move_from_leavers(now_s) or self._move_to_newcomers()
            if moving:
                commands += [*moving, *self.rounds.due_loss("move")]
        commands += mobility.readmit(now_s)
        return commands

    def _moving_to(self, member: MemberId) -> bool:
        return any(target == member for _, target in self.mobility.moves.values())

    def _move_from_leavers(self, now_s: float) -> list[Command]:
        """Save the chunks of members with a notice, as many as fit, with those that stay."""
        state = self.state
        hosts = self._hosts()
        targets: dict[ChunkId, MemberId] = {}
        for record in state.membership.stage("leaving"):
            if not hosts or record.deadline_s is None:
                continue
            owned = [state.ledger.info[c] for c in state.ledger.chunks_of(record.id)]
            fits = fitting(
                owned, 0.5 * (record.deadline_s - now_s), state.settings.move_bytes_per_s
            )
            given = to_emptiest(fits, hosts)
            targets.update(given)
            for chunk, host in given.items():
                hosts[host] += state.ledger.info[chunk].rows
        return self.mobility.move(targets)

    def _hosts(self) -> dict[MemberId, int]:
        """Members that can take leavers' chunks, and how many examples each has.

        Spares are among them, who may have come in the leavers' place; unless absent chunks wait
        for them and there are others.
        """
        state, mobility = self.state, self.mobility
        active = state.membership.stage("active")
        wanted = state.ledger.groups or state.ledger.open or mobility.returning
        free = [m for m in state.membership.stage("spare") if m.configured]
        promised = {m for owners in mobility.returning.values() for m in owners.values()}
        hosts = active if wanted and active else [*active, *free]
        return {m.id: state.ledger.rows_of(m.id) for m in hosts if m.id not in promised}

    def _move_to_newcomers(self) -> list[Command]:
        """Give newcomers a fair share when nothing is absent that they could bring back."""
        state, mobility = self.state, self.mobility
        if state.ledger.groups or state.ledger.open or mobility.returning:
            return []
        spares = [m.id for m in state.membership.stage("spare") if m.configured]
        if not spares or self.rounds.expected:
            return []
        owned = {
            m.id: [state.ledger.info[c] for c in state.ledger.chunks_of(m.id)]
            for m in state.membership.stage("active")
        }
        return mobility.move(to_newcomers(owned, spares))

    def held(self, now_s: float) -> bool:
        """Whether the round must wait: chunks on the move, or a planned return under way."""
        mobility, rounds = self.mobility, self.rounds
        returning = rounds.expected is not None and (rounds.expected > 0 or mobility.loading)
        if rounds.expected == 0 and not mobility.loading:
            rounds.expected = None
        if not mobility.moves and not mobility.rereading and not returning:
            self._hold_since_s = None
            return False
        if self._hold_since_s is None:
            self._hold_since_s = now_s
        if now_s - self._hold_since_s < self.state.settings.hold_s_max:
            return True
        mobility.abandon_moves()
        rounds.expected = None
        self._hold_since_s = None
        return False

    def activate(self) -> list[Command]:
        """Members that own chunks take part from now on; those that own none do not."""
        state = self.state
        commands: list[Command] = []
        for record in state.membership.stage("spare"):
            if state.ledger.owned.get(record.id):
                record.stage = "active"
                state.stale_layout = True
                commands.append(
                    state.record(
                        "MemberActive",
                        member=record.id,
                        chunks=len(state.ledger.owned[record.id]),
                        examples=state.ledger.rows_of(record.id),
                    )
                )
        return commands
