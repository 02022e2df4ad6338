"""Membership: slots, incarnations, and the stage of each member."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from elasticml.errors import LocalProtocolError
from elasticml.ids import MemberId
from elasticml.protocol.events import Arrived

Stage = Literal["spare", "active", "leaving"]


@dataclass(slots=True, kw_only=True)
class MemberRecord:
    """One living member, as the driver sees it."""

    id: MemberId
    address: str
    host: str
    pid: int
    threads: int
    #: "spare": owns no chunks yet; "active": participates; "leaving": participates until it goes.
    #: Set by :meth:`Membership.enter` only, which keeps the lists by stage.
    stage: Stage = "spare"
    #: When it will be gone, on the job's clock; None: no notice.
    deadline_s: float | None = None
    #: It has received the data set's statistics, has a solver, and its kernels are compiled.
    configured: bool = False
    #: It is being drained and released, and its container given back.
    is_retiring: bool = False
    #: It leaves because a container is asked for: its own or another one.
    is_victim: bool = False
    #: Its container is asked for: it receives no chunks.
    is_marked: bool = False
    #: It is marked and will be drained, but not yet: its bodies are copied to others meanwhile.
    #: Set by :meth:`Membership.set_ending` only.
    is_ending: bool = False
    #: Reason of its own notice; None: no notice.
    notice_reason: str | None = None
    #: How its container ended, if that is known before the loss is seen.
    end_reason: str | None = None
    #: Bytes of chunk bodies that it can hold; None: no limit.
    limit_bytes: int | None = None
    #: Bytes of chunk bodies that fit into its memory; None: the same as ``limit_bytes``.
    memory_bytes: int | None = None

    @property
    def in_memory_bytes(self) -> int | None:
        """Bytes of chunk bodies that fit into its memory; None: unknown."""
        return self.limit_bytes if self.memory_bytes is None else self.memory_bytes


class Membership:
    """Living members by id; slots are reused, incarnations are not.

    Lookups that every event needs (member of an address, free slot, members of a stage) use
    indexes, so that their cost does not grow with the number of members.
    """

    def __init__(self) -> None:
        self.members: dict[MemberId, MemberRecord] = {}
        #: The members with ``is_ending``: few, and looked for at every round boundary.
        self.ending: set[MemberId] = set()
        #: Counts admissions, removals and changes of stage.
        self.changes = 0
        self._incarnations: dict[int, int] = {}
        #: The last removed member of each address.
        self._former: dict[str, MemberId] = {}
        self._at: dict[str, MemberRecord] = {}
        self._taken: set[int] = set()
        #: Heap with every free slot below ``_untried``, and possibly some taken ones.
        self._freed: list[int] = []
        self._untried = 0
        self._stages: dict[Stage, _Aged] = {stage: _Aged() for stage in get_args(Stage)}

    def admit(self, arrived: Arrived) -> MemberRecord:
        """Give a newcomer an id: its former slot if that is free, else the lowest free one."""
        slot = arrived.slot
        if slot is None or slot in self._taken:
            slot = self._lowest_free()
        incarnation = self._incarnations.get(slot, 0) + 1
        self._incarnations[slot] = incarnation
        record = MemberRecord(
            id=MemberId(slot, incarnation),
            address=arrived.address,
            host=arrived.host,
            pid=arrived.pid,
            threads=arrived.threads,
            limit_bytes=arrived.limit_bytes,
            memory_bytes=arrived.memory_bytes,
        )
        self.members[record.id] = record
        self.changes += 1
        self._taken.add(slot)
        self._at[record.address] = record
        self._stages[record.stage].add(record)
        return record

    def _lowest_free(self) -> int:
        while self._freed and self._freed[0] in self._taken:
            heapq.heappop(self._freed)
        while self._untried in self._taken:
            self._untried += 1
        return min(self._freed[0], self._untried) if self._freed else self._untried

    def incarnations(self) -> dict[str, int]:
        """Return the last incarnation of each slot, keyed by the slot as text."""
        return {str(slot): last for slot, last in self._incarnations.items()}

    def count_from(self, incarnations: Mapping[str, int]) -> None:
        """Continue after these incarnations, which another driver assigned."""
        self._incarnations = {int(slot): int(last) for slot, last in incarnations.items()}

    def remove(self, member: MemberId) -> MemberRecord | None:
        """Remove a member; return None if it is already gone (a repeated report of its loss)."""
        record = self.members.pop(member, None)
        if record is not None:
            self.changes += 1
            self._former[record.address] = member
            self.ending.discard(member)
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

    def set_ending(self, record: MemberRecord, is_ending: bool) -> None:
        """Note whether the drain of a living member is near."""
        record.is_ending = is_ending
        (self.ending.add if is_ending else self.ending.discard)(record.id)

    def at(self, address: str) -> MemberRecord | None:
        """Return the living member of an address, or None."""
        return self._at.get(address)

    def former(self, address: str) -> MemberId | None:
        """Return the last removed member of an address, or None."""
        return self._former.get(address)

    def stage(self, *stages: Stage) -> list[MemberRecord]:
        """List members in one of these stages, by age (oldest first), then by slot."""
        some = [aged for stage in stages if (aged := self._stages[stage]).records]
        if len(some) == 1:
            return some[0].records.copy()
        # No two members have the same age, so that records are not compared.
        pairs = sorted(pair for aged in some for pair in zip(aged.ages, aged.records, strict=True))
        return [record for _, record in pairs]

    def count(self, *stages: Stage) -> int:
        """Return the number of members in these stages."""
        return sum(len(self._stages[stage].records) for stage in stages)

    def working(self) -> list[MemberRecord]:
        """List members that participate in exchanges."""
        return self.stage("active", "leaving")

    @property
    def n_working(self) -> int:
        """Number of members that participate in exchanges."""
        return self.count("active", "leaving")

    def check(self) -> None:
        """Check the indexes against the members.

        Raises
        ------
        LocalProtocolError
            When an index is wrong.
        """
        for stage, aged in self._stages.items():
            expected = sorted((m for m in self.members.values() if m.stage == stage), key=_age)
            if aged.records != expected:
                raise LocalProtocolError(f"the list of {stage} members is wrong")
        if self.ending != {m.id for m in self.members.values() if m.is_ending}:
            raise LocalProtocolError("the set of members near their end is wrong")
        if self._taken != {m.slot for m in self.members}:
            raise LocalProtocolError("the taken slots are not those of the living members")
        if {id(m) for m in self._at.values()} != {id(m) for m in self.members.values()}:
            raise LocalProtocolError("the addresses are not those of the living members")


class _Aged:
    """Members of one stage, sorted by age."""

    def __init__(self) -> None:
        self.records: list[MemberRecord] = []
        self.ages: list[tuple[int, int]] = []

    def add(self, record: MemberRecord) -> None:
        """Insert a member."""
        place = bisect_left(self.ages, _age(record))
        self.ages.insert(place, _age(record))
        self.records.insert(place, record)

    def discard(self, record: MemberRecord) -> None:
        """Remove a member."""
        place = bisect_left(self.ages, _age(record))
        del self.ages[place], self.records[place]


def _age(record: MemberRecord) -> tuple[int, int]:
    return record.id.incarnation, record.id.slot
