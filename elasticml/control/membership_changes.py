"""Membership changes: members that join, give notice, leave, are lost, or are fenced."""

from __future__ import annotations

from dataclasses import dataclass, field

from elasticml.control.chunk_transfers import ChunkCopies, ChunkMoves
from elasticml.control.exchange import ExchangeCoordinator
from elasticml.control.failure_detector import LinkMonitor
from elasticml.control.initial_placement import BlockLoading, InitialPlacement
from elasticml.control.job_state import JobState
from elasticml.control.membership import MemberRecord
from elasticml.control.preemption import PreemptionHandler
from elasticml.control.rounds import History, Rounds
from elasticml.ids import MemberId
from elasticml.protocol import events as ev
from elasticml.protocol.chunk_ranges import format_chunk_ranges
from elasticml.protocol.commands import Command, Dismiss, ReleaseContainers, Welcome
from elasticml.story import records as story


@dataclass(slots=True, kw_only=True, eq=False)
class MembershipChanges:
    """Admits and removes members, and informs every component of the driver."""

    state: JobState
    loading: BlockLoading
    chunk_moves: ChunkMoves
    chunk_copies: ChunkCopies
    exchanges: ExchangeCoordinator
    rounds: Rounds
    history: History
    link_monitor: LinkMonitor
    placement: InitialPlacement
    preemption: PreemptionHandler = field(init=False)
    #: When to start with the members that are there, unless another arrives; None before any.
    gather_until_s: float | None = None

    def __post_init__(self) -> None:
        """Create the handler of preemptions, which changes the membership in turn."""
        self.preemption = PreemptionHandler(
            state=self.state,
            chunk_copies=self.chunk_copies,
            chunk_moves=self.chunk_moves,
            rounds=self.rounds,
            release=self.release,
            strike=self.lost,
            notice=self.noticed,
        )

    def arrived(self, event: ev.Arrived, now_s: float) -> list[Command]:
        """Admit a worker as a member; an earlier incarnation at its address is lost."""
        state = self.state
        commands: list[Command] = []
        former = state.membership.at(event.address)
        if former is not None:
            commands += self.lost(former.id, "joined again", now_s)
        state.gone.discard(event.address)
        record = state.membership.admit(event)
        self.preemption.arrived(record, now_s)
        state.ledger.hold(record.id, event.holdings)
        if not self.rounds.arrived() and event.slot is None:
            # A worker with a former slot rejoins on its own; it does not answer a request.
            state.requested = max(0, state.requested - 1)
        commands += [
            Welcome(cause=state.cause, member=record.id, arrival=event.arrival),
            state.record(
                story.MemberJoined,
                member=str(record.id),
                host=record.host,
                pid=record.pid,
                address=event.address,
                threads=event.threads,
                nodes=event.nodes,
                blas_threads=event.blas_threads,
                cpu=event.cpu,
                # The states of chunks that it kept from an earlier incarnation may be used.
                holdings=format_chunk_ranges(event.holdings) if event.holdings else None,
                computed=event.computed if event.holdings else None,
            ),
        ]
        if state.stage in ("dealing", "training"):
            # During the initial placement it may be the first one alive after all were lost.
            commands += self.placement.configure(record.id) + self.placement.dealt()
        elif state.stage in ("surveying", "reading"):
            commands += self.chunk_moves.reread() if former is not None else []
            commands += self.loading.assign()
        elif len(state.membership.members) >= state.n_start:
            commands += self._load()
        elif state.settings.gather_s is not None:
            self.gather_until_s = now_s + state.settings.gather_s
        return commands

    def gathered(self, now_s: float) -> list[Command]:
        """Start with fewer members than the job waits for, once the time for that is over."""
        if self.gather_until_s is None or now_s < self.gather_until_s:
            return []
        state = self.state
        enough = max(1, state.settings.members_min)
        if state.stage != "gathering" or len(state.membership.members) < enough:
            return []
        return self._load()

    def worker_gone(self, address: str) -> list[Command]:
        """Do not wait for a worker that was there at the submission and will not come.

        Its replacement may take minutes, and another worker be lost meanwhile.
        """
        state = self.state
        if state.stage != "gathering" or not state.settings.starts_with_present:
            return []
        if state.membership.at(address) is not None:
            return []  # it is counted, until it is lost
        state.gone.add(address)
        return self._load() if len(state.membership.members) >= state.n_start else []

    def _load(self) -> list[Command]:
        needs_survey = self.state.settings.needs_survey
        self.state.stage = "surveying" if needs_survey else "reading"
        return self.loading.start(survey=needs_survey)

    def noticed(self, event: ev.Noticed, now_s: float) -> list[Command]:
        """Record when a member will leave; release it at once if it has no chunks."""
        record = self.state.membership.members.get(event.member)
        if record is None:
            return []
        noticed = self.state.record(
            story.MemberNoticed,
            member=str(event.member),
            grace_s=event.grace_s,
            reason=event.reason,
        )
        record.deadline_s = now_s + event.grace_s
        record.notice_reason = event.reason
        commands = [noticed, *self.preemption.noticed(record)]
        if record.stage == "spare":
            return commands + self.release(event.member, now_s)
        self.state.membership.enter(record, "leaving")
        return commands

    def withdrawn(self, event: ev.NoticeWithdrawn) -> list[Command]:
        """Keep a member whose notice was withdrawn, unless it leaves for another reason."""
        record = self.state.membership.members.get(event.member)
        if record is None or record.stage != "leaving":
            return []
        self._void_notice(record)
        return [self.state.record(story.NoticeWithdrawn, member=str(event.member))]

    def _void_notice(self, record: MemberRecord) -> None:
        record.notice_reason = None
        if record.is_retiring:
            record.deadline_s = None
        elif not record.is_victim:
            self.state.stay(record)

    def lapsed(self, now_s: float) -> None:
        """Keep members whose notice expired a minute ago: they were not taken after all."""
        for record in self.state.membership.stage("leaving"):
            if record.deadline_s is None or now_s <= record.deadline_s + 60.0:
                continue
            self._void_notice(record)

    def release(self, member: MemberId, now_s: float) -> list[Command]:
        """Release a member that owns nothing; give its container back if it is retiring."""
        record = self.state.membership.members[member]
        dismiss = Dismiss(cause=self.state.cause, member=member, reason="released", is_final=True)
        reason = "retired" if record.is_retiring else "noticed"
        commands = [dismiss, *self.lost(member, reason, now_s)]
        if record.is_retiring:
            commands.append(
                ReleaseContainers(
                    cause=self.state.cause, members=(member,), addresses=(record.address,)
                )
            )
        return commands

    def lost(self, member: MemberId, reason: str, now_s: float) -> list[Command]:
        """Remove a lost member and everything that depends on it."""
        state = self.state
        record = state.membership.remove(member)
        if record is None:
            return []  # a repeated report of the same loss
        state.announced_versions.pop(member, None)
        state.root.peer_lost(member)
        self.link_monitor.lost(member)
        chunks = state.ledger.lose(member)
        self.chunk_moves.lost(member)
        self.chunk_copies.lost(member)
        self.exchanges.lost(member)
        self.history.lost(member)
        lost = state.record(
            story.MemberLost,
            member=str(member),
            reason=self.preemption.reason_of(record, reason),
            chunks=len(chunks),
            pid=record.pid,
        )
        commands: list[Command] = [lost, *self.preemption.lost(record, reason)]
        if state.stage in ("surveying", "reading"):
            commands += self.loading.lost(member)
        returns = reason == "joined again"  # then its next incarnation may take its chunks
        if state.stage in ("reading", "dealing") and not returns:
            commands += self.chunk_moves.reread() + self.placement.dealt()
        if member in state.parents:
            state.stale_layout = True
            commands += state.heal(member)
        if not returns:
            commands += self.worker_gone(record.address)
        return commands + self.chunk_copies.pump()

    def fence(
        self, member: MemberId, reason: str, now_s: float, *, kind: str | None = None
    ) -> list[Command]:
        """Fence a member; its process may rejoin with its chunks, unless a fault excludes it."""
        if kind is not None:
            self.state.excluded[self.state.membership.members[member].address] = kind
        dismiss = Dismiss(cause=reason, member=member, reason=reason, is_final=kind is not None)
        return [dismiss, *self.lost(member, reason, now_s)]
