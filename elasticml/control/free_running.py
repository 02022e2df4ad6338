"""The free-running mode: what goes on between two reports, and whom members send their states to.

Members of such a job loop by themselves; a round is no more than a report, one exchange every
``report_every`` seconds in which each tells where its loop is. So membership, ledger, absences,
policies, stop rules and checkpoints are those of every job. Beyond these, members must know of each
other, and nobody who comes, goes or takes over chunks shall have to wait for the next report.
"""

from __future__ import annotations

from collections.abc import Mapping

from elasticml.control.boundary import Boundary
from elasticml.control.commands import Command, Peers
from elasticml.control.events import ExchangeRequested, LoopEnded
from elasticml.control.mobility import Mobility
from elasticml.control.rounds import Rounds
from elasticml.control.state import JobState
from elasticml.terms import MemberId

#: Between two reports policies are asked when somebody came, went or got chunks, and this often.
LOOK_S = 0.1


class FreeRunning:
    """Keeps a job's reports apart, and its members in touch with each other."""

    def __init__(
        self, state: JobState, boundary: Boundary, mobility: Mobility, rounds: Rounds
    ) -> None:
        self._state = state
        self._boundary = boundary
        self._mobility = mobility
        self._rounds = rounds
        #: Members whose loops have ended since the last report.
        self._ended: set[MemberId] = set()
        #: What was there when the boundary was looked at last, and when that was.
        self._looked_at: tuple[object, ...] = ()
        self._looked_s = 0.0
        #: Members that states are sent to, with their addresses.
        self._here: dict[MemberId, str] = {}
        #: Members that have been told of all these.
        self._told: set[MemberId] = set()
        self._seen = -1

    # --- between two reports --------------------------------------------------------------------

    def is_early(self, request: ExchangeRequested, now_s: float) -> bool:
        """Whether an exchange shall wait: a report for its time, unless all loops have ended."""
        every_s = self._state.settings.report_every_s
        if not request.paced or every_s is None or now_s >= self._rounds.round_started_s + every_s:
            return False
        return any(r.id not in self._ended for r in self._state.membership.working())

    def meanwhile(self, now_s: float) -> list[Command]:
        """Do between two reports what else is done at a round's beginning; nothing waits for it."""
        state, mobility = self._state, self._mobility
        missing = sum(len(chunks) for chunks in mobility.loading.values())
        at = (state.membership.changes, state.ledger.changes, missing, len(state.ledger.groups))
        if at == self._looked_at and now_s < self._looked_s + LOOK_S:
            return []
        self._looked_at, self._looked_s = at, now_s
        commands = self._boundary.apply(now_s)
        if commands:
            return commands
        # Whoever has got chunks visits them from now on, and not from the next report on.
        return state.relayout() if state.membership.n_working else []

    def ended(self, event: LoopEnded) -> list[Command]:
        """Take note of a loop that has ended."""
        self._ended.add(event.member)
        return []

    def reporting(self) -> None:
        """Begin anew with a report: whoever has ended by then says so in it."""
        self._ended.clear()

    # --- who knows whom ---------------------------------------------------------------------------

    def peers(self) -> list[Command]:
        """Tell members who has come and gone since they were told last.

        States are sent to those that take part and stay. Whoever has a notice sends on, and is sent
        nothing any more.
        """
        state = self._state
        if state.settings.report_every_s is None or state.stage != "training":
            return []
        if self._seen == state.membership.changes:
            return []
        self._seen = state.membership.changes
        here = {r.id: r.address for r in state.membership.stage("active")}
        came = {m: here[m] for m in sorted(here) if m not in self._here}
        gone = tuple(m for m in sorted(self._here) if m not in here)
        self._here = here
        everybody = {m: here[m] for m in sorted(here)}
        commands: list[Command] = []
        told: set[MemberId] = set()
        for record in state.membership.working():
            told.add(record.id)
            if record.id not in self._told:
                commands.append(self._order(record.id, everybody, (), anew=True))
            elif came or gone:
                commands.append(self._order(record.id, came, gone, anew=False))
        self._told = told
        return commands

    def _order(
        self,
        member: MemberId,
        came: Mapping[MemberId, str],
        gone: tuple[MemberId, ...],
        anew: bool,
    ) -> Command:
        return Peers(
            cause=self._state.cause,
            member=member,
            came=tuple(came),
            addresses=tuple(came.values()),
            gone=gone,
            anew=anew,
            begun=self._state.round > 0,
        )
