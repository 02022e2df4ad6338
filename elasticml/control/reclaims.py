"""Containers that the resource manager asks for back: who goes for whom, and until when.

A mark says that the container at an address is asked for. Where it may be another one, the member
goes whose loss costs least; it is emptied as on a scale-in, and its container given back. The
marked member works on meanwhile, is given nothing, and leaves by its own notice when too little
time is left. Marks are withdrawn as easily as they come; what has been given back by then is gone.
"""

from __future__ import annotations

from collections.abc import Callable

from elasticml.control import events as ev
from elasticml.control.commands import Command, Dismiss
from elasticml.control.copying import Copying
from elasticml.control.marks import Mark, loss_bytes
from elasticml.control.membership import MemberRecord
from elasticml.control.state import JobState
from elasticml.terms import MemberId

#: Share of the grace in which a substitute must have been emptied. The rest is for the marked one.
SUBSTITUTE_SHARE = 0.5
#: A mark that nobody withdrew is void so many times its grace after its deadline, or this time.
VOID_GRACES, VOID_S_MIN = 2.0, 60.0
#: Reasons of losses whose process lives on: its container has not been given back.
FENCED = ("deadline", "unreachable", "joined again")
#: States of a node in which its containers count as ended.
ENDED_STATES = ("lost", "unhealthy", "decommissioned", "shutdown", "rebooted")


