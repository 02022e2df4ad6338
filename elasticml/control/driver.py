"""The driver: one job's decisions, as a pure machine.

``handle(event, now_s)`` returns the commands that the shell performs in order; what comes of them
returns as events. There is no clock, no chance and no array in here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from elasticml.control import events as ev
from elasticml.control.boundary import Boundary
from elasticml.control.commands import (
    Command,
    Continue,
    Dismiss,
    EndJob,
    Gathered,
    Welcome,
)
from elasticml.control.dealing import Dealing
from elasticml.control.exchanging import Exchanging
from elasticml.control.invariants import check
from elasticml.control.liveness import Liveness
from elasticml.control.loading import Loading
from elasticml.control.mobility import Mobility
from elasticml.control.policy import Policy
from elasticml.control.reach import Reach
from elasticml.control.rounds import Rounds
from elasticml.control.settings import Settings
from elasticml.control.state import JobState
from elasticml.control.waiting import Waiting
from elasticml.terms import MemberId

#: Invariants are re-derived at every event up to this many members, above at round boundaries.
FULL_CHECK_MEMBERS_MAX = 64


class Driver:
    """The job's machine.

    Parameters
    ----------
    settings : Settings
    policies : iterable of Policy
        Asked in this order at every round boundary.
    check_every_event : bool
        Re-derive the invariants after every event (up to 64 members); otherwise at round ends and
        when somebody joins or goes.
    """

    def __init__(
        self, settings: Settings, policies: Iterable[Policy], check_every_event: bool = True
    ) -> None:
        self.check_every_event = check_every_event
        #: Members that took part when the job ended.
        self.members_at_end = 0
        self.state = JobState(settings=settings)
        self.loading = Loading(self.state)
        self.mobility = Mobility(self.state, policies)
        self.exchanging = Exchanging(self.state)
        self.liveness = Liveness(settings.deadline_s_min)
        self.rounds = Rounds(self.state)
        #: The trainer's request that has not been started yet.
        self.request: ev.ExchangeRequested | None = None
        self.at_round_start = True
        #: Which of the job's stop rules has ended the rounds.
        self._stop_reason: str | None = None
        self.boundary = Boundary(self.state, self.mobility, self.rounds, self._release)
        self.waiting = Waiting(self.state, self.mobility, self.rounds, self.boundary)
        self.dealing = Dealing(self.state, self.loading, self.mobility, self.rounds, self.boundary)
        #: The exchange that is asked for has had to wait for absent examples.
        self._stalled = False
        self.reach = Reach(self.state)
        self._handlers: dict[type[ev.Event], Callable[[Any, float], list[Command]]] = {
            ev.Ticked: self._ticked,
            ev.Arrived: self._arrived,
            ev.Noticed: self._noticed,
            ev.NoticeWithdrawn: self._withdrawn,
            ev.Lost: lambda e, now: self._lost(e.member, e.reason, now),
            ev.BlockRead: lambda e, now: self.loading.read(e),
            ev.FactsFixed: lambda e, now: self.dealing.facts_fixed(e),
            ev.ChunksLoaded: lambda e, now: self.mobility.loaded(e) + self.dealing.dealt(),
            ev.MoveFailed: self._move_failed,
            ev.Attached: lambda e, now: self.state.root.attached(e.child, e.has_model),
            ev.PartialArrived: self._partial,
            ev.LinkDown: self._link_down,
            ev.StatusTold: self._quiet(self._told),
            ev.AnchorArrived: lambda e, now: self.exchanging.anchor_arrived(e),
            ev.ExchangeRequested: self._requested,
            ev.RoundFinished: self._round_finished,
            ev.TrainerFinished: self._trainer_finished,
            ev.Failed: lambda e, now: self._end("failed", e.reason),
            ev.CancelRequested: lambda e, now: self._end("cancelled", "cancelled"),
            ev.FaultPerformed: self._fault_performed,
        }

    def handle(self, event: ev.Event, now_s: float) -> list[Command]:
        """Take an event in; return what to do, in order."""
        if self.state.stage == "ended":
            return []  # nothing counts after the end
        self.state.cause = event.cause or type(event).__name__
        commands = self._handlers[type(event)](event, now_s)
        commands = self._settle(commands, now_s)
        few = len(self.state.membership.members) <= FULL_CHECK_MEMBERS_MAX
        often = few and (self.check_every_event or isinstance(event, (ev.Lost, ev.Arrived)))
        if often or isinstance(event, ev.RoundFinished):
            check(self)
        return commands

    @staticmethod
    def _quiet(note: Callable[[Any], None]) -> Callable[[Any, float], list[Command]]:
        """Wrap a handler that only takes note."""

        def handler(event: ev.Event, now_s: float) -> list[Command]:
            note(event)
            return []

        return handler

    def _settle(self, commands: list[Command], now_s: float) -> list[Command]:
        """Carry on as far as the new state allows, without waiting for another event."""
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

    # --- membership ----------------------------------------------------------------------

    def _arrived(self, event: ev.Arrived, now_s: float) -> list[Command]:
        state = self.state
        commands: list[Command] = []
        former = state.membership.at(event.address)
        if former is not None:
            commands += self._lost(former.id, "joined again", now_s)
        record = state.membership.admit(
            address=event.address,
            host=event.host,
            pid=event.pid,
            threads=event.threads,
            slot=event.slot,
            now_s=now_s,
        )
        state.ledger.hold(record.id, event.holdings)
        self.rounds.arrived()
        commands += [
            Welcome(cause=state.cause, member=record.id, arrival=event.arrival),
            state.record("MemberJoined", member=record.id, host=record.host, pid=record.pid),
        ]
        if state.stage in ("dealing", "training"):
            # While dealing, it may be the first one alive after everybody was lost.
            commands += self.dealing.configure(record.id) + self.dealing.dealt()
        elif state.stage in ("surveying", "reading"):
            commands += self.loading.assign()
        elif len(state.membership.members) >= state.settings.start_members:
            state.stage = "surveying" if state.settings.needs_survey else "reading"
            commands += self.loading.start(survey=state.settings.needs_survey)
        return commands

    def _noticed(self, event: ev.Noticed, now_s: float) -> list[Command]:
        record = self.state.membership.members.get(event.member)
        if record is None:
            return []
        told = self.state.record(
            "MemberNoticed", member=event.member, grace_s=event.grace_s, reason=event.reason
        )
        record.deadline_s = now_s + event.grace_s
        if record.stage == "spare":
            return [told, *self._release(event.member, now_s)]
        record.stage = "leaving"
        return [told]

    def _withdrawn(self, event: ev.NoticeWithdrawn, now_s: float) -> list[Command]:
        record = self.state.membership.members.get(event.member)
        if record is None or record.stage != "leaving":
            return []
        self.state.stay(record)
        return [self.state.record("NoticeWithdrawn", member=event.member)]

    def _release(self, member: MemberId, now_s: float) -> list[Command]:
        """Let a member go that owns nothing."""
        dismiss = Dismiss(cause=self.state.cause, member=member, reason="released")
        return [dismiss, *self._lost(member, "noticed", now_s)]

    def _lost(self, member: MemberId, reason: str, now_s: float) -> list[Command]:
        state = self.state
        record = state.membership.remove(member)
        if record is None:
            return []  # a second word of the same loss
        state.told.pop(member, None)
        state.root.peer_lost(member)
        self.reach.lost(member)
        chunks = state.ledger.lose(member)
        self.mobility.lost(member)
        self.exchanging.lost(member)
        lost = state.record(
            "MemberLost", member=member, reason=reason, chunks=len(chunks), pid=record.pid
        )
        commands: list[Command] = [lost]
        if state.stage in ("surveying", "reading"):
            commands += self.loading.lost(member)
        if state.stage in ("reading", "dealing"):
            commands += self.mobility.reread() + self.dealing.dealt()
        if member in state.parents:
            state.stale_layout = True
            commands += state.heal(member)
        return commands

    def _link_down(self, event: ev.LinkDown, now_s: float) -> list[Command]:
        self.reach.link_down(event.member, event.peer, now_s)
        return []

    def _fence(self, member: MemberId, reason: str, now_s: float) -> list[Command]:
        dismiss = Dismiss(cause=reason, member=member, reason=reason)
        return [dismiss, *self._lost(member, reason, now_s)]

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
                chunks=len(group.chunks()),
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
        return [*commands, Continue(go_on=go_on, reason=self._stop_reason or "")]

    def _trainer_finished(self, event: ev.TrainerFinished, now_s: float) -> list[Command]:
        commands: list[Command] = []
        if event.row:
            row = self.rounds.row(event.row)
            commands.append(self.state.record("FinalModel", **row))
        stopped = None if event.converged else self._stop_reason
        return commands + self._end("done", stopped or event.reason)

    # --- exchanges -----------------------------------------------------------------------

    def _try_start(self, now_s: float) -> list[Command]:
        """Start the requested exchange unless something must happen first."""
        request, state = self.request, self.state
        if request is None or self.rounds.injecting:
            return []
        if request.require_everybody and (state.ledger.groups or state.ledger.open):
            # Until the exchange starts, not only until nobody is absent: what comes back may set
            # off moves, and nothing may be on the move in an exchange.
            self._stalled = True
        if self.at_round_start or self._stalled:
            commands = self.boundary.apply(now_s)
            if commands:
                return commands  # they may change what is decided next
            if self.boundary.held(now_s):
                self.waiting.over()
                return []
        if request.require_everybody and (state.ledger.groups or state.ledger.open):
            return self._stall(now_s)
        n_working = len(state.membership.working())
        # A round under way goes on with whoever there is: more can join only at the next one.
        if n_working < (max(1, state.settings.members_min) if self.at_round_start else 1):
            revived = self.waiting.revive(now_s, self.at_round_start)
            if revived or self.boundary.held(now_s):
                self.waiting.over()
                return revived
            return self._idle(now_s, self.at_round_start)
        self.waiting.over()
        phases = ("broadcast", "correct") if request.phase == "correct" else ("broadcast",)
        commands = self.rounds.due_loss(*phases)
        if commands:
            return commands
        if self.at_round_start:
            self.at_round_start = False
            commands.append(state.record("RoundStarted"))
        self.request, self._stalled = None, False
        commands += self.exchanging.start(request, now_s)
        return commands + self.rounds.due_loss("compute")

    def _stall(self, now_s: float) -> list[Command]:
        """Wait for everybody."""
        if self.state.ledger.open:
            self.state.ledger.report(frozenset())
            return self._seal(now_s)
        commands = self._idle(now_s, at_boundary=True)
        self.at_round_start = self.at_round_start or bool(commands)
        return commands

    def _idle(self, now_s: float, at_boundary: bool) -> list[Command]:
        commands = self.waiting.idle(now_s, at_boundary)
        reason = self.rounds.stop_reason(now_s) if commands else None
        return commands if reason is None else commands + self._end("done", reason)

    def _partial(self, event: ev.PartialArrived, now_s: float) -> list[Command]:
        run = self.exchanging.running
        if run is None or event.exchange != run.id or event.sender not in run.participants:
            # Too late, or from a new life in the slot of a member that took part.
            return [self.state.root.refuse(event)]
        return self.state.root.partial(event) + self.rounds.due_loss("reduce")

    def _deliver(self, now_s: float) -> list[Command]:
        run = self.exchanging.running
        assert run is not None
        request = run.request
        told, deliver = self.exchanging.deliver()
        if request.require_everybody and deliver.absent_examples:
            # Not an outcome for a trainer that wants everybody: done again when all are back.
            self.request = request
            return [told]
        return [told, deliver]

    # --- time, the end -------------------------------------------------------------------

    def _ticked(self, event: ev.Ticked, now_s: float) -> list[Command]:
        commands, stuck = self.exchanging.ticked(now_s)
        awaited = self.loading.awaited() | self.mobility.awaited()
        questions, mute = self.liveness.ticked(awaited, self.state.membership.members, now_s)
        commands += questions
        for member in [*stuck, *mute]:
            commands += self._fence(member, "deadline", now_s)
        for member in self.reach.unreachable(now_s):
            commands += self._fence(member, "unreachable", now_s)
        for record in self.state.membership.stage("leaving"):
            if record.deadline_s is not None and now_s > record.deadline_s + 60.0:
                # The notice has lapsed: whoever gave it has changed their mind.
                self.state.stay(record)
        seconds = self.state.settings.seconds_max
        waits = self.state.stage == "training" and not self.state.membership.working()
        if seconds is not None and now_s > seconds and waits:
            commands += self._end("done", f"{seconds:g} seconds")
        return commands

    def _move_failed(self, event: ev.MoveFailed, now_s: float) -> list[Command]:
        self.liveness.suspect(event.target)
        return self.mobility.failed(event, now_s) + self.dealing.dealt()

    def _fault_performed(self, event: ev.FaultPerformed, now_s: float) -> list[Command]:
        self.rounds.performed(event)
        return self.dealing.dealt()

    def _told(self, event: ev.StatusTold) -> None:
        self.exchanging.told(event)
        self.liveness.heard(event.member)

    def _end(self, how: Literal["done", "failed", "cancelled"], reason: str) -> list[Command]:
        state = self.state
        state.stage = "ended"
        self.request = None
        self.members_at_end = len(state.membership.working())
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
