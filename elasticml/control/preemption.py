"""Preemption: which member leaves when the resource manager asks for a container, and by when.

A mark says that the container at an address is asked for. If the mark is negotiable, any container
will do: the member whose loss costs least becomes the victim, is drained as on a scale-in, and its
container is given back. The marked member meanwhile keeps working but receives no chunks; when too
little time is left for a substitute, it leaves on a notice of its own. A mark can be withdrawn at
any time; a container that has been given back by then is gone.

A mark whose end is far and which no other member can meet is put off: the member works on, and is
drained as late as is safe for what it holds and for the measured speed of moves. Shortly before,
its bodies are copied to others in the background, and it receives no more chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elasticml.control.chunk_transfers import ChunkCopies, ChunkMoves
from elasticml.control.job_state import JobState, names
from elasticml.control.membership import MemberRecord
from elasticml.control.rounds import Rounds
from elasticml.ids import MemberId
from elasticml.protocol import events as ev
from elasticml.protocol.commands import Command, Dismiss
from elasticml.protocol.notices import (
    ContainerEnded,
    ContainerMarked,
    ContainerStopping,
    MarkLifted,
    NodeChanged,
)
from elasticml.story import records as story

#: Assumed bytes of state per example when the costs of losses are compared.
STATE_BYTES_PER_ROW = 8
#: Fraction of the grace to drain a substitute; the rest is left to drain the marked member.
SUBSTITUTE_SHARE = 0.5
#: Marks with less grace are not put off.
PUT_OFF_S_MIN = 30.0
#: Nor are marks for these reasons: someone waits until the worker is empty.
AT_ONCE = ("retired", "terminated")
#: Share of the grace that is left unused when a drain takes as long as was computed, with limits in
#: seconds; and the time allowed for it, in multiples of that at the measured speed.
SAFETY, SAFETY_S_MIN, SAFETY_S_MAX, DRAIN_FACTOR = 0.1, 5.0, 30.0, 3.0
#: Bodies are copied ahead for this many seconds before the drain, or for this multiple of the
#: seconds that all copies take.
AHEAD_S_MIN, AHEAD_FACTOR = 60.0, 2.0
#: A drain that is put off is computed again after this share of the time that is left, and at
#: least this many seconds later.
LOOK, LOOK_S_MIN = 0.25, 0.2
#: A repeated mark is recorded again if its end differs by more.
SAME_END_S = 2.0
#: Loss reasons after which the process lives on: its container has not been given back.
FENCED = ("deadline", "joined again")
#: Node states in which its containers count as ended.
ENDED_STATES = ("lost", "unhealthy", "decommissioned", "shutdown", "rebooted")


@dataclass(slots=True, kw_only=True)
class Assignment:
    """The decision about a live mark: which member leaves for it."""

    mark: ContainerMarked
    #: When the container is stopped, at the earliest, on the job's clock.
    deadline_s: float
    #: From this time on no substitute can be drained in time.
    substitute_until_s: float
    #: The member that leaves for it: the marked one or a substitute.
    victim: MemberId | None = None
    #: The resource manager has received a container for it.
    is_met: bool = False
    #: The drain has been put off, and that was recorded.
    is_put_off: bool = False
    #: Before this time it need not be looked at again.
    look_s: float = 0.0


def loss_bytes(state: JobState, member: MemberId) -> int:
    """Return the bytes to send before a member can leave: states, and bodies without other holder.

    Holders that are leaving themselves do not count. Error: the state of an example counts as 8
    bytes, whatever the algorithm keeps.
    """
    ledger, members = state.ledger, state.membership.members
    staying = {m for m, r in members.items() if m != member and r.stage != "leaving"}
    owned = ledger.owned.get(member, ())
    alone = sum(ledger.info[c].nbytes for c in owned if not staying & ledger.holders[c])
    return alone + STATE_BYTES_PER_ROW * ledger.rows_of(member)


class PreemptionHandler:
    """Assigns victims to marks, and handles ended containers and nodes.

    How long a mark holds is decided elsewhere (:mod:`elasticml.protocol.marks`): when it has
    expired, it is lifted.

    Parameters
    ----------
    state : JobState
    chunk_copies : ChunkCopies
    chunk_moves : ChunkMoves
        Measures how fast chunks move.
    rounds : Rounds
        Knows how long rounds take: chunks move between them.
    release : callable
        Releases a member that owns nothing.
    strike : callable
        Handles a loss.
    notice : callable
        Handles a member's own notice.
    """

    def __init__(
        self,
        *,
        state: JobState,
        chunk_copies: ChunkCopies,
        chunk_moves: ChunkMoves,
        rounds: Rounds,
        release: Callable[[MemberId, float], list[Command]],
        strike: Callable[[MemberId, str, float], list[Command]],
        notice: Callable[[ev.Noticed, float], list[Command]],
    ) -> None:
        self.state = state
        self.chunk_copies = chunk_copies
        self._chunk_moves = chunk_moves
        self._rounds = rounds
        self._release = release
        self._strike = strike
        self._notice = notice
        #: By address; the assignment of a mark that has been met stays until the mark is lifted.
        self.assignments: dict[str, Assignment] = {}

    # --- marks --------------------------------------------------------------------------------

    def marked(self, event: ContainerMarked, now_s: float) -> list[Command]:
        """Handle a new or repeated mark; choose its victim."""
        former = self.assignments.get(event.address)
        is_repeated = former is not None and not former.is_met
        assignment = Assignment(
            mark=event,
            deadline_s=now_s + event.grace_s,
            substitute_until_s=now_s + SUBSTITUTE_SHARE * event.grace_s,
            victim=former.victim if former is not None and is_repeated else None,
        )
        self.assignments[event.address] = assignment
        record = self.state.membership.at(event.address)
        kept: list[Command] = []
        if record is not None and assignment.victim == record.id and record.is_victim:
            assignment.victim = None
            if self._is_early(assignment, record, now_s):
                kept = self._keep(record.id)  # its end was put off
            else:
                assignment.victim = record.id
        if record is not None and not self._is_early(assignment, record, now_s):
            record.is_marked = True
            self.chunk_copies.waive(record.id)
        elif record is not None:
            assignment.is_put_off = (
                former is not None
                and former.is_put_off
                and abs(former.deadline_s - assignment.deadline_s) <= SAME_END_S
            )
            return [*kept, *self._put_off(assignment, record, now_s)]
        if not assignment.mark.negotiable:
            return self._drain_marked(assignment, now_s)
        if self._victim(assignment) is not None:
            return []  # repeated: the victim stays the same
        return self._choose(assignment, now_s) or [
            self._record_victim(assignment, None, now_s, "no member can be spared")
        ]

    def lifted(self, event: MarkLifted, now_s: float) -> list[Command]:
        """Handle the end of a mark; its victim may stay if it is still here."""
        assignment = self.assignments.pop(event.address, None)
        record = self.state.membership.at(event.address)
        if record is not None:
            record.is_marked = False
            self.state.membership.set_ending(record, False)
        if assignment is None:
            return []
        removed = self.state.record(
            story.ReclaimLifted,
            member=None if record is None else str(record.id),
            address=event.address,
            why=event.why,
        )
        return [removed, *self._keep_costliest(assignment, now_s)]

    def _keep_costliest(self, assignment: Assignment, now_s: float) -> list[Command]:
        """Keep one victim now that one container less is asked for: the costliest one."""
        victim = self._victim(assignment)
        if victim is None:
            return []
        others = [
            a
            for a in self.assignments.values()
            if a.mark.negotiable and now_s < a.substitute_until_s
        ]
        active = [
            a for a in [assignment, *others] if (r := self._victim(a)) is not None and r.is_victim
        ]
        if not active:
            return []
        costliest = max(active, key=lambda a: self._cost(a.victim))
        if costliest is not assignment:
            # The victim of the removed mark leaves for the costliest one's mark instead.
            costliest.victim, assignment.victim = victim.id, costliest.victim
            if victim.address != costliest.mark.address:
                victim.is_retiring, victim.deadline_s = True, None
        return self._keep(assignment.victim)

    def _keep(self, member: MemberId | None) -> list[Command]:
        record = None if member is None else self.state.membership.members.get(member)
        if record is None or not record.is_victim:
            return []
        record.is_victim = False
        if record.notice_reason is not None:
            record.is_retiring = False  # it has a notice of its own
            return []
        self.state.stay(record)
        return [self.state.record(story.MemberKept, member=str(record.id))]

    def _victim(self, assignment: Assignment) -> MemberRecord | None:
        """Return a mark's victim while it is still here; None if it stays after all."""
        if assignment.victim is None:
            return None
        record = self.state.membership.members.get(assignment.victim)
        return record if record is not None and record.stage == "leaving" else None

    def _cost(self, member: MemberId | None) -> int:
        return -1 if member is None else loss_bytes(self.state, member)

    # --- late draining ------------------------------------------------------------------------

    def _is_early(self, assignment: Assignment, record: MemberRecord, now_s: float) -> bool:
        """Whether a marked member need not be drained yet.

        Chunks move between rounds. So the drain begins early enough for the last round boundary
        before :meth:`begin_s`.
        """
        mark = assignment.mark
        if mark.negotiable or mark.grace_s < PUT_OFF_S_MIN or mark.reason in AT_ONCE:
            return False
        if assignment.victim is not None or record.notice_reason is not None or record.is_retiring:
            return False  # it leaves already
        return now_s + self._rounds.longest_s(now_s) < self.begin_s(assignment, record)

    def begin_s(self, assignment: Assignment, record: MemberRecord) -> float:
        """Return when a marked member has to begin to send its chunks, on the job's clock."""
        safety_s = min(max(SAFETY_S_MIN, SAFETY * assignment.mark.grace_s), SAFETY_S_MAX)
        speed = min(
            self._chunk_moves.speed.bytes_per_s(record.host), self.state.settings.move_bytes_per_s
        )
        drain_s = loss_bytes(self.state, record.id) / speed
        return assignment.deadline_s - safety_s - DRAIN_FACTOR * drain_s

    def _put_off(self, assignment: Assignment, record: MemberRecord, now_s: float) -> list[Command]:
        """Let a marked member work on; shortly before its drain, let others copy its bodies."""
        is_new = not assignment.is_put_off
        assignment.is_put_off = True
        begin_s = self.begin_s(assignment, record)
        nbytes = loss_bytes(self.state, record.id)
        left_s = begin_s - now_s - self._rounds.longest_s(now_s)
        assignment.look_s = now_s + max(LOOK_S_MIN, LOOK * min(left_s, AHEAD_S_MIN))
        copies_s = AHEAD_FACTOR * nbytes / self.state.settings.copy_bytes_per_s
        if now_s >= begin_s - max(AHEAD_S_MIN, copies_s) and not record.is_ending:
            record.is_marked = True
            self.state.membership.set_ending(record, True)
            self.chunk_copies.waive(record.id)
        if not is_new:
            return []
        why = f"it works on, and is drained {begin_s - now_s:.0f} s from now"
        return [self._record_victim(assignment, None, now_s, why, nbytes)]

    # --- choice of a victim -------------------------------------------------------------------

    def _choose(self, assignment: Assignment, now_s: float) -> list[Command]:
        """Choose the member whose loss costs least; none if the job would get too small.

        Retiring members cost nothing, as their containers are given back anyway. Then come spare
        members, then those with the fewest bytes to send; ties go to the marked member, then to
        other marked ones, then to the youngest.
        """
        state = self.state
        record = state.membership.at(assignment.mark.address)
        if record is None and not assignment.mark.essential:
            return []  # it holds no member of this job: its loss costs nothing
        if record is not None and record.notice_reason is not None:
            assignment.victim = record.id
            return [self._record_victim(assignment, record.id, now_s, "it has a notice")]
        taken = {a.victim for a in self.assignments.values()}
        living = state.membership.members.values()
        retiring = [r for r in living if r.is_retiring and not r.is_victim and r.id not in taken]
        if retiring:
            assignment.victim = min(r.id for r in retiring)
            return [
                self._record_victim(assignment, assignment.victim, now_s, "it is given back anyway")
            ]
        staying = [r for r in living if r.stage != "leaving"]
        if len(staying) <= max(1, state.settings.members_min) and not assignment.mark.essential:
            return []
        if not staying:
            return []
        cost = {r.id: loss_bytes(state, r.id) for r in staying}
        chosen = min(
            staying,
            key=lambda r: (
                bool(state.ledger.owned.get(r.id)),
                cost[r.id],
                r is not record,
                not r.is_marked,
                -r.id.incarnation,
                -r.id.slot,
            ),
        )
        reclaimed = self._record_victim(
            assignment, chosen.id, now_s, "its loss costs least", cost[chosen.id]
        )
        return [reclaimed, *self._drain(assignment, chosen, now_s)]

    def _drain(self, assignment: Assignment, record: MemberRecord, now_s: float) -> list[Command]:
        """Drain a victim; its container is given back as soon as it is empty.

        This holds for the marked member's container, too: the resource manager kills marked
        containers in its own order until it has enough, and might take one that is to stay.
        """
        assignment.victim = record.id
        record.is_victim = True
        self.state.membership.set_ending(record, False)
        is_own = record.address == assignment.mark.address
        # If the mark is not negotiable, other jobs may use the container, too.
        record.is_retiring = record.is_retiring or not is_own or assignment.mark.negotiable
        if is_own and (record.deadline_s is None or assignment.deadline_s < record.deadline_s):
            record.deadline_s = assignment.deadline_s
        was_spare = record.stage == "spare"
        self.state.membership.enter(record, "leaving")
        self.state.stale_layout = True
        return self._release(record.id, now_s) if was_spare else []

    def _drain_marked(self, assignment: Assignment, now_s: float) -> list[Command]:
        """Let the marked member leave on its own notice, and keep its substitute."""
        record = self.state.membership.at(assignment.mark.address)
        if record is None:
            return []
        commands = self._keep(assignment.victim) if assignment.victim != record.id else []
        assignment.victim = record.id
        if record.is_retiring and not record.is_victim:
            return commands  # it is being drained already
        why = "too little time for another" if assignment.mark.negotiable else "no other will do"
        reclaimed = self._record_victim(
            assignment, record.id, now_s, why, loss_bytes(self.state, record.id)
        )
        grace_s = max(0.0, assignment.deadline_s - now_s)
        notice = self.state.record(
            story.MemberNoticed,
            member=str(record.id),
            grace_s=grace_s,
            reason=assignment.mark.reason,
        )
        return [*commands, reclaimed, notice, *self._drain(assignment, record, now_s)]

    def _record_victim(
        self, assignment: Assignment, victim: MemberId | None, now_s: float, why: str, cost: int = 0
    ) -> Command:
        record = self.state.membership.at(assignment.mark.address)
        return self.state.record(
            story.Reclaimed,
            marked=None if record is None else str(record.id),
            given=None if victim is None else str(victim),
            address=assignment.mark.address,
            cost_bytes=cost,
            grace_s=round(max(0.0, assignment.deadline_s - now_s), 6),
            reason=assignment.mark.reason,
            negotiable=assignment.mark.negotiable,
            why=why,
        )

    # --- time and membership changes ----------------------------------------------------------

    def ticked(self, now_s: float) -> list[Command]:
        """Choose missing victims, and let marked members leave in time.

        A mark has no victim if no member could be spared, or if its victim was fenced and its
        process lives on.
        """
        commands: list[Command] = []
        for assignment in list(self.assignments.values()):
            victim = self._victim(assignment)
            mark = assignment.mark
            if assignment.is_met or (victim is not None and victim.address == mark.address):
                continue
            record = self.state.membership.at(mark.address)
            if assignment.is_put_off and now_s < assignment.look_s:
                continue
            if record is not None and self._is_early(assignment, record, now_s):
                commands += self._put_off(assignment, record, now_s)
                continue
            is_early = now_s < assignment.substitute_until_s
            if mark.negotiable and (is_early or mark.essential):
                commands += [] if victim is not None else self._choose(assignment, now_s)
            else:
                commands += self._drain_marked(assignment, now_s)
        return commands

    def arrived(self, record: MemberRecord, now_s: float) -> None:
        """Set the flag of a newcomer whose container is marked."""
        assignment = self.assignments.get(record.address)
        record.is_marked = assignment is not None and not self._is_early(assignment, record, now_s)

    def noticed(self, record: MemberRecord) -> list[Command]:
        """Keep the substitute of a marked member that leaves itself after all."""
        assignment = self.assignments.get(record.address)
        if assignment is None or assignment.victim == record.id:
            return []
        substitute, assignment.victim = assignment.victim, record.id
        return self._keep(substitute)

    def reason_of(self, record: MemberRecord, reason: str) -> str:
        """Return why a member was lost, as far as it is known now."""
        if record.end_reason is not None:
            return record.end_reason
        assignment = self.assignments.get(record.address)
        if reason == "retired":
            if assignment is not None and assignment.victim == record.id:
                return assignment.mark.reason
            return "released" if record.is_victim else reason
        if self._lives_on(record, reason):
            return reason
        if assignment is not None and assignment.mark.reason != "retired":
            return assignment.mark.reason
        if assignment is not None:
            # A retirement ends with the member's release: what came before that is a loss, unless
            # the member was joining and had nothing to give away.
            return "retired" if reason == "noticed" or record.stage == "spare" else reason
        # A plain notice does not explain a link that closed before the member was released.
        notice = None if record.notice_reason == "noticed" else record.notice_reason
        return notice or reason

    def _lives_on(self, record: MemberRecord, reason: str) -> bool:
        return reason in FENCED or record.address in self.state.excluded

    def lost(self, record: MemberRecord, reason: str) -> list[Command]:
        """Update the assignments after a loss: a lost member may meet a mark.

        It meets at most one: its own if it has one. If it was also the victim of another mark, the
        victim of its own mark becomes that mark's victim.
        """
        is_gone = not self._lives_on(record, reason)
        own = self.assignments.get(record.address)
        own = None if own is None or own.is_met else own
        for assignment in self.assignments.values():
            if assignment.victim != record.id:
                continue
            assignment.victim = None
            if not is_gone or own is None or own is assignment:
                assignment.is_met = assignment.is_met or is_gone
            else:
                assignment.victim, own.victim, own.is_met = own.victim, None, True
        if own is None or own.is_met or not is_gone:
            return []
        substitute, own.victim, own.is_met = own.victim, None, True
        return self._keep(substitute)

    # --- containers and nodes -------------------------------------------------------------------

    def stopping(self, event: ContainerStopping) -> list[Command]:
        """Record that a container is being stopped, even if its member was already released."""
        membership = self.state.membership
        record = membership.at(event.address)
        member = record.id if record is not None else membership.former(event.address)
        if member is None:
            return []
        return [
            self.state.record(story.ContainerStopping, member=str(member), grace_s=event.grace_s)
        ]

    def ended(self, event: ContainerEnded, now_s: float) -> list[Command]:
        """Record how a container ended; a member still registered in it is lost."""
        membership = self.state.membership
        record = membership.at(event.address)
        member = record.id if record is not None else membership.former(event.address)
        commands: list[Command] = [
            self.state.record(
                story.ContainerEnded,
                member=None if member is None else str(member),
                container=event.container,
                reason=event.reason,
                status=event.status,
                message=event.message,
            )
        ]
        if record is not None:
            record.end_reason = event.reason
            commands += self._dismiss(record.id, event.reason, now_s)
        self.assignments.pop(event.address, None)
        return commands

    def node(self, event: NodeChanged, now_s: float) -> list[Command]:
        """Give all members of a decommissioning node notice; remove those of a lost one."""
        membership = self.state.membership
        here = [r for address in event.addresses if (r := membership.at(address)) is not None]
        commands: list[Command] = [
            self.state.record(
                story.NodeChanged,
                node=event.node,
                state=event.state,
                grace_s=event.grace_s,
                members=names(r.id for r in here),
            )
        ]
        for record in here:
            if event.state in ENDED_STATES:
                commands += self._dismiss(record.id, "node", now_s)
            elif event.state == "decommissioning":
                notice = ev.Noticed(
                    cause=event.cause, member=record.id, grace_s=event.grace_s, reason="node"
                )
                commands += self._notice(notice, now_s)
            elif event.state == "running" and record.notice_reason == "node":
                commands += self._withdraw_notice(record)
        return commands

    def _withdraw_notice(self, record: MemberRecord) -> list[Command]:
        record.notice_reason = None
        if record.is_retiring or record.is_victim:
            return []
        self.state.stay(record)
        return [self.state.record(story.NoticeWithdrawn, member=str(record.id))]

    def _dismiss(self, member: MemberId, reason: str, now_s: float) -> list[Command]:
        # A process that outlived its container must not rejoin as another member.
        dismiss = Dismiss(cause=self.state.cause, member=member, reason="released", is_final=True)
        return [dismiss, *self._strike(member, reason, now_s)]
