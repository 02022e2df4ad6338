"""Who is waited for: what a job lacks now, since when, and what would help.

A job waits while it cannot compute: for members, for blocks or chunks that members read, send or
receive, or for the answers of silent members. :class:`WaitMonitor` compares the state at every tick
and records waits that last. Ordinary computations are no waits, however long they take.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elasticml.control.chunk_transfers import ChunkMoves
from elasticml.control.exchange import ExchangeCoordinator
from elasticml.control.initial_placement import BlockLoading, InitialPlacement
from elasticml.control.job_state import JobState, names
from elasticml.control.rounds import Rounds
from elasticml.errors import ElasticmlError, JobFailedError, NotEnoughMembersError
from elasticml.ids import MemberId
from elasticml.protocol.commands import Command
from elasticml.protocol.events import ExchangeRequested
from elasticml.story import records as story

#: Shorter waits are not recorded.
WAIT_S_MIN = 1.0
#: Least seconds between two records of one wait whose numbers change.
REPEAT_S = 5.0
#: Most members that a record names.
NAMED_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a job waits for."""

    #: members, blocks, chunks, compiled members, or partials.
    what: str
    have: int
    need: int
    #: The members whose answer, or data, are awaited.
    who: tuple[str, ...] = ()
    #: What would end the wait, or what ends it by itself.
    remedy: str

    @property
    def text(self) -> str:
        """The sentence for messages."""
        return f"has {self.have} of {self.need} {self.what}: {self.remedy}"


