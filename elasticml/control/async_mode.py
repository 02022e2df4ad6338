"""Asynchronous mode: boundary work between two reports, and the peers that members send states to.

Members of such a job run their loops without barriers. A round is a report: one exchange every
``report_every`` seconds in which each member reports the progress of its loop. So membership,
ledger, absences, policies, stop rules and checkpoints work as in every job. In addition members
must know their peers, and members that join, leave or take over chunks must not have to wait for
the next report.
"""

from __future__ import annotations

from collections.abc import Mapping

from elasticml.control.chunk_transfers import ChunkMoves
from elasticml.control.job_state import JobState
from elasticml.control.round_scheduler import RoundScheduler
from elasticml.control.rounds import Rounds
from elasticml.ids import MemberId
from elasticml.protocol.commands import Command, Peers
from elasticml.protocol.events import ExchangeRequested, LoopEnded

#: Between reports policies are asked after changes of members or chunks, and at this interval.
LOOK_S = 0.1


class AsyncMode:
    """Paces the reports of a job, and keeps its members informed of their peers."""

    def __init__(
        self, state: JobState, boundary: RoundScheduler, chunk_moves: ChunkMoves, rounds: Rounds
    ) -> None:
        self._state = state
        self._boundary = boundary
        self._mobility = chunk_moves
        self._rounds = rounds
        #: Members whose loops have ended since the last report.
        self._ended: set[MemberId] = set()
        #: State and time at which the boundary was last evaluated.
        self._evaluated_at: tuple[object, ...] = ()
        self._evaluated_s = 0.0
        #: Members to which states are sent, with their addresses.
        self._peers: dict[MemberId, str] = {}
        #: Members that have received the complete list of peers.
        self._informed: set[MemberId] = set()
        #: Membership changes at the last update.
        self._seen = -1

    # --- between two reports --------------------------------------------------------------------

    def is_early(self, request: ExchangeRequested, now_s: float) -> bool:
        """Whether a report must still wait for its time.

        It need not if all loops have ended. A report that is due too long after the end of the
        job's time is asked for at that time.
        """
        settings = self._state.settings
        every_s, latest_s = settings.report_every_s, settings.latest_end_s
        if not request.paced or every_s is None:
            return False
        due_s = self._rounds.round_started_s + every_s
        if settings.seconds_max is not None and latest_s is not None:
            # It takes time itself, for which half of the overtime is left.
            is_late = due_s > (settings.seconds_max + latest_s) / 2
            due_s = settings.seconds_max if is_late else due_s
        if now_s >= due_s:
            return False
        return any(r.id not in self._ended for r in self._state.membership.working())

    def meanwhile(self, now_s: float) -> list[Command]:
        """Apply between two reports what is otherwise applied at a round boundary."""
        state, chunk_moves = self._state, self._mobility
        missing = sum(len(chunks) for chunks in chunk_moves.loading.values())
        at = (state.membership.changes, state.ledger.changes, missing, len(state.ledger.groups))
        if at == self._evaluated_at and now_s < self._evaluated_s + LOOK_S:
            return []
        self._evaluated_at, self._evaluated_s = at, now_s
        commands = self._boundary.apply(now_s)
        if commands:
            return commands
        # Members visit new chunks from now on, not only after the next report.
        return state.relayout() if state.membership.n_working else []

    def ended(self, event: LoopEnded) -> list[Command]:
        """Record that a member's loop has ended."""
        self._ended.add(event.member)
        return []

    def reporting(self) -> None:
        """Reset at a report: loops that have ended say so in it."""
        self._ended.clear()

    # --- peers ---------------------------------------------------------------------------

    def peers(self) -> list[Command]:
        """Tell members which peers have come and gone since the last update.

        States are sent to active members. A leaving member still sends, but receives no more.
        """
        state = self._state
        if state.settings.report_every_s is None or state.stage != "training":
            return []
        if self._seen == state.membership.changes:
            return []
        self._seen = state.membership.changes
        peers = {r.id: r.address for r in state.membership.stage("active")}
        came = {m: peers[m] for m in sorted(peers) if m not in self._peers}
        gone = tuple(m for m in sorted(self._peers) if m not in peers)
        self._peers = peers
        everyone = {m: peers[m] for m in sorted(peers)}
        commands: list[Command] = []
        informed: set[MemberId] = set()
        for record in state.membership.working():
            informed.add(record.id)
            if record.id not in self._informed:
                commands.append(self._order(record.id, everyone, (), is_full=True))
            elif came or gone:
                commands.append(self._order(record.id, came, gone, is_full=False))
        self._informed = informed
        return commands

    def _order(
        self,
        member: MemberId,
        came: Mapping[MemberId, str],
        gone: tuple[MemberId, ...],
        is_full: bool,
    ) -> Command:
        return Peers(
            cause=self._state.cause,
            member=member,
            came=tuple(came),
            addresses=tuple(came.values()),
            gone=gone,
            is_full=is_full,
            begun=self._state.round > 0,
        )
