"""The driver machine: all decisions of one job, as a pure state machine.

``handle(event, now_s)`` returns the commands to perform, in order; their results come back as
events. The machine uses no clock, no randomness and no arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from elasticml.control.async_mode import AsyncMode
from elasticml.control.chunk_transfers import ChunkCopies, ChunkMoves
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.exchange import ExchangeCoordinator
from elasticml.control.failure_detector import LinkMonitor, LivenessProbe
from elasticml.control.initial_placement import BlockLoading, InitialPlacement
from elasticml.control.job_state import JobState, names
from elasticml.control.membership_changes import MembershipChanges
from elasticml.control.policy import Policy
from elasticml.control.policy_engine import PolicyEngine
from elasticml.control.round_scheduler import IdleRounds, RoundScheduler
from elasticml.control.rounds import History, Rounds
from elasticml.control.tree_layout import children
from elasticml.control.waiting import WaitMonitor
from elasticml.errors import ElasticmlError, LocalProtocolError, RemoteProtocolError
from elasticml.ids import MemberId
from elasticml.protocol import events as ev
from elasticml.protocol import notices
from elasticml.protocol.commands import JOB_ENDED, Command, Continue, Dismiss, EndJob, Gathered
from elasticml.story import records as story
from elasticml.story.history import HistoryRow

#: Up to this many members the invariants are checked after every event, above at round ends.
FULL_CHECK_MEMBERS_MAX = 64


@dataclass(slots=True)
class Checks:
    """How far the invariants of ledger, membership and tree have been checked."""

    #: Change counts at the last check.
    at: tuple[object, ...] | None = None
    #: Parts of a large state that were not checked since.
    left: int = 0
    #: Number of checks so far.
    number: int = 0


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
        self, settings: DriverSettings, policies: Iterable[Policy], check_every_event: bool = True
    ) -> None:
        self.check_every_event = check_every_event
        #: Members that participated when the job ended.
        self.members_at_end = 0
        self.state = JobState(settings=settings)
        self.loading = BlockLoading(self.state)
        self.chunk_copies = ChunkCopies(self.state)
        self.chunk_moves = ChunkMoves(self.state, self.chunk_copies)
        self.exchanges = ExchangeCoordinator(self.state)
        self.liveness_probe = LivenessProbe(settings.deadline_s_min)
        self.history = History(self.state)
        self.rounds = Rounds(self.state, self.history)
        self.link_monitor = LinkMonitor(self.state)
        #: The trainer's request that has not started yet.
        self.request: ev.ExchangeRequested | None = None
        self.at_round_start = True
        #: The stop rule that ended the rounds.
        self._stop_reason: str | None = None
        self.policy_engine = PolicyEngine(
            self.state, self.chunk_moves, self.chunk_copies, self.rounds, self.history, policies
        )
        self.scheduler = RoundScheduler(
            self.state,
            self.chunk_moves,
            self.rounds,
            self.policy_engine,
            lambda member, now_s: self.membership_changes.release(member, now_s),
        )
        self.async_mode = AsyncMode(self.state, self.scheduler, self.chunk_moves, self.rounds)
        self.idle_rounds = IdleRounds(self.state, self.chunk_moves, self.rounds, self.scheduler)
        self.placement = InitialPlacement(
            self.state, self.loading, self.chunk_moves, self.rounds, self.scheduler
        )
        self.membership_changes = MembershipChanges(
            state=self.state,
            loading=self.loading,
            chunk_moves=self.chunk_moves,
            chunk_copies=self.chunk_copies,
            exchanges=self.exchanges,
            rounds=self.rounds,
            history=self.history,
            link_monitor=self.link_monitor,
            placement=self.placement,
        )
        self.waits = WaitMonitor(
            self.state,
            self.loading,
            self.placement,
            self.chunk_moves,
            self.rounds,
            self.exchanges,
        )
        #: The requested exchange has had to wait for absent examples.
        self._stalled = False
        #: Examples by slot, as last recorded in the story.
        self._recorded_rows: dict[str, int] = {}
        #: Change counts of ledger and membership at that time.
        self._rows_at: tuple[int, int] | None = None
        self.checks = Checks()
        self._handlers = self._handler_table()

    def _handler_table(self) -> dict[type[ev.Event], Callable[[Any, float], list[Command]]]:
        return {
            ev.Ticked: self._ticked,
            ev.Arrived: self.membership_changes.arrived,
            ev.Noticed: self.membership_changes.noticed,
            ev.NoticeWithdrawn: lambda e, now: self.membership_changes.withdrawn(e),
            ev.Lost: lambda e, now: self.membership_changes.lost(e.member, e.reason, now),
            notices.ContainerMarked: self.membership_changes.preemption.marked,
            notices.MarkLifted: self.membership_changes.preemption.lifted,
            notices.ContainerStopping: lambda e, now: [
                *self.membership_changes.preemption.stopping(e),
                *self.membership_changes.worker_gone(e.address),
            ],
            ev.WorkerGone: lambda e, now: self.membership_changes.worker_gone(e.address),
            notices.ContainerEnded: self.membership_changes.preemption.ended,
            notices.NodeChanged: self.membership_changes.preemption.node,
            ev.BlockRead: lambda e, now: self.loading.read(e),
            ev.Ready: lambda e, now: self.placement.ready(e),
            ev.BlocksLocated: self._quiet(self.loading.located),
            ev.FactsFixed: lambda e, now: self.placement.facts_fixed(e),
            ev.ChunksLoaded: self._loaded,
            ev.ChunksDropped: self._quiet(self.chunk_moves.dropped),
            ev.WentOutOfCore: lambda e, now: [self._went_out_of_core(e)],
            ev.MoveFailed: self._move_failed,
            ev.Attached: lambda e, now: self.state.root.attached(e.child, e.has_model),
            ev.PartialArrived: self._partial,
            ev.LinkDown: self._link_down,
            ev.StatusReported: self._quiet(self._status_reported),
            ev.LoopEnded: lambda e, now: self.async_mode.ended(e),
            ev.AnchorArrived: lambda e, now: self.exchanges.anchor_arrived(e),
            ev.ExchangeRequested: self._requested,
            ev.RoundFinished: self._round_finished,
            ev.TrainerFinished: self._trainer_finished,
            ev.Failed: self._failed,
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

    def check_report(self, member: MemberId, event: ev.Event) -> None:
        """Check what a member reports over its link: a member speaks for itself.

        Raises
        ------
        RemoteProtocolError
            When members do not send this, or it is about another member, or names blocks, chunks
            or contributors that this member cannot have: it is fenced, and the job goes on.
        """
        fields = ev.REPORTS.get(type(event))
        what = f"member {member} sent {type(event).__name__}"
        if fields is None:
            raise RemoteProtocolError(f"{what}, which members do not send")
        if member not in (named := [getattr(event, field) for field in fields]):
            raise RemoteProtocolError(f"{what} of {named[0]}: a member speaks for itself")
        info, run = self.state.ledger.info, self.exchanges.running
        match event:
            case ev.BlockRead():
                ids = {chunk.id for chunk in event.chunks}
                is_right = 0 <= event.block < self.state.settings.n_blocks
                is_right &= len(ids) == len(event.chunks)
                is_right &= all(id.block == event.block for id in ids)
                is_right &= all(min(c.rows, c.nbytes) >= 0 for c in event.chunks)
            case ev.ChunksLoaded():
                is_right = all(chunk in info for chunk in event.chunks)
            case ev.PartialArrived():
                is_running = run is not None and event.exchange == run.id
                foreign = event.contributors & ~run.mask if run is not None and is_running else 0
                is_right = bool(event.contributors & member.bit) and not foreign
            case _:
                is_right = True
        if not is_right:
            raise RemoteProtocolError(f"{what} with blocks, chunks or members that are not its own")

    def _went_out_of_core(self, event: ev.WentOutOfCore) -> Command:
        return self.state.record(
            story.WentOutOfCore,
            member=str(event.member),
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
                    settled += self.exchanges.gathered(command, now_s)
                else:
                    settled.append(command)
            queue = []
            if self.state.stage == "ended":
                return settled
            if self.exchanges.deliverable(now_s):
                queue = self._deliver(now_s)
            elif self.state.stage == "training" and self.exchanges.running is None:
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
        self.chunk_moves.absent_since_s[group.id] = now_s
        return [
            self.state.record(
                story.ChunksAbsent,
                group=group.id,
                chunks=len(group.chunks),
                examples=group.rows,
                members=names(sorted(group.shares)),
            )
        ]

    def _round_finished(self, event: ev.RoundFinished, now_s: float) -> list[Command]:
        commands = self.rounds.due_loss("apply")
        commands += self.rounds.finish(HistoryRow(event.row), now_s)
        self.at_round_start = True
        self._stop_reason = self.rounds.stop_reason(now_s)
        go_on = self._stop_reason is None
        if go_on:
            commands += self.policy_engine.ask(now_s)
        tuned = self.policy_engine.take_tuned()
        return [*commands, Continue(go_on=go_on, reason=self._stop_reason or "", tuned=tuned)]

    def _trainer_finished(self, event: ev.TrainerFinished, now_s: float) -> list[Command]:
        commands: list[Command] = []
        if event.row:
            row = self.rounds.row(event.row)
            commands.append(self.state.record(story.FinalModel, extra=row.without_round()))
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
            commands.append(state.record(story.RoundStarted, rows=self._loads()))
        self.request, self._stalled = None, False
        self.async_mode.reporting()
        commands += self.exchanges.start(request, now_s)
        return commands + self.rounds.due_loss("compute")

    def _loads(self) -> dict[str, int] | None:
        """Return the examples of each slot if they changed since the last record, else None."""
        state = self.state
        at = (state.ledger.changes, state.membership.changes)
        if at == self._rows_at:
            return None
        self._rows_at = at
        rows = {str(r.id.slot): state.ledger.rows_of(r.id) for r in state.membership.working()}
        if rows == self._recorded_rows:
            return None
        self._recorded_rows = rows
        return rows

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
        run = self.exchanges.running
        if run is None or event.exchange != run.id or event.sender not in run.participants:
            # Too late, or from a new incarnation in the slot of a participant.
            return [self.state.root.refuse(event)]
        self.history.computed(event.exchange, run.felt(event, now_s))
        return self.state.root.partial(event) + self.rounds.due_loss("reduce")

    def _deliver(self, now_s: float) -> list[Command]:
        run = self.exchanges.running
        assert run is not None
        request = run.request
        record, deliver = self.exchanges.deliver()
        self.rounds.exchange += 1
        if request.require_everybody and deliver.absent_examples:
            # The trainer requires all examples: repeat the exchange when all are back.
            self.request = request
            return [record]
        return [record, deliver]

    # --- time, the end -------------------------------------------------------------------

    def _ticked(self, event: ev.Ticked, now_s: float) -> list[Command]:
        commands, stuck = self.exchanges.ticked(now_s)
        awaited = self.loading.awaited() | self.chunk_moves.awaited() | self.chunk_copies.awaited()
        awaited |= self.placement.unready()
        questions, mute = self.liveness_probe.ticked(awaited, self.state.membership.members, now_s)
        commands += questions
        for member in [*stuck, *mute]:
            commands += self.membership_changes.fence(member, "deadline", now_s)
        parted, unreachable = self.link_monitor.ticked(now_s)
        if parted:
            self.exchanges.disturbed()
        commands += parted
        for member in unreachable:
            commands += self.membership_changes.fence(
                member, "unreachable", now_s, kind="unreachable"
            )
        commands += self.membership_changes.gathered(now_s) + self.placement.ticked(now_s)
        self.membership_changes.lapsed(now_s)
        commands += self.membership_changes.preemption.ticked(now_s)
        commands += self.waits.ticked(self.request, now_s)
        return commands + self._time_over(now_s)

    def _time_over(self, now_s: float) -> list[Command]:
        """End the job after ``stop.seconds``: at once if it waits, else after a running step."""
        state, seconds = self.state, self.state.settings.seconds_max
        if seconds is None or now_s <= seconds:
            return []
        is_training, request = state.stage == "training", self.request
        # A report that is due later is asked for now: see AsyncMode.is_early.
        waits = request is not None and self.exchanges.running is None and not request.paced
        latest_s = state.settings.latest_end_s
        assert latest_s is not None
        if is_training and not waits and now_s <= latest_s:
            return []
        if self.rounds.has_former_model:
            return self._end("done", f"{seconds:g} seconds, with the model of the checkpoint")
        if is_training and self.rounds.has_model:
            return self._end("done", f"{seconds:g} seconds")
        error = self.waits.too_late(request, now_s)
        return self._end("failed", error.message, error)

    def _move_failed(self, event: ev.MoveFailed, now_s: float) -> list[Command]:
        self.liveness_probe.suspect(event.target)
        commands = self.chunk_moves.failed(event, now_s) + self.chunk_copies.failed(event, now_s)
        return commands + self.placement.dealt()

    def _link_down(self, event: ev.LinkDown, now_s: float) -> list[Command]:
        if event.peer in self.state.membership.members:
            self.liveness_probe.suspect(event.peer)
        return self.link_monitor.link_down(event.member, event.peer, now_s)

    def _loaded(self, event: ev.ChunksLoaded, now_s: float) -> list[Command]:
        self.chunk_moves.measure(event, now_s)
        commands = self.chunk_moves.loaded(event) + self.chunk_copies.loaded(event)
        return commands + self.placement.dealt()

    def _refused(self, event: ev.MembersRefused, now_s: float) -> list[Command]:
        state = self.state
        state.requested = max(0, state.requested - event.count)
        if state.members_worth is not None:
            state.members_worth = max(0, state.members_worth - event.count)
        return [state.record(story.MembersRefused, count=event.count, reason=event.reason)]

    def _fault_performed(self, event: ev.FaultPerformed, now_s: float) -> list[Command]:
        self.rounds.performed(event)
        return self.placement.dealt()

    def _status_reported(self, event: ev.StatusReported) -> None:
        self.exchanges.status_reported(event)
        self.liveness_probe.heard(event.member)
        self.link_monitor.heard(event.member)

    def _failed(self, event: ev.Failed, now_s: float) -> list[Command]:
        """End the job, or exclude a member whose host alone may be at fault.

        The same fault on a second member is not that of a host.
        """
        members, kind = self.state.membership.members, event.host_fault
        if kind is None or event.member is None:
            return self._end("failed", event.reason)
        if event.member not in members:
            return []
        if len(members) == 1 or kind in self.state.excluded.values():
            return self._end("failed", event.reason)
        return self.membership_changes.fence(event.member, event.reason, now_s, kind=kind)

    def _end(
        self,
        how: Literal["done", "failed", "cancelled"],
        reason: str,
        error: ElasticmlError | None = None,
    ) -> list[Command]:
        state = self.state
        state.stage = "ended"
        self.request = None
        self.members_at_end = state.membership.n_working
        ended: list[Command] = [EndJob(cause=state.cause, state=how, reason=reason, error=error)]
        members = state.living()
        for member in members:
            state.membership.remove(member)
        return ended + [
            Dismiss(cause=JOB_ENDED, member=m, reason=JOB_ENDED, is_final=True) for m in members
        ]


#: Up to this many members plus chunks, indexes are checked every time, even if unchanged.
BOOKS_ENTRIES_MIN = 100
#: With more members plus chunks, the check after a change is spread over the next round ends.
CHECK_WHOLE_MAX = 10_000
CHECK_PARTS = 16


def check(driver: Driver) -> None:
    """Check the driver's invariants.

    Raises
    ------
    LocalProtocolError
        Names the violated invariant and the cause of the event that violated it.
    """
    state, checks = driver.state, driver.checks
    try:
        if state.stage == "ended":
            return
        at = _change_counts(driver)
        # Checking a large state takes as long as an exchange, while all members wait: it is
        # checked only after changes. A small one is checked every time.
        n_entries = len(state.membership.members) + len(state.ledger.info)
        always = driver.check_every_event or n_entries <= BOOKS_ENTRIES_MIN
        if always or at != checks.at:
            checks.at = at
            checks.left = 1 if n_entries <= CHECK_WHOLE_MAX else CHECK_PARTS
        if checks.left:
            _books(driver, CHECK_PARTS if n_entries > CHECK_WHOLE_MAX else 1)
            checks.left -= 1
        _transfers(driver)
        _sum(driver)
    except LocalProtocolError as error:
        raise LocalProtocolError(f"{error} (after {state.cause})") from error


def _books(driver: Driver, parts: int) -> None:
    """Check members, chunks and tree: all of them, or the next of several parts."""
    state = driver.state
    part = driver.checks.number % parts
    driver.checks.number += 1
    if part == 0:
        state.membership.check()
    if part == parts // 2:
        _tree(driver)
    state.ledger.check(state.membership.members, part, parts)


def _change_counts(driver: Driver) -> tuple[object, ...]:
    """Return the change counts of members, chunks and tree: equal counts mean equal state."""
    state = driver.state
    ledger = state.ledger
    absent = (tuple(ledger.groups), tuple(ledger.open))
    return state.membership.changes, ledger.changes, *absent, state.generation


def _tree(driver: Driver) -> None:
    """Check that the tree has one root, no cycle, and only living members."""
    parents, living = driver.state.parents, driver.state.membership.members
    for member, parent in parents.items():
        if member not in living:
            raise LocalProtocolError(f"{member} is in the tree and is not alive")
        if parent is not None and parent not in parents:
            raise LocalProtocolError(f"parent {parent} of {member} is not in the tree")
    rooted: set[MemberId] = set()
    for member in parents:
        # Walk up to the root, or to a node known to lead there; a cycle revisits a node.
        path: set[MemberId] = set()
        above: MemberId | None = member
        while above is not None and above not in rooted:
            if above in path:
                raise LocalProtocolError(f"{member} is its own ancestor")
            path.add(above)
            above = parents[above]
        rooted |= path
    below = children(parents)
    if driver.state.below != below:
        raise LocalProtocolError("the lists of children are not those of the tree")
    if driver.state.root.children != set(below[None]):
        raise LocalProtocolError("the root's children are not those of the tree")


def _transfers(driver: Driver) -> None:
    """Check that chunks move only between exchanges, and from their owner or an absent group."""
    ledger, run = driver.state.ledger, driver.exchanges.running
    if run is not None and (driver.chunk_moves.moves or driver.chunk_moves.rereading):
        raise LocalProtocolError(f"exchange {run.id} runs while chunks change their owner")
    for chunk, move in driver.chunk_moves.moves.items():
        source, target = move.source, move.target
        if ledger.owner(chunk) != source:
            raise LocalProtocolError(f"chunk {chunk} moves from {source}, which does not own it")
        if target not in driver.state.membership.members:
            raise LocalProtocolError(f"chunk {chunk} moves to {target}, which is gone")
        if not move.has_body and not ledger.holds(target, chunk):
            raise LocalProtocolError(f"chunk {chunk} moves to {target} without its body")
    for chunk, copy in driver.chunk_copies.under_way.items():
        if not {copy.source, copy.target} <= driver.state.membership.members.keys():
            raise LocalProtocolError(f"chunk {chunk} is copied from or to a member that is gone")
    for member, chunks in driver.chunk_moves.dropping.items():
        kept = [c for c in chunks if ledger.holds(member, c)]
        if kept:
            raise LocalProtocolError(f"{member} drops {kept[0]} and still counts as its holder")
    for group, owners in driver.chunk_moves.returning.items():
        if group not in ledger.groups:
            raise LocalProtocolError(f"group {group} returns and is not absent")
        for target in owners.values():
            if target not in driver.state.membership.members:
                raise LocalProtocolError(f"group {group} returns to {target}, which is gone")


def _sum(driver: Driver) -> None:
    """Check that no member is summed twice: the root's inputs are disjoint, from participants."""
    run, gather = driver.exchanges.running, driver.state.root.gather
    if run is None or gather is None or gather.exchange != run.id:
        return
    covered = 0
    for item in gather.inputs.values():
        if covered & item.contributors:
            raise LocalProtocolError(f"exchange {run.id} counts a member twice")
        covered |= item.contributors
    if covered & ~run.mask:
        raise LocalProtocolError(f"exchange {run.id} counts a member that does not participate")
