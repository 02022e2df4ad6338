"""Round boundaries: returns take effect, chunks move, drained members are released."""

from __future__ import annotations

from collections.abc import Callable

from elasticml.control.advising import Advising
from elasticml.control.commands import Command, GiveChunks
from elasticml.control.mobility import Mobility
from elasticml.control.rounds import Rounds
from elasticml.control.state import JobState
from elasticml.terms import MemberId


class Boundary:
    """Applies at the start of a round what must not happen within one.

    Parameters
    ----------
    state, mobility, rounds, advising
        Components of the driver.
    release : callable
        Releases a member that owns nothing.
    """

    def __init__(
        self,
        state: JobState,
        mobility: Mobility,
        rounds: Rounds,
        advising: Advising,
        release: Callable[[MemberId, float], list[Command]],
    ) -> None:
        self.state = state
        self.mobility = mobility
        self.rounds = rounds
        self.advising = advising
        self._release = release
        self._hold_since_s: float | None = None

    def apply(self, now_s: float) -> list[Command]:
        """Apply returns, releases, policy decisions and planned faults that are due now."""
        state, mobility = self.state, self.mobility
        commands = self.rounds.due_return()
        commands += mobility.commit_returns(now_s)
        for record in state.membership.stage("leaving"):
            if not state.ledger.owned.get(record.id) and not mobility.is_target(record.id):
                commands += self._release(record.id, now_s)
        commands += self.activate()
        advised = self.advising.apply(now_s)
        if any(isinstance(command, GiveChunks) for command in advised):
            advised += self.rounds.due_loss("move")
        return commands + advised

    def revive(self, now_s: float) -> list[Command]:
        """Bring groups back within a round that has no member left."""
        commands = self.mobility.commit_returns(now_s)
        return commands + self.activate() + self.advising.readmit(now_s)

    def held(self, now_s: float) -> bool:
        """Whether the round must wait.

        It waits while chunks are moving, while members take over chunks that they hold already
        (which takes no time), and while a planned return is running.
        """
        mobility, rounds = self.mobility, self.rounds
        returning = rounds.expected is not None and (rounds.expected > 0 or mobility.loading)
        if rounds.expected == 0 and not mobility.loading:
            rounds.expected = None
        busy = mobility.moves or mobility.rereading or mobility.at_hand
        if not busy and not returning:
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
        """Make members active that own chunks, and spare those that no longer own any."""
        state = self.state
        commands: list[Command] = []
        members = state.membership.members
        records = [r for m in state.ledger.emptied if (r := members.get(m)) is not None]
        emptied = [r for r in records if r.stage == "active"]
        for record in sorted(emptied, key=lambda r: (r.id.incarnation, r.id.slot)):
            if not self.mobility.is_target(record.id):
                # A policy has moved all its chunks away: it is available again.
                state.membership.enter(record, "spare")
                state.stale_layout = True
                commands.append(state.record("MemberSpare", member=record.id))
        for record in state.membership.stage("spare"):
            if state.ledger.owned.get(record.id):
                state.membership.enter(record, "active")
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
