"""Who takes part: slots, incarnations and the stage each member is in."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from elasticml.errors import LocalProtocolError
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
    #: Set by :meth:`Membership.enter` alone, which keeps the lists by stage.
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
    #: Bytes of chunk bodies that it can hold; None where there is no limit. And those that fit into
    #: its memory; None where that is the same.
    limit_bytes: int | None = None
    memory_bytes: int | None = None

    @property
    def in_memory_bytes(self) -> int | None:
        """Bytes of chunk bodies that fit into its memory; None where unknown."""
        return self.limit_bytes if self.memory_bytes is None else self.memory_bytes


class Membership:
    """Living members by id; slots are refilled, incarnations are never reused.

    What is asked for at every event (who is at an address, which slot is free, who is in a stage)
    is kept at hand, so that an answer does not take longer the more members there are.
    """

    def __init__(self) -> None:
        self.members: dict[MemberId, MemberRecord] = {}
        #: Counts comings, goings and changes of stage.
        self.changes = 0
        self._incarnations: dict[int, int] = {}
        #: The last member at each address that has gone.
        self._former: dict[str, MemberId] = {}
        self._at: dict[str, MemberRecord] = {}
        self._taken: set[int] = set()
        #: Every free slot below ``_untried`` is in the heap, and perhaps some taken ones.
        self._freed: list[int] = []
        self._untried = 0
        self._stages: dict[Stage, _Aged] = {stage: _Aged() for stage in get_args(Stage)}

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
        memory_bytes: int | None = None,
    ) -> MemberRecord:
        """Give a newcomer an id: its former slot where that is free, else the lowest free one."""
        if slot is None or slot in self._taken:
            slot = self._lowest_free()
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
            memory_bytes=memory_bytes,
        )
        self.members[record.id] = record
        self.changes += 1
        self._taken.add(slot)
        self._at[address] = record
        self._stages[record.stage].add(record)
        return record

    def _lowest_free(self) -> int:
        while self._freed and self._freed[0] in self._taken:
            heapq.heappop(self._freed)
        while self._untried in self._taken:
            self._untried += 1
        return min(self._freed[0], self._untried) if self._freed else self._untried

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
            self.changes += 1
            self._former[record.address] = member
            self._taken.discard(member.slot)
            heapq.heappush(self._freed, member.slot)
            self._stages[record.stage].discard(record)
            if self._at.get(record.address) is record:
                del self._at[record.address]
        return record

    def enter(self, record: MemberRecord, stage: Stage) -> None:
        """Move a living member to another stage."""
        self._stages[record.stage].discard(record)
        record.stage = stage
        self.changes += 1
        self._stages[stage].add(record)

    def at(self, address: str) -> MemberRecord | None:
        """Find the living member of an address."""
        return self._at.get(address)

    def former(self, address: str) -> MemberId | None:
        """Name the last member of an address that has gone."""
        return self._former.get(address)

    def stage(self, *stages: Stage) -> list[MemberRecord]:
        """List members in one of these stages, by age (oldest first), then by slot."""
        lists = [found for stage in stages if (found := self._stages[stage].records)]
        if len(lists) == 1:
            return lists[0].copy()
        return sorted((record for found in lists for record in found), key=_age)

    def count(self, *stages: Stage) -> int:
        """Count the members in these stages."""
        return sum(len(self._stages[stage].records) for stage in stages)

    def working(self) -> list[MemberRecord]:
        """List members that take part in exchanges."""
        return self.stage("active", "leaving")

    @property
    def n_working(self) -> int:
        """Members that take part in exchanges."""
        return self.count("active", "leaving")

    def check(self) -> None:
        """Derive what is kept at hand anew from the members.

        Raises
        ------
        LocalProtocolError
            When it is not what is kept.
        """
        for stage, aged in self._stages.items():
            found = sorted((m for m in self.members.values() if m.stage == stage), key=_age)
            if aged.records != found:
                raise LocalProtocolError(f"the list of {stage} members is not theirs")
        if self._taken != {m.slot for m in self.members}:
            raise LocalProtocolError("the taken slots are not those of the members")
        if {id(m) for m in self._at.values()} != {id(m) for m in self.members.values()}:
            raise LocalProtocolError("the addresses are not those of the members")


class _Aged:
    """Members of one stage, by age."""

    def __init__(self) -> None:
        self.records: list[MemberRecord] = []
        self._ages: list[tuple[int, int]] = []

    def add(self, record: MemberRecord) -> None:
        """Put a member in its place."""
        place = bisect_left(self._ages, _age(record))
        self._ages.insert(place, _age(record))
        self.records.insert(place, record)

    def discard(self, record: MemberRecord) -> None:
        """Strike a member."""
        place = bisect_left(self._ages, _age(record))
        del self._ages[place], self.records[place]


def _age(record: MemberRecord) -> tuple[int, int]:
    return record.id.incarnation, record.id.slot