class Reclaims:
    """What is asked for back, and what is done about it.

    Parameters
    ----------
    state : JobState
    copying : Copying
    release : callable
        Lets a member go that owns nothing.
    strike : callable
        Takes note of a loss.
    notice : callable
        Handles a member's own notice.
    """

    def __init__(
        self,
        state: JobState,
        copying: Copying,
        release: Callable[[MemberId, float], list[Command]],
        strike: Callable[[MemberId, str, float], list[Command]],
        notice: Callable[[ev.Noticed, float], list[Command]],
    ) -> None:
        self.state = state
        self.copying = copying
        self._release = release
        self._strike = strike
        self._notice = notice
        #: By address; those that have been met stay until they are withdrawn.
        self.marks: dict[str, Mark] = {}

    # --- marks --------------------------------------------------------------------------------

    def marked(self, event: ev.ContainerMarked, now_s: float) -> list[Command]:
        """Take note of a container that is asked for; choose who goes for it."""
        former = self.marks.get(event.address)
        is_again = former is not None and not former.is_met
        mark = Mark(
            address=event.address,
            reason=event.reason,
            deadline_s=now_s + event.grace_s,
            turn_s=now_s + SUBSTITUTE_SHARE * event.grace_s,
            void_s=now_s + event.grace_s + max(VOID_S_MIN, VOID_GRACES * event.grace_s),
            negotiable=event.negotiable,
            essential=event.essential,
            given=former.given if former is not None and is_again else None,
        )
        self.marks[event.address] = mark
        record = self.state.membership.at(event.address)
        if record is not None:
            record.is_marked = True
            self.copying.waive(record.id)
        if not mark.negotiable:
            return self._turn(mark, now_s)
        if self._given(mark) is not None:
            return []  # told again: whoever goes for it goes on
        return self._choose(mark, now_s) or [self._told(mark, None, now_s, "nobody can be spared")]

    def lifted(self, address: str, now_s: float, why: str = "withdrawn") -> list[Command]:
        """Forget a mark: whoever is still here of those that were to go for it may stay."""
        mark = self.marks.pop(address, None)
        record = self.state.membership.at(address)
        if record is not None:
            record.is_marked = False
        if mark is None:
            return []
        told = self.state.record(
            "ReclaimLifted", member=None if record is None else record.id, address=address, why=why
        )
        return [told, *self._spared(mark, now_s)]

    def _spared(self, mark: Mark, now_s: float) -> list[Command]:
        """Let one stay now that a container fewer is wanted: whose loss would cost most."""
        given = self._given(mark)
        if given is None:
            return []
        others = [m for m in self.marks.values() if m.negotiable and now_s < m.turn_s]
        going = [m for m in [mark, *others] if (r := self._given(m)) is not None and r.is_given]
        if not going:
            return []
        costliest = max(going, key=lambda m: self._cost(m.given))
        if costliest is not mark:
            # Who was to go for the mark that is gone goes for the other one instead.
            costliest.given, mark.given = given.id, costliest.given
            if given.address != costliest.address:
                given.is_retiring, given.deadline_s = True, None
        return self._stays(mark.given)

    def _stays(self, member: MemberId | None) -> list[Command]:
        record = None if member is None else self.state.membership.members.get(member)
        if record is None or not record.is_given:
            return []
        record.is_given = False
        if record.notice_reason is not None:
            record.is_retiring = False  # it goes for a reason of its own
            return []
        self.state.stay(record)
        return [self.state.record("MemberKept", member=record.id)]

    def _given(self, mark: Mark) -> MemberRecord | None:
        """Find who goes for a mark and is still here."""
        return None if mark.given is None else self.state.membership.members.get(mark.given)

    def _cost(self, member: MemberId | None) -> int:
        return -1 if member is None else loss_bytes(self.state, member)

    # --- who goes -----------------------------------------------------------------------------

    def _choose(self, mark: Mark, now_s: float) -> list[Command]:
        """Have the member leave whose loss costs least; nobody where the job would get too small.

        Those that leave anyway and give their container back cost nothing. Then spare members
        come, then the fewest bytes that must travel; among equals the marked one, then the
        youngest.
        """
        state = self.state
        record = state.membership.at(mark.address)
        if record is None and not mark.essential:
            return []  # no member of this job is in it: its loss costs nothing
        if record is not None and record.notice_reason is not None:
            mark.given = record.id
            return [self._told(mark, record.id, now_s, "it has a notice")]
        taken = {m.given for m in self.marks.values()}
        living = state.membership.members.values()
        retiring = [r for r in living if r.is_retiring and not r.is_given and r.id not in taken]
        if retiring:
            mark.given = min(r.id for r in retiring)
            return [self._told(mark, mark.given, now_s, "it is given back anyway")]
        staying = [r for r in living if r.stage != "leaving"]
        if len(staying) <= max(1, state.settings.members_min) and not mark.essential:
            return []
        found = [r for r in staying if r.id not in taken]
        if not found:
            return []
        cost = {r.id: loss_bytes(state, r.id) for r in found}
        chosen = min(
            found,
            key=lambda r: (
                bool(state.ledger.owned.get(r.id)),
                cost[r.id],
                r is not record,
                not r.is_marked,
                -r.id.incarnation,
                -r.id.slot,
            ),
        )
        told = self._told(mark, chosen.id, now_s, "its loss costs least", cost[chosen.id])
        return [told, *self._leaves(mark, chosen, now_s)]

    def _leaves(self, mark: Mark, record: MemberRecord, now_s: float) -> list[Command]:
        """Let a member leave for a mark; its container is given back as soon as it is empty.

        The marked one's, too: the resource manager kills those that it has marked in an order of
        its own until it has what it wants, and would take one that is to live on.
        """
        mark.given = record.id
        record.is_given = True
        is_own = record.address == mark.address
        # Where a mark is not negotiable other jobs may live in the container, too.
        record.is_retiring = record.is_retiring or not is_own or mark.negotiable
        if is_own and (record.deadline_s is None or mark.deadline_s < record.deadline_s):
            record.deadline_s = mark.deadline_s
        was_spare = record.stage == "spare"
        self.state.membership.enter(record, "leaving")
        self.state.stale_layout = True
        return self._release(record.id, now_s) if was_spare else []

    def _turn(self, mark: Mark, now_s: float) -> list[Command]:
        """Have the marked member leave by its own notice, and keep whoever was to go for it."""
        record = self.state.membership.at(mark.address)
        if record is None:
            return []
        commands = self._stays(mark.given) if mark.given != record.id else []
        mark.given = record.id
        if record.is_retiring and not record.is_given:
            return commands  # it is being emptied as it is
        why = "too little time for another" if mark.negotiable else "no other will do"
        told = self._told(mark, record.id, now_s, why, loss_bytes(self.state, record.id))
        grace_s = max(0.0, mark.deadline_s - now_s)
        notice = self.state.record(
            "MemberNoticed", member=record.id, grace_s=grace_s, reason=mark.reason
        )
        return [*commands, told, notice, *self._leaves(mark, record, now_s)]

    def _told(
        self, mark: Mark, given: MemberId | None, now_s: float, why: str, cost: int = 0
    ) -> Command:
        record = self.state.membership.at(mark.address)
        return self.state.record(
            "Reclaimed",
            marked=None if record is None else record.id,
            given=given,
            address=mark.address,
            cost_bytes=cost,
            grace_s=round(max(0.0, mark.deadline_s - now_s), 6),
            reason=mark.reason,
            negotiable=mark.negotiable,
            why=why,
        )

    # --- time, comings and goings -------------------------------------------------------------

    def ticked(self, now_s: float) -> list[Command]:
        """Choose anew where that is due; have marked ones leave whose time is near; drop old ones.

        What is chosen anew: the one chosen was given up and its process lives on, or nobody could
        be spared before.
        """
        commands: list[Command] = []
        for mark in list(self.marks.values()):
            if now_s >= mark.void_s:
                commands += self.lifted(mark.address, now_s, "void")
                continue
            given = self._given(mark)
            if mark.is_met or (given is not None and given.address == mark.address):
                continue
            if mark.negotiable and (now_s < mark.turn_s or mark.essential):
                commands += [] if given is not None else self._choose(mark, now_s)
            else:
                commands += self._turn(mark, now_s)
        return commands

    def arrived(self, record: MemberRecord) -> None:
        """Remember that the container of a newcomer is asked for."""
        record.is_marked = record.address in self.marks

    def noticed(self, record: MemberRecord) -> list[Command]:
        """Keep whoever was to go for a member that goes itself after all."""
        mark = self.marks.get(record.address)
        if mark is None or mark.given == record.id:
            return []
        kept, mark.given = mark.given, record.id
        return self._stays(kept)

    def reason_of(self, record: MemberRecord, reason: str) -> str:
        """Say why a member was lost, as far as it is known by now."""
        if record.end_reason is not None:
            return record.end_reason
        mark = self.marks.get(record.address)
        if reason == "retired":
            if mark is not None and mark.given == record.id:
                return mark.reason
            return "released" if record.is_given else reason
        if reason in FENCED:
            return reason
        if mark is not None:
            return mark.reason
        # A notice as such is no cause of a link that closed before the member was let go.
        told = None if record.notice_reason == "noticed" else record.notice_reason
        return told or reason

    def lost(self, record: MemberRecord, reason: str) -> list[Command]:
        """Take note of a member that is gone: its container was wanted, or is given for another.

        It answers one mark: its own where it has one, and then whoever was to go in its place goes
        for the mark that it was given for.
        """
        is_gone = reason not in FENCED
        own = self.marks.get(record.address)
        own = None if own is None or own.is_met else own
        for mark in self.marks.values():
            if mark.given != record.id:
                continue
            mark.given = None
            if not is_gone or own is None or own is mark:
                mark.is_met = mark.is_met or is_gone
            else:
                mark.given, own.given, own.is_met = own.given, None, True
        if own is None or own.is_met or not is_gone:
            return []
        kept, own.given, own.is_met = own.given, None, True
        return self._stays(kept)

    # --- what is known of containers and nodes --------------------------------------------------

    def stopping(self, event: ev.ContainerStopping) -> list[Command]:
        """Tell that a container is being stopped, of a member that has been let go, too."""
        membership = self.state.membership
        record = membership.at(event.address)
        member = record.id if record is not None else membership.former(event.address)
        if member is None:
            return []
        return [self.state.record("ContainerStopping", member=member, grace_s=event.grace_s)]

    def ended(self, event: ev.ContainerEnded, now_s: float) -> list[Command]:
        """Tell how a container ended; a member that still seems to live in it does so no more."""
        membership = self.state.membership
        record = membership.at(event.address)
        member = record.id if record is not None else membership.former(event.address)
        commands: list[Command] = [
            self.state.record(
                "ContainerEnded",
                member=member,
                container=event.container,
                reason=event.reason,
                status=event.status,
                message=event.message,
            )
        ]
        if record is not None:
            record.end_reason = event.reason
            commands += self._strike_off(record.id, event.reason, now_s)
        self.marks.pop(event.address, None)
        return commands

    def node(self, event: ev.NodeChanged, now_s: float) -> list[Command]:
        """Let all members of a node leave that is being taken out; strike those of a lost one."""
        membership = self.state.membership
        found = [r for address in event.addresses if (r := membership.at(address)) is not None]
        commands: list[Command] = [
            self.state.record(
                "NodeChanged",
                node=event.node,
                state=event.state,
                grace_s=event.grace_s,
                members=[r.id for r in found],
            )
        ]
        for record in found:
            if event.state in ENDED_STATES:
                commands += self._strike_off(record.id, "node", now_s)
            elif event.state == "decommissioning":
                noticed = ev.Noticed(
                    cause=event.cause, member=record.id, grace_s=event.grace_s, reason="node"
                )
                commands += self._notice(noticed, now_s)
            elif event.state == "running" and record.notice_reason == "node":
                commands += self._welcome_back(record)
        return commands

    def _welcome_back(self, record: MemberRecord) -> list[Command]:
        record.notice_reason = None
        if record.is_retiring or record.is_given:
            return []
        self.state.stay(record)
        return [self.state.record("NoticeWithdrawn", member=record.id)]

    def _strike_off(self, member: MemberId, reason: str, now_s: float) -> list[Command]:
        # A process that outlived its container must not come back as another member.
        dismiss = Dismiss(cause=self.state.cause, member=member, reason="released")
        return [dismiss, *self._strike(member, reason, now_s)]