class WaitMonitor:
    """Finds out what a job waits for, and records it."""

    def __init__(
        self,
        state: JobState,
        loading: BlockLoading,
        placement: InitialPlacement,
        chunk_moves: ChunkMoves,
        rounds: Rounds,
        exchanges: ExchangeCoordinator,
    ) -> None:
        self._state = state
        self._loading = loading
        self._initial_placement = placement
        self._chunk_moves = chunk_moves
        self._rounds = rounds
        self._exchanges = exchanges
        self._since_s = 0.0
        #: The present wait: its kind, and the exchanges made by then.
        self._key: tuple[object, ...] | None = None
        #: What was last recorded of it, and when.
        self._recorded: Need | None = None
        self._recorded_s = 0.0

    # --- records ------------------------------------------------------------------------------

    def ticked(self, request: ExchangeRequested | None, now_s: float) -> list[Command]:
        """Return the records of waits that begin, change or end."""
        need = self.need(request)
        key = None if need is None else (need.what, need.need, self._state.last_exchange)
        commands: list[Command] = []
        if key != self._key:
            commands += self._over(now_s)
            self._key, self._since_s = key, now_s
        if need is None or now_s - self._since_s < WAIT_S_MIN or need == self._recorded:
            return commands
        if self._recorded is not None and now_s - self._recorded_s < REPEAT_S:
            return commands
        self._recorded, self._recorded_s = need, now_s
        waiting = self._state.record(
            story.Waiting,
            what=need.what,
            have=need.have,
            need=need.need,
            since_s=round(self._since_s, 6),
            who=need.who,
            remedy=need.remedy,
        )
        return [*commands, waiting]

    def _over(self, now_s: float) -> list[Command]:
        recorded, self._recorded = self._recorded, None
        if recorded is None:
            return []
        seconds = round(now_s - self._since_s, 6)
        return [self._state.record(story.WaitEnded, what=recorded.what, seconds=seconds)]

    def too_late(self, request: ExchangeRequested | None, now_s: float) -> ElasticmlError:
        """Return the error of a job whose time is over before it has a model."""
        over = f"stop.seconds: {self._state.settings.seconds_max:g} s are over"
        need = self.need(request)
        if need is None:
            return JobFailedError(f"{over} and no round has ended; give the job more time")
        message = f"{over}, no round has ended, and the job {need.text}"
        if need.what != "members":
            return JobFailedError(message)
        since_s = self._since_s if self._key is not None else now_s
        return NotEnoughMembersError(
            message, have=need.have, need=need.need, waited_s=round(now_s - since_s, 3)
        )

    # --- the state ----------------------------------------------------------------------------

    def need(self, request: ExchangeRequested | None) -> Need | None:
        """Return what the job waits for now; None if it computes.

        Parameters
        ----------
        request : ExchangeRequested or None
            The exchange that cannot begin yet, if there is one.
        """
        state = self._state
        match state.stage:
            case "gathering":
                have, start = len(state.membership.members), state.n_start
                return self._members(have, start, "members.start")
            case "surveying" | "reading":
                return self._blocks()
            case "dealing":
                return self._placement()
            case "training" if self._exchanges.running is not None:
                return self._partials()
            case "training" if request is not None:
                return self._round(request)
        return None

    def _members(self, have: int, need: int, setting: str = "") -> Need:
        requested, lacking = self._state.requested, need - have
        workers = "no worker is connected" if not self._state.membership.members else ""
        helps = f"start {lacking} more, or call cluster.scale({need})"
        if requested:
            helps = f"{requested} were requested from the cluster; or {helps}"
        if setting and have:
            helps += f"; {setting}: {have} would do with what is here"
        remedy = f"{workers}; {helps}" if workers else helps
        return Need(what="members", have=have, need=need, remedy=remedy)

    def _blocks(self) -> Need | None:
        pending, n_blocks = self._loading.pending, self._state.settings.n_blocks
        if not pending:
            return None
        readers = self._loading.awaited()
        if not readers:
            return self._members(0, 1)
        reads = "surveyed" if self._loading.survey else "read"
        more = "; more workers would share them" if len(pending) > len(readers) else ""
        return Need(
            what="blocks",
            have=n_blocks - len(pending),
            need=n_blocks,
            who=_named(readers),
            remedy=f"{len(pending)} are being {reads}{more}",
        )

    def _placement(self) -> Need | None:
        if not self._state.membership.members:
            return self._members(0, 1)
        compiling, n = self._initial_placement.unready(), len(self._state.membership.members)
        need = self._chunks("the first round begins when they are there")
        if need is not None or not compiling:
            return need
        return Need(
            what="compiled members",
            have=n - len(compiling),
            need=n,
            who=_named(compiling),
            remedy="kernels are compiled; a later start takes them from the cache",
        )

    def _chunks(self, then: str) -> Need | None:
        """Return the chunks that are on their way to an owner."""
        moves, ledger = self._chunk_moves, self._state.ledger
        coming = len(moves.moves) + len(moves.rereading) + sum(map(len, moves.loading.values()))
        if not coming:
            return None
        return Need(
            what="chunks",
            have=len(ledger.info) - coming,
            need=len(ledger.info),
            who=_named(moves.awaited()),
            remedy=f"{coming} are being sent or read; {then}",
        )

    def _partials(self) -> Need | None:
        """Return the partials that are late, once their members were asked."""
        run = self._exchanges.running
        assert run is not None
        late = self._exchanges.late() if run.is_late else []
        if not late:
            return None
        n = len(run.participants)
        remedy = "they were asked for their status; a member that does not answer is fenced"
        others = sorted({run.busy_with[member] for member in late if member in run.busy_with})
        if others:
            remedy = f"their workers compute for job {others[0]}; wait for it, or cancel it"
        return Need(what="partials", have=n - len(late), need=n, who=_named(late), remedy=remedy)

    def _round(self, request: ExchangeRequested) -> Need | None:
        """Return what a round, or its next exchange, needs to begin."""
        state, moves, rounds = self._state, self._chunk_moves, self._rounds
        ledger, n_working = state.ledger, state.membership.n_working
        if moves.moves or moves.rereading or moves.at_hand:
            return self._chunks("the round begins when they are there")
        if rounds.expected:
            need = self._members(n_working, n_working + rounds.expected)
            return need
        if request.require_everybody and (ledger.groups or ledger.open):
            if moves.loading:
                return self._chunks("the round begins when they are there")
            away = sum(group.size for group in ledger.groups.values()) + len(ledger.open)
            return self._members(n_working, n_working + away, f"absent: {state.settings.absent}")
        least = max(1, state.settings.members_min)
        if n_working < least:
            return self._members(n_working, least, "members.min" if n_working else "")
        return None


def _named(members: Iterable[MemberId]) -> tuple[str, ...]:
    """Return the first members by name."""
    return names(sorted(members)[:NAMED_MAX])
