"""The driver machine: all decisions of one job, as a pure state machine.

``handle(event, now_s)`` returns the commands to perform, in order; their results come back as
events. The machine uses no clock, no randomness and no arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from elasticml.control import events as ev
from elasticml.control.advising import Advising
from elasticml.control.boundary import Boundary
from elasticml.control.commands import Command, Continue, Dismiss, EndJob, Gathered
from elasticml.control.copying import Copying
from elasticml.control.dealing import Dealing
from elasticml.control.exchanging import Exchanging
from elasticml.control.free_running import FreeRunning
from elasticml.control.history import History
from elasticml.control.invariants import check
from elasticml.control.liveness import Liveness
from elasticml.control.loading import Loading
from elasticml.control.mobility import Mobility
from elasticml.control.policy import Policy
from elasticml.control.reach import Reach
from elasticml.control.rounds import Rounds
from elasticml.control.settings import Settings
from elasticml.control.state import JobState
from elasticml.control.turnover import Turnover
from elasticml.control.waiting import Waiting

#: Up to this many members the invariants are checked after every event, above at round ends.
FULL_CHECK_MEMBERS_MAX = 64


class Driver:
    """The driver machine of one job.

    Parameters
    ----------
    settings : Settings
    policies : iterable of Policy
        Asked in this order at every round boundary.
    check_every_event : bool
        Check the invariants after every event (up to 64 members); otherwise at round ends and
        when a member joins or is lost.
    """

    def __init__(
        self, settings: Settings, policies: Iterable[Policy], check_every_event: bool = True
    ) -> None:
        self.check_every_event = check_every_event
        #: Members that participated when the job ended.
        self.members_at_end = 0
        self.state = JobState(settings=settings)
        self.loading = Loading(self.state)
        self.copying = Copying(self.state)
        self.mobility = Mobility(self.state, self.copying)
        self.exchanging = Exchanging(self.state)
        self.liveness_probe = Liveness(settings.deadline_s_min)
        self.history = History(self.state)
        self.rounds = Rounds(self.state, self.history)
        self.link_monitor = Reach(self.state)
        #: The trainer's request that has not started yet.
        self.request: ev.ExchangeRequested | None = None
        self.at_round_start = True
        #: The stop rule that ended the rounds.
        self._stop_reason: str | None = None
        self.advising = Advising(
            self.state, self.mobility, self.copying, self.rounds, self.history, policies
        )
        self.scheduler = Boundary(
            self.state,
            self.mobility,
            self.rounds,
            self.advising,
            lambda member, now_s: self.turnover.release(member, now_s),
        )
        self.async_mode = FreeRunning(self.state, self.scheduler, self.mobility, self.rounds)
        self.idle_rounds = Waiting(self.state, self.mobility, self.rounds, self.scheduler)
        self.placement = Dealing(
            self.state, self.loading, self.mobility, self.rounds, self.scheduler
        )
        self.turnover = Turnover(
            self.state,
            self.loading,
            self.mobility,
            self.copying,
            self.exchanging,
            self.rounds,
            self.history,
            self.link_monitor,
            self.placement,
        )
        #: The requested exchange has had to wait for absent examples.
        self._stalled = False
        #: Examples by slot, as last recorded in the story.
        self._recorded_rows: dict[str, int] = {}
        #: Change counts of ledger and membership at that time.
        self._rows_at: tuple[int, int] | None = None
        #: Change counts at which ledger, membership and tree were last checked.
        self.checked_at: tuple[object, ...] | None = None
        self._handlers = self._handler_table()

    def _handler_table(self) -> dict[type[ev.Event], Callable[[Any, float], list[Command]]]:
        return {
            ev.Ticked: self._ticked,
            ev.Arrived: self.turnover.arrived,
            ev.Noticed: self.turnover.noticed,
            ev.NoticeWithdrawn: lambda e, now: self.turnover.withdrawn(e),
            ev.Lost: lambda e, now: self.turnover.lost(e.member, e.reason, now),
            ev.ContainerMarked: self.turnover.reclaims.marked,
            ev.MarkLifted: lambda e, now: self.turnover.reclaims.lifted(e.address, now),
            ev.ContainerStopping: lambda e, now: self.turnover.reclaims.stopping(e),
            ev.ContainerEnded: self.turnover.reclaims.ended,
            ev.NodeChanged: self.turnover.reclaims.node,
            ev.BlockRead: lambda e, now: self.loading.read(e),
            ev.FactsFixed: lambda e, now: self.placement.facts_fixed(e),
            ev.ChunksLoaded: self._loaded,
            ev.ChunksDropped: self._quiet(self.mobility.dropped),
            ev.WentOutOfCore: lambda e, now: [self._went_out_of_core(e)],
            ev.MoveFailed: self._move_failed,
            ev.Attached: lambda e, now: self.state.root.attached(e.child, e.has_model),
            ev.PartialArrived: self._partial,
            ev.LinkDown: self._link_down,
            ev.StatusTold: self._quiet(self._status_reported),
            ev.LoopEnded: lambda e, now: self.async_mode.ended(e),
            ev.AnchorArrived: lambda e, now: self.exchanging.anchor_arrived(e),
            ev.ExchangeRequested: self._requested,
            ev.RoundFinished: self._round_finished,
            ev.TrainerFinished: self._trainer_finished,
            ev.Failed: lambda e, now: self._end("failed", e.reason),
            ev.CancelRequested: lambda e, now: self._end("cancelled", "cancelled"),
            ev.FaultPerformed: self._fault_performed,
            ev.MembersRefused: self._refused,
        }

    def handle(self, event: ev.Event, now_s: float) -> list[Command]:
        """Handle an event; return the commands to perform, in order."""
        if self.state.stage == "ended":
            return []  # events after the end are ignored
        self.state.cause = event.cause or type(event).__name__
        commands = self._handlers[type(event)](event, now_s)
        commands = self._settle(commands, now_s) + self.async_mode.peers()
        self.link_monitor.relaid()
        few = len(self.state.membership.members) <= FULL_CHECK_MEMBERS_MAX
        often = few and (self.check_every_event or isinstance(event, (ev.Lost, ev.Arrived)))
        if often or isinstance(event, ev.RoundFinished):
            check(self)
        return commands

    def _went_out_of_core(self, event: ev.WentOutOfCore) -> Command:
        return self.state.record(
            "WentOutOfCore",
            member=event.member,
            nbytes=event.nbytes,
            limit_bytes=event.limit_bytes,
        )

    @staticmethod
    def _quiet(note: Callable[[Any], None]) -> Callable[[Any, float], list[Command]]:
        """Wrap a handler that returns no commands."""

        def handler(event: ev.Event, now_s: float) -> list[Command]:
            note(event)
            return []

        return handler

    def _settle(self, commands: list[Command], now_s: float) -> list[Command]:
        """Proceed as far as the new state allows, without waiting for another event."""
        settled: list[Command] = []
        queue = list(commands)
        while True:
            for command in queue:
                if isinstance(command, Gathered):
                    settled += self.exchanging.gathered(command, now_s)
                else:
                    settled.append(command)
            queue = []
            if self.state.stage == "ended":
                return settled
            if self.exchanging.deliverable(now_s):
                queue = self._deliver(now_s)
            elif self.state.stage == "training" and self.exchanging.running is None:
                queue = self._try_start(now_s)
            if not queue:
                return settled

    # --- the trainer ---------------------------------------------------------------------

    def _requested(self, event: ev.ExchangeRequested, now_s: float) -> list[Command]:
        self.request = event
        return self._seal(now_s) if event.seal else []

    def _seal(self, now_s: float) -> list[Command]:
        group = self.state.ledger.seal()
        if group is None:
            return []
        self.mobility.absent_since_s[group.id] = now_s
        return [
            self.state.record(
                "ChunksAbsent",
                group=group.id,
                chunks=len(group.chunks),
                examples=group.rows,
                members=sorted(group.shares),
            )
        ]

    def _round_finished(self, event: ev.RoundFinished, now_s: float) -> list[Command]:
        commands = self.rounds.due_loss("apply")
        commands += self.rounds.finish(event.row, now_s)
        self.at_round_start = True
        self._stop_reason = self.rounds.stop_reason(now_s)
        go_on = self._stop_reason is None
        if go_on:
            commands += self.advising.ask(now_s)
        tuned = self.advising.take_tuned()
        return [*commands, Continue(go_on=go_on, reason=self._stop_reason or "", tuned=tuned)]

    def _trainer_finished(self, event: ev.TrainerFinished, now_s: float) -> list[Command]:
        commands: list[Command] = []
        if event.row:
            row = self.rounds.row(event.row)
            commands.append(self.state.record("FinalModel", **row))
        stopped = None if event.converged else self._stop_reason
        return commands + self._end("done", stopped or event.reason)

    # --- exchanges -----------------------------------------------------------------------

    def _try_start(self, now_s: float) -> list[Command]:
        """Start the requested exchange unless something else must happen first."""
        request, state = self.request, self.state
        if request is None or self.rounds.injecting:
            return []
        if self.async_mode.is_early(request, now_s):
            return self.async_mode.meanwhile(now_s)
        if request.require_everybody and (state.ledger.groups or state.ledger.open):
            # Set until the exchange starts, not only until no chunk is absent: returning chunks may
            # trigger moves, and no chunk may change its owner during an exchange.
            self._stalled = True
        if self.at_round_start or self._stalled:
            commands = self.scheduler.apply(now_s)
            if commands:
                return commands  # they may change the decisions below
            if self.scheduler.held(now_s):
                self.idle_rounds.over()
                return []
        if request.require_everybody and (state.ledger.groups or state.ledger.open):
            return self._stall(now_s)
        n_working = state.membership.n_working
        # A running round continues with the members it has: others can join only at the next one.
        if n_working < (max(1, state.settings.members_min) if self.at_round_start else 1):
            revived = self.idle_rounds.revive(now_s, self.at_round_start)
            if revived or self.scheduler.held(now_s):
                self.idle_rounds.over()
                return revived
            return self._idle(now_s, self.at_round_start)
        self.idle_rounds.over()
        phases = ("broadcast", "correct") if request.phase == "correct" else ("broadcast",)
        commands = self.rounds.due_loss(*phases)
        if commands:
            return commands
        if self.at_round_start:
            self.at_round_start = False
            commands.append(state.record("RoundStarted", **self._loads()))
        self.request, self._stalled = None, False
        self.async_mode.reporting()
        commands += self.exchanging.start(request, now_s)
        return commands + self.rounds.due_loss("compute")

    def _loads(self) -> dict[str, dict[str, int]]:
        """Return the examples of each slot if they changed since the last record, else nothing."""
        state = self.state
        at = (state.ledger.changes, state.membership.changes)
        if at == self._rows_at:
            return {}
        self._rows_at = at
        rows = {str(r.id.slot): state.ledger.rows_of(r.id) for r in state.membership.working()}
        if rows == self._recorded_rows:
            return {}
        self._recorded_rows = rows
        return {"rows": rows}

    def _stall(self, now_s: float) -> list[Command]:
        """Wait until no example is absent."""
        if self.state.ledger.open:
            self.state.ledger.report(frozenset())
            return self._seal(now_s)
        hopeless = self.idle_rounds.hopeless(now_s)
        if hopeless is not None:
            return self._end("failed", hopeless)
        commands = self._idle(now_s, at_boundary=True)
        self.at_round_start = self.at_round_start or bool(commands)
        return commands

    def _idle(self, now_s: float, at_boundary: bool) -> list[Command]:
        commands = self.idle_rounds.idle(now_s, at_boundary)
        reason = self.rounds.stop_reason(now_s) if commands else None
        return commands if reason is None else commands + self._end("done", reason)

    def _partial(self, event: ev.PartialArrived, now_s: float) -> list[Command]:
        run = self.exchanging.running
        if run is None or event.exchange != run.id or event.sender not in run.participants:
            # Too late, or from a new incarnation in the slot of a participant.
            return [self.state.root.refuse(event)]
        self.history.computed(event.exchange, event.compute_s)
        return self.state.root.partial(event) + self.rounds.due_loss("reduce")

    def _deliver(self, now_s: float) -> list[Command]:
        run = self.exchanging.running
        assert run is not None
        request = run.request
        record, deliver = self.exchanging.deliver()
        self.rounds.exchange += 1
        if request.require_everybody and deliver.absent_examples:
            # The trainer requires all examples: repeat the exchange when all are back.
            self.request = request
            return [record]
        return [record, deliver]

    # --- time, the end -------------------------------------------------------------------

    def _ticked(self, event: ev.Ticked, now_s: float) -> list[Command]:
        commands, stuck = self.exchanging.ticked(now_s)
        awaited = self.loading.awaited() | self.mobility.awaited() | self.copying.awaited()
        questions, mute = self.liveness_probe.ticked(awaited, self.state.membership.members, now_s)
        commands += questions
        for member in [*stuck, *mute]:
            commands += self.turnover.fence(member, "deadline", now_s)
        for member in self.link_monitor.unreachable(now_s):
            commands += self.turnover.fence(member, "unreachable", now_s)
        self.turnover.lapsed(now_s)
        commands += self.turnover.reclaims.ticked(now_s)
        seconds = self.state.settings.seconds_max
        waits = self.state.stage == "training" and not self.state.membership.n_working
        if seconds is not None and now_s > seconds and waits:
            commands += self._end("done", f"{seconds:g} seconds")
        return commands

    def _move_failed(self, event: ev.MoveFailed, now_s: float) -> list[Command]:
        self.liveness_probe.suspect(event.target)
        commands = self.mobility.failed(event, now_s) + self.copying.failed(event, now_s)
        return commands + self.placement.dealt()

    def _link_down(self, event: ev.LinkDown, now_s: float) -> list[Command]:
        self.link_monitor.link_down(event.member, event.peer, now_s)
        return []

    def _loaded(self, event: ev.ChunksLoaded, now_s: float) -> list[Command]:
        commands = self.mobility.loaded(event) + self.copying.loaded(event)
        return commands + self.placement.dealt()

    def _refused(self, event: ev.MembersRefused, now_s: float) -> list[Command]:
        state = self.state
        state.requested = max(0, state.requested - event.count)
        return [state.record("MembersRefused", count=event.count, reason=event.reason)]

    def _fault_performed(self, event: ev.FaultPerformed, now_s: float) -> list[Command]:
        self.rounds.performed(event)
        return self.placement.dealt()

    def _status_reported(self, event: ev.StatusTold) -> None:
        self.exchanging.status_reported(event)
        self.liveness_probe.heard(event.member)

    def _end(self, how: Literal["done", "failed", "cancelled"], reason: str) -> list[Command]:
        state = self.state
        state.stage = "ended"
        self.request = None
        self.members_at_end = state.membership.n_working
        ended: list[Command] = [
            EndJob(
                cause=state.cause,
                state="failed"
                if how == "failed"
                else "cancelled"
                if how == "cancelled"
                else "done",
                reason=reason,
            )
        ]
        members = state.living()
        for member in members:
            state.membership.remove(member)
        return ended + [Dismiss(cause="job ended", member=m, reason="job ended") for m in members]
