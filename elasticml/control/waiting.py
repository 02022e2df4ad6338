"""Idle rounds while the driver cannot compute, and recovery after the loss of all members."""

from __future__ import annotations

import math

from elasticml.control.boundary import Boundary
from elasticml.control.commands import Command
from elasticml.control.mobility import Mobility
from elasticml.control.rounds import Rounds
from elasticml.control.state import JobState

#: Phases of planned losses that an idle round performs at its start.
EXCHANGE_PHASES = ("broadcast", "compute", "reduce", "apply")
#: Seconds that a job with absent: reload waits for chunks that fit into no member's memory, if
#: nothing else would end it.
ROOMLESS_S_MAX = 600.0


class Waiting:
    """Counts rounds while the job waits, so that faults planned by round still happen."""

    def __init__(
        self, state: JobState, mobility: Mobility, rounds: Rounds, boundary: Boundary
    ) -> None:
        self._state = state
        self._mobility = mobility
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
        mobility, ledger = self._mobility, self._state.ledger
        if mobility.rereading:
            return []
        n_working = self._state.membership.n_working
        if not ledger.open:
            if n_working or at_round_start:
                return []
            return self._boundary.revive(now_s)
        if not n_working:
            return mobility.reread(readers_max=len(ledger.open))
        n_spares = self._state.membership.count("spare")
        is_enough = n_working + n_spares >= self._state.settings.members_min
        if not n_spares or not (is_enough or n_spares >= len(ledger.open)):
            return []
        # Spares have the fewest examples, so they are chosen before working members.
        return mobility.reread(readers_max=min(n_spares, len(ledger.open)))
