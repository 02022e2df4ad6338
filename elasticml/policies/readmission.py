"""Readmission policies: when a group of absent chunks is loaded again, and on which members."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Literal

from elasticml.control.placement import MemoryBudget
from elasticml.control.policy import GroupView, MemberView, Readmit, View
from elasticml.ids import ChunkId, MemberId
from elasticml.policies.validation import PolicyOptions
from elasticml.specification.settings_model import Flag, NumberFrom0, settings_dataclass


@settings_dataclass(finite=False, eq=False)
class WholeGroup(PolicyOptions):
    """Readmit the oldest group as soon as as many members are free as were lost with it.

    After ``patience_s`` seconds with fewer free members, the group is spread over those available,
    and after ``alone_s`` over the working members, too.
    If no member is free and no return is planned, the group is spread over the working members, as
    far as their memory allows: after ``patience_s`` if the job has as many members as at its start,
    because no replacement is expected then, and after ``alone_s`` otherwise, because a node may be
    lost for good. If the newcomers lack memory for their shares, they share the group with the
    working members after ``patience_s``. The paper's rule is ``patience_s=inf, alone_s=inf``.

    Jobs with ``absent: auto`` wait neither for newcomers nor for any replacement: ``patience_s=0,
    alone_s=0``. A stand-in then takes the group's place only while its chunks are being read. Free
    members then read only what no member holds: they get their share of the rest from its holders.

    Source: Algorithm 2 of the resource-elastic paper, lines 18-21. Deviations: patience, and
    ``first_fitting``.

    Parameters
    ----------
    patience_s : float
        Seconds to wait for a full set of replacements, >= 0.
    first_fitting : bool
        Let a later, smaller group overtake a large one that waits at the head of the queue.
    alone_s : float
        Seconds to wait for any replacement, >= 0.
    """

    name = "whole_group"
    is_standing: ClassVar[Literal[True]] = True

    patience_s: NumberFrom0 = 30.0
    first_fitting: Flag = False
    alone_s: NumberFrom0 = 60.0

    def suggest(self, view: View) -> Sequence[Readmit]:
        """Return the groups to readmit now."""
        if not view.groups:
            return []
        free = list(view.spares)
        suggestions: list[Readmit] = []
        memory = _MemoryPlan(view)
        alone_s, why_alone = self.alone_s, ""
        if view.expected or view.planned:
            alone_s = math.inf
        elif 0 < view.start_members <= len(view.working):
            alone_s, why_alone = self.patience_s, ", and as many work as at the start"
        for group in view.groups:
            size = len(group.former)
            if alone_s == self.patience_s == 0.0 and (owners := memory.with_copies(group)):
                why = "copies of some of its chunks"
                suggestions.append(Readmit(group=group.id, targets=(), why=why, owners=owners))
                used = set(owners.values())
                free = [m for m in free if m.id not in used]
                continue
            waited = view.now_s - group.absent_since_s
            targets: tuple[MemberId, ...] = ()
            why = f"no member has been free for {waited:.0f} s{why_alone}"
            spreads = waited >= alone_s
            if free:
                newcomers = _former_slots_first(group, free)
                why, spreads = f"{len(free)} members free, {size} needed", False
                if len(free) < size:
                    why = f"{len(free)} of {size} members free after {waited:.0f} s"
                # During a planned return more members are still to come.
                is_late = waited >= self.patience_s and not view.expected
                if len(free) >= size or (is_late and waited < alone_s):
                    targets = tuple(m.id for m in newcomers[:size])
                # Newcomers may have less memory than the members they replace.
                spreads = is_late
            if targets and memory.reserve(_shares_by_target(group, targets)):
                suggestions.append(Readmit(group=group.id, targets=targets, why=why))
                used = set(targets)
            elif spreads and (owners := memory.spread(group)):
                why = f"{why}, no room for whole shares" if targets else why
                suggestions.append(Readmit(group=group.id, targets=(), why=why, owners=owners))
                used = set(owners.values())
            elif self.first_fitting:
                continue
            else:
                break
            free = [m for m in free if m.id not in used]
        return suggestions


class Reload:
    """Readmit every group at once, preferably on members that hold copies of its chunks.

    Chunks without a copy go to free members, or to all surviving ones if no member is free, so that
    rounds become longer by as little as possible. If free members lack memory, others take part.
    """

    name = "reload"
    is_standing: Literal[True] = True

    def suggest(self, view: View) -> Sequence[Readmit]:
        """Return all absent groups, each with the members that load it."""
        if not view.groups:
            return []
        free = list(view.spares)
        suggestions: list[Readmit] = []
        memory = _MemoryPlan(view)
        for group in view.groups:
            owners = memory.assign_to_holders(group)
            if owners and len(owners) == len(group.chunks):
                suggestions.append(Readmit(group=group.id, targets=(), why="copies", owners=owners))
                free = [m for m in free if m.id not in set(owners.values())]
                continue
            loads = {} if free else view.steady_loads()
            hosts = [m.id for m in free] or sorted(loads, key=lambda m: (loads[m], m))
            if not hosts:
                break
            why = "free members" if free else "read again on survivors"
            # All survivors share a group whose chunks are known.
            is_shared = bool(group.chunks) and not free
            count = len(hosts) if is_shared else max(len(group.former), 1)
            targets = tuple(hosts[:count])
            if is_shared or owners or not memory.reserve(_shares_by_target(group, targets)):
                if owners:
                    why = f"{len(owners)} of {len(group.chunks)} copies, {why}"
                others = [*(m.id for m in free), *view.steady_loads()]
                memory.assign_rest(group, owners, targets, others)
                suggestions.append(Readmit(group=group.id, targets=(), why=why, owners=owners))
            else:
                suggestions.append(Readmit(group=group.id, targets=targets, why=why))
            free = free[len(group.former) :]
        return suggestions


class _MemoryPlan:
    """The load and free memory of the remaining members, updated as chunks are assigned.

    Members are looked up lazily: there may be thousands.
    """

    def __init__(self, view: View) -> None:
        self._chunks = view.chunks
        self._view = view
        self._spares = {m.id: m for m in view.spares}
        #: Free bytes of each member before any assignment; None without a limit.
        self._free: dict[MemberId, int | None] = {}
        #: Examples and bytes assigned since.
        self._rows: dict[MemberId, int] = {}
        self._nbytes: dict[MemberId, int] = {}

    @cached_property
    def _members(self) -> dict[MemberId, int]:
        """The examples of the members that stay."""
        return {**self._view.steady_loads(), **{m.id: m.rows for m in self._spares.values()}}

    @cached_property
    def _rooms(self) -> MemoryBudget:
        assert self._chunks is not None
        return MemoryBudget(self._chunks, self._view.coming)

    def assign_to_holders(self, group: GroupView) -> dict[ChunkId, MemberId]:
        """Assign every chunk that has a copy to its least loaded holder."""
        owners: dict[ChunkId, MemberId] = {}
        if self._chunks is None:
            return owners
        for chunk in group.chunks:
            holders = [m for m in self._chunks.holders(chunk) if m in self._members]
            if holders:
                self._take(owners, chunk, min(holders, key=self._load))
        return owners

    def with_copies(self, group: GroupView) -> dict[ChunkId, MemberId]:
        """Spread a group of which some chunks have copies; return nothing for another one."""
        if self._chunks is None:
            return {}
        is_held = any(m in self._members for c in group.chunks for m in self._chunks.holders(c))
        return self.spread(group) if is_held else {}

    def reserve(self, owners: Mapping[ChunkId, MemberId]) -> bool:
        """Reserve memory for chunks with these owners; return False, unchanged, if any is short."""
        before = dict(self._rows), dict(self._nbytes)
        for chunk, member in owners.items():
            if not self._with_room(chunk, [member]):
                self._rows, self._nbytes = before
                return False
            self._take({}, chunk, member)
        return True

    def spread(self, group: GroupView) -> dict[ChunkId, MemberId]:
        """Assign every chunk to a holder, or else to the least loaded members.

        Returns
        -------
        dict
            Empty if not all chunks fit, or if there is no member.
        """
        if self._chunks is None or not self._members:
            return {}
        before = dict(self._rows), dict(self._nbytes)
        owners = self.assign_to_holders(group)
        if not self.assign_rest(group, owners, list(self._members)):
            # A group that is not readmitted takes no memory.
            self._rows, self._nbytes = before
            return {}
        return owners

    def assign_rest(
        self,
        group: GroupView,
        owners: dict[ChunkId, MemberId],
        preferred: Sequence[MemberId],
        others: Sequence[MemberId] = (),
    ) -> bool:
        """Assign the remaining chunks so that loads become even, as far as members have room.

        A member gets consecutive chunks: they are of the same blocks, which are read whole. Members
        in ``others`` get chunks for which no preferred one has room.

        Returns
        -------
        bool
            False if some chunks fit nowhere. They are assigned all the same, and no memory is
            reserved: the driver then refuses the suggestion and reports how much memory is lacking.
        """
        before, fits = (dict(self._rows), dict(self._nbytes)), True
        rest = [chunk for chunk in group.chunks if chunk not in owners]
        loads = sorted(
            [self._load(m) for m in preferred] if self._rows else self._first_loads(preferred)
        )
        level, current = self._even_load(rest, loads), None
        for chunk in rest:
            if current is None or not self._takes(current, chunk, level):
                current = self._least_loaded(chunk, loads)
            if current is None:
                room = self._with_room(chunk, others)
                fits = fits and bool(room)
                current = min(room or preferred, key=self._load)
            self._take(owners, chunk, current)
        if not fits:
            self._rows, self._nbytes = before
        return fits

    def _least_loaded(self, chunk: ChunkId, loads: list[tuple[int, MemberId]]) -> MemberId | None:
        """Return the least loaded member with room for a chunk, if one has.

        Parameters
        ----------
        loads : list of (int, MemberId), updated
            A heap of the members with their loads when they were last looked at; loads only grow.
        """
        without_room, found = [], None
        while loads and found is None:
            entry = loads[0]
            now = self._load(entry[1])
            if now != entry:
                heapq.heapreplace(loads, now)
            elif self._with_room(chunk, [entry[1]]):
                found = entry[1]
            else:
                without_room.append(heapq.heappop(loads))
        for entry in without_room:
            heapq.heappush(loads, entry)
        return found

    def _even_load(self, chunks: Sequence[ChunkId], loads: Sequence[tuple[int, MemberId]]) -> float:
        """Return the examples of the members that get chunks, once loads are as even as can be.

        ``loads`` ascend.
        """
        assert self._chunks is not None
        total, level = sum(self._chunks.rows(c) for c in chunks), 0.0
        for n, (load, _) in enumerate(loads, start=1):
            if n > 1 and load >= level:
                break
            total += load
            level = total / n
        return level

    def _takes(self, member: MemberId, chunk: ChunkId, level: float) -> bool:
        """Whether a member gets the chunk after its last one."""
        assert self._chunks is not None
        middle = self._load(member)[0] + self._chunks.rows(chunk) / 2
        return middle <= level and bool(self._with_room(chunk, [member]))

    def _first_loads(self, members: Sequence[MemberId]) -> list[tuple[int, MemberId]]:
        """Return what ``_load`` returns for each, before any chunk is assigned."""
        rows = {m.id: m.rows for m in self._spares.values()}
        if not rows.keys() >= set(members):
            rows = self._members
        return [(rows[m], m) for m in members]

    def _load(self, member: MemberId) -> tuple[int, MemberId]:
        spare = self._spares.get(member)
        rows = self._members[member] if spare is None else spare.rows
        return rows + self._rows.get(member, 0), member

    def _left(self, member: MemberId) -> int | None:
        """Return the bytes free once copies of others' chunks are dropped; None without a limit."""
        if member not in self._free:
            spare = self._spares.get(member)
            limit = self._view.limit_bytes(member) if spare is None else spare.limit_bytes
            self._free[member] = None if limit is None else self._rooms.left(member, limit)
        free = self._free[member]
        return None if free is None else free - self._nbytes.get(member, 0)

    def _with_room(self, chunk: ChunkId, members: Sequence[MemberId]) -> list[MemberId]:
        assert self._chunks is not None
        nbytes, holders = self._chunks.nbytes(chunk), self._chunks.holders(chunk)
        return [
            m for m in members if m in holders or (left := self._left(m)) is None or left >= nbytes
        ]

    def _take(self, owners: dict[ChunkId, MemberId], chunk: ChunkId, member: MemberId) -> None:
        assert self._chunks is not None
        owners[chunk] = member
        self._rows[member] = self._rows.get(member, 0) + self._chunks.rows(chunk)
        nbytes, holders = self._chunks.nbytes(chunk), self._chunks.holders(chunk)
        if member not in holders:
            self._nbytes[member] = self._nbytes.get(member, 0) + nbytes
            return
        # The copy takes memory already; the other holders can drop theirs.
        for other in holders - {member}:
            self._nbytes[other] = self._nbytes.get(other, 0) - nbytes


def _shares_by_target(group: GroupView, targets: Sequence[MemberId]) -> dict[ChunkId, MemberId]:
    """Assign the former members' shares to the targets round-robin, as a Readmit with targets."""
    return {
        chunk: targets[k % len(targets)]
        for k, former in enumerate(group.former)
        for chunk in group.shares.get(former, ())
    }


def _former_slots_first(group: GroupView, free: Sequence[MemberView]) -> list[MemberView]:
    """Put members in a lost member's slot first: they may still have its chunks."""
    slots = {m.slot for m in group.former}
    return sorted(free, key=lambda m: (m.id.slot not in slots, m.id.slot))


def readmission_policy(absent: str, *, is_paper: bool = False) -> tuple[str, dict[str, float]]:
    """Return name and settings of the readmission policy for a job's ``absent`` setting."""
    if absent == "reload":
        return Reload.name, {}
    if absent == "auto" and not is_paper:
        return WholeGroup.name, {"patience_s": 0.0, "alone_s": 0.0}
    return WholeGroup.name, {}
