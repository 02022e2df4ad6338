"""Who takes part: slots, incarnations and the stage each member is in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from elasticml.terms import MemberId

Stage = Literal["spare", "active", "leaving"]


@dataclass(slots=True, kw_only=True)
class MemberRecord:
    """What the driver knows of one living member."""

    id: MemberId
    address: str
    host: str
    pid: int
    threads: int
    #: "spare": has no chunks yet; "active": takes part; "leaving": takes part, and has a notice.
    stage: Stage = "spare"
    joined_s: float = 0.0
    #: When it will be gone, on the job's clock; None without a notice.
    deadline_s: float | None = None
    #: It has been told the facts about the data and has a solver.
    configured: bool = False
    #: It is to be emptied and let go, its container given back.
    is_retiring: bool = False
    #: It goes because a container is asked for back: its own, or another one.
    is_given: bool = False
    #: Its container is asked for back: it is given nothing.
    is_marked: bool = False
    #: Why it will go, where it has a notice of its own.
    notice_reason: str | None = None
    #: How its container ended, where that is known before the loss is seen.
    end_reason: str | None = None
    #: Memory for chunk bodies; None where there is no limit.
    limit_bytes: int | None = None


class Membership:
    """Living members by id; slots are refilled, incarnations are never reused."""

    def __init__(self) -> None:
        self.members: dict[MemberId, MemberRecord] = {}
        self._incarnations: dict[int, int] = {}
        #: The last member at each address that has gone.
        self._former: dict[str, MemberId] = {}

    def admit(
        self,
        *,
        address: str,
        host: str,
        pid: int,
        threads: int,
        slot: int | None,
        now_s: float,
        limit_bytes: int | None = None,
    ) -> MemberRecord:
        """Give a newcomer an id: its former slot where that is free, else the lowest free one."""
        taken = {m.slot for m in self.members}
        if slot is None or slot in taken:
            slot = next(s for s in range(len(taken) + 1) if s not in taken)
        incarnation = self._incarnations.get(slot, 0) + 1
        self._incarnations[slot] = incarnation
        record = MemberRecord(
            id=MemberId(slot, incarnation),
            address=address,
            host=host,
            pid=pid,
            threads=threads,
            joined_s=now_s,
            limit_bytes=limit_bytes,
        )
        self.members[record.id] = record
        return record

    def incarnations(self) -> dict[str, int]:
        """Return the last incarnation in each slot, keyed by the slot as text."""
        return {str(slot): last for slot, last in self._incarnations.items()}

    def count_from(self, incarnations: Mapping[str, int]) -> None:
        """Give newcomers later incarnations than these, which another driver gave out."""
        self._incarnations = {int(slot): int(last) for slot, last in incarnations.items()}

    def remove(self, member: MemberId) -> MemberRecord | None:
        """Strike a member; None when it is no longer there (a second word of the same loss)."""
        record = self.members.pop(member, None)
        if record is not None:
            self._former[record.address] = member
        return record

    def at(self, address: str) -> MemberRecord | None:
        """Find the living member of an address."""
        return next((m for m in self.members.values() if m.address == address), None)

    def former(self, address: str) -> MemberId | None:
        """Name the last member of an address that has gone."""
        return self._former.get(address)

    def stage(self, *stages: Stage) -> list[MemberRecord]:
        """List members in one of these stages, by age (oldest first), then by slot."""
        found = [m for m in self.members.values() if m.stage in stages]
        return sorted(found, key=lambda m: (m.id.incarnation, m.id.slot))

    def working(self) -> list[MemberRecord]:
        """List members that take part in exchanges."""
        return self.stage("active", "leaving")
