"""Between rounds: what the next round waits for, and what happens while none can start.

:class:`RoundScheduler` applies returns, policy decisions and planned faults at a round boundary,
and holds the round while chunks are moving. :class:`IdleRounds` counts rounds in which nothing is
computed, so that faults planned by round still come, and brings a job back that lost all members.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from elasticml.control.chunk_transfers import ChunkMoves
from elasticml.control.job_state import JobState
from elasticml.control.policy_engine import PolicyEngine
from elasticml.control.rounds import Rounds
from elasticml.ids import MemberId
from elasticml.protocol.commands import Command, GiveChunks
from elasticml.story import records as story


class RoundScheduler:
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
        chunk_moves: ChunkMoves,
        rounds: Rounds,
        policy_engine: PolicyEngine,
        release: Callable[[MemberId, float], list[Command]],
    ) -> None:
        self.state = state
        self.chunk_moves = chunk_moves
        self.rounds = rounds
        self.policy_engine = policy_engine
        self._release = release
        self._hold_since_s: float | None = None

    def apply(self, now_s: float) -> list[Command]:
        """Apply returns, releases, policy decisions and planned faults that are due now."""
        state, chunk_moves = self.state, self.chunk_moves
        commands = self.rounds.due_return()
        commands += chunk_moves.commit_returns(now_s)
        for record in state.membership.stage("leaving"):
            if not state.ledger.owned.get(record.id) and not chunk_moves.is_target(record.id):
                commands += self._release(record.id, now_s)
        commands += self.activate()
        advised = self.policy_engine.apply(now_s)
        if any(isinstance(command, GiveChunks) for command in advised):
            advised += self.rounds.due_loss("move")
        return commands + advised

    def revive(self, now_s: float) -> list[Command]:
        """Bring groups back within a round that has no member left."""
        commands = self.chunk_moves.commit_returns(now_s)
        return commands + self.activate() + self.policy_engine.readmit(now_s)

    def held(self, now_s: float) -> bool:
        """Whether the round must wait.

        It waits while chunks are moving, while members take over chunks that they hold already
        (which takes no time), and while a planned return is running.
        """
        chunk_moves, rounds = self.chunk_moves, self.rounds
        returning = rounds.expected is not None and (
            rounds.expected > 0
            or bool(chunk_moves.loading)
            or any(not record.configured for record in self.state.membership.stage("spare"))
        )
        if rounds.expected == 0 and not returning:
            rounds.expected = None
        busy = chunk_moves.moves or chunk_moves.rereading or chunk_moves.at_hand
        if not busy and not returning:
            self._hold_since_s = None
            return False
        if self._hold_since_s is None:
            self._hold_since_s = now_s
        if now_s - self._hold_since_s < self.state.settings.hold_s_max:
            return True
        chunk_moves.abandon_moves()
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
            if not self.chunk_moves.is_target(record.id):
                # A policy has moved all its chunks away: it is available again.
                state.membership.enter(record, "spare")
                state.stale_layout = True
                commands.append(state.record(story.MemberSpare, member=str(record.id)))
        for record in state.membership.stage("spare"):
            if state.ledger.owned.get(record.id):
                state.membership.enter(record, "active")
                state.stale_layout = True
                commands.append(
                    state.record(
                        story.MemberActive,
                        member=str(record.id),
                        chunks=len(state.ledger.owned[record.id]),
                        examples=state.ledger.rows_of(record.id),
                    )
                )
        return commands


#: Phases of planned losses that an idle round performs at its start.
EXCHANGE_PHASES = ("broadcast", "compute", "reduce", "apply")
#: Seconds that a job with absent: reload waits for chunks that fit into no member's memory, if
#: nothing else would end it.
ROOMLESS_S_MAX = 600.0


class IdleRounds:
    """Counts rounds while the job waits, so that faults planned by round still happen."""

    def __init__(
        self, state: JobState, chunk_moves: ChunkMoves, rounds: Rounds, boundary: RoundScheduler
    ) -> None:
        self._state = state
        self._mobility = chunk_moves
        self._rounds = rounds
        self._boundary = boundary
        self._since_s: float | None = None
        #: When the job was last seen without a working member.
        self._deserted_s = -math.inf

    def over(self) -> None:
        """Reset: the job no longer waits."""
        self._since_s = None

    def idle(self, now_s: float, at_round_start: bool) -> list[Command]:
        """Finish an idle round when one is due, at the pace of undisturbed rounds."""
        rounds, pace_s = self._rounds, self._rounds.pace_s()
        if not self._state.membership.n_working:
            self._deserted_s = now_s
        if self._since_s is None:
            self._since_s = now_s
        if now_s < self._since_s + pace_s:
            return []
        self._since_s += pace_s
        commands = rounds.finish(rounds.last_row, now_s, idle=True)
        # Losses planned for an exchange of the new round happen now: an idle round has none.
        commands += rounds.due_loss(*EXCHANGE_PHASES)
        # Within a round the boundary, which performs planned returns, is not reached.
        return commands if at_round_start else commands + rounds.due_return()

    def hopeless(self, now_s: float) -> str | None:
        """Return why waiting is futile; None while it is not.

        With absent: reload, any member with enough memory loads absent chunks at once. If that has
        not happened for long and no stop rule ends the job, it would wait forever. Time without a
        working member does not count: members that are all away may return with enough memory.
        """
        settings, since_s = self._state.settings, self._mobility.absent_since_s
        is_limited = settings.rounds_max is not None or settings.seconds_max is not None
        if settings.absent != "reload" or is_limited or not since_s or self._mobility.loading:
            return None
        if self._rounds.planned_returns or self._rounds.expected:
            return None
        if not self._state.membership.n_working:
            return None
        if now_s - max(self._deserted_s, min(since_s.values())) < ROOMLESS_S_MAX:
            return None
        return (
            f"{self._state.ledger.absent_rows()} examples have been absent for "
            f"{ROOMLESS_S_MAX:.0f} s and fit into no member's memory, but all are needed; "
            "give workers more memory, start more workers, or set absent: ignore or stop.seconds"
        )

    def revive(self, now_s: float, at_round_start: bool) -> list[Command]:
        """Let newcomers take over the open chunks when all or too many members were lost.

        The trainer has no stand-in for open chunks yet, so they must not become a group. Sealed
        groups wait for the end of the round as usual, and for as many newcomers as members
        vanished with them; those newcomers are left to them. Only if nothing but groups is left
        would the round never end, and groups return within it.
        """
        chunk_moves, ledger = self._mobility, self._state.ledger
        if chunk_moves.rereading:
            return []
        n_working = self._state.membership.n_working
        if not ledger.open:
            if n_working or at_round_start:
                return []
            return self._boundary.revive(now_s)
        if not n_working:
            return chunk_moves.reread(readers_max=len(ledger.open))
        n_spares = self._state.membership.count("spare")
        is_enough = n_working + n_spares >= self._state.settings.members_min
        if not n_spares or not (is_enough or n_spares >= len(ledger.open)):
            return []
        # Spares have the fewest examples, so they are chosen before working members.
        return chunk_moves.reread(readers_max=min(n_spares, len(ledger.open)))
