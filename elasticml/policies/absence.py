"""When groups of absent chunks come back, and to whom."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from elasticml.control.policy import GroupView, MemberView, Readmit, View
from elasticml.control.room import Rooms
from elasticml.terms import ChunkId, MemberId


class WholeGroup:
    """Bring the oldest group back once as many members are free as vanished with it.

    With fewer newcomers than that for ``patience_s`` seconds, the group is spread over those that
    there are. With none, and no planned return to come, it is spread over those that work, as far
    as their memory has room: after ``patience_s`` if they are as many as the job began with, since
    nobody else need come then, and after ``alone_s`` otherwise, since a node may be lost for good.
    Newcomers whose memory does not take what is theirs share the group with those that work, after
    ``patience_s``. The paper's rule is ``patience_s=inf, alone_s=inf``.

    Source: Algorithm 2 of the resource-elastic paper, lines 18-21. Deviations: patience, and
    ``first_fitting``, which lets a later, smaller group pass a large one that waits at the head.

    Parameters
    ----------
    patience_s : float
        Seconds, >= 0.
    first_fitting : bool
    alone_s : float
        Seconds, >= 0.
    """

    name = "whole_group"
    is_standing: Literal[True] = True

    def __init__(
        self, patience_s: float = 30.0, first_fitting: bool = False, alone_s: float = 60.0
    ) -> None:
        self.patience_s = patience_s
        self.first_fitting = first_fitting
        self.alone_s = alone_s

    def suggest(self, view: View) -> Sequence[Readmit]:
        """Return the groups to bring back now."""
        if not view.groups:
            return []
        free = list(view.spares)
        found: list[Readmit] = []
        homes = _Homes(view)
        alone_s, why_alone = self.alone_s, ""
        if view.expected or view.planned:
            alone_s = math.inf
        elif 0 < view.start_members <= len(view.working):
            alone_s, why_alone = self.patience_s, ", and as many work as at the start"
        for group in view.groups:
            size = len(group.former)
            waited = view.now_s - group.absent_since_s
            targets: tuple[MemberId, ...] = ()
            why, spreads = f"nobody free in {waited:.0f} s{why_alone}", waited >= alone_s
            if free:
                newcomers = _former_slots_first(group, free)
                why, spreads = f"{len(free)} members free, {size} needed", False
                if len(free) < size:
                    why = f"{len(free)} of {size} members free after {waited:.0f} s"
                # While a planned return is under way, the first of them are not all of them.
                is_late = waited >= self.patience_s and not view.expected
                if len(free) >= size or is_late:
                    targets = tuple(m.id for m in newcomers[:size])
                    # Newcomers may have less memory than those in whose place they are.
                    spreads = is_late
            if targets and homes.house(_in_turn(group, targets)):
                found.append(Readmit(group=group.id, targets=targets, why=why))
                given = set(targets)
            elif spreads and (owners := homes.spread(group)):
                why = f"{why}, no room for whole shares" if targets else why
                found.append(Readmit(group=group.id, targets=(), why=why, owners=owners))
                given = set(owners.values())
            elif self.first_fitting:
                continue
            else:
                break
            free = [m for m in free if m.id not in given]
        return found


class Reload:
    """Bring every group back at once: on those who have the bodies, as far as somebody has.

    Else on free members where there are any, and on survivors where there are none; on more of
    them than have vanished where these have no memory left.
    """

    name = "reload"
    is_standing: Literal[True] = True

    def suggest(self, view: View) -> Sequence[Readmit]:
        """Return the groups to bring back now: all of them."""
        if not view.groups:
            return []
        free = list(view.spares)
        found: list[Readmit] = []
        homes = _Homes(view)
        for group in view.groups:
            owners = homes.of_holders(group)
            if owners and len(owners) == len(group.chunks):
                found.append(Readmit(group=group.id, targets=(), why="copies", owners=owners))
                free = [m for m in free if m.id not in set(owners.values())]
                continue
            hosts = free or sorted(view.steady, key=lambda m: (m.rows, m.id))
            if not hosts:
                break
            why = "free members" if free else "read again on survivors"
            targets = tuple(m.id for m in hosts[: max(len(group.former), 1)])
            if owners or not homes.house(_in_turn(group, targets)):
                if owners:
                    why = f"{len(owners)} of {len(group.chunks)} copies, {why}"
                others = [m.id for m in (*free, *view.steady)]
                homes.give(group, owners, targets, others)
                found.append(Readmit(group=group.id, targets=(), why=why, owners=owners))
            else:
                found.append(Readmit(group=group.id, targets=targets, why=why))
            free = free[len(group.former) :]
        return found


class _Homes:
    """What members that stay own, and what their memory has room for; grows with what is given.

    Looks at members only as far as it is asked for them: there may be thousands.
    """

    def __init__(self, view: View) -> None:
        self._chunks = view.chunks
        self._view = view
        self._spares = {m.id: m for m in view.spares}
        #: Bytes that a member has left before anything is given to it; None without a limit.
        self._free: dict[MemberId, int | None] = {}
        #: Examples and bytes that have been given since.
        self._rows: dict[MemberId, int] = {}
        self._nbytes: dict[MemberId, int] = {}

    @cached_property
    def _members(self) -> dict[MemberId, MemberView]:
        return {m.id: m for m in (*self._view.steady, *self._view.spares)}

    @cached_property
    def _rooms(self) -> Rooms:
        assert self._chunks is not None
        return Rooms(self._chunks, self._view.coming)

    def of_holders(self, group: GroupView) -> dict[ChunkId, MemberId]:
        """Give every chunk that somebody has to the emptiest of those who have it."""
        owners: dict[ChunkId, MemberId] = {}
        if self._chunks is None:
            return owners
        for chunk in group.chunks:
            holders = [m for m in self._chunks.holders(chunk) if m in self._members]
            if holders:
                self._take(owners, chunk, min(holders, key=self._load))
        return owners

    def house(self, wanted: Mapping[ChunkId, MemberId]) -> bool:
        """Set memory aside for chunks with these owners, unless it does not take all of them."""
        before = dict(self._rows), dict(self._nbytes)
        for chunk, member in wanted.items():
            if not self._roomy(chunk, [member]):
                self._rows, self._nbytes = before
                return False
            self._take({}, chunk, member)
        return True

    def spread(self, group: GroupView) -> dict[ChunkId, MemberId]:
        """Give every chunk to those who have it or else to the emptiest; nothing if not all fit."""
        before = dict(self._rows), dict(self._nbytes)
        owners = self.of_holders(group)
        for chunk in group.chunks:
            if chunk not in owners:
                if not (among := self._roomy(chunk, list(self._members))):
                    # What does not come back takes nobody's memory.
                    self._rows, self._nbytes = before
                    return {}
                self._take(owners, chunk, min(among, key=self._load))
        return owners

    def give(
        self,
        group: GroupView,
        owners: dict[ChunkId, MemberId],
        wanted: Sequence[MemberId],
        others: Sequence[MemberId],
    ) -> None:
        """Give the other chunks of a group to the emptiest that has room, the wanted ones first.

        Where nobody has any, the wanted ones get them all the same: the driver refuses it, and
        tells how much memory is lacking.
        """
        before, fits = (dict(self._rows), dict(self._nbytes)), True
        for chunk in group.chunks:
            if chunk not in owners:
                among = self._roomy(chunk, wanted) or self._roomy(chunk, others)
                fits = fits and bool(among)
                self._take(owners, chunk, min(among or wanted, key=self._load))
        if not fits:
            self._rows, self._nbytes = before

    def _load(self, member: MemberId) -> tuple[int, MemberId]:
        return self._member(member).rows + self._rows.get(member, 0), member

    def _member(self, member: MemberId) -> MemberView:
        return self._spares.get(member) or self._members[member]

    def _left(self, member: MemberId) -> int | None:
        """Bytes left when copies of others' chunks are dropped; None without a limit."""
        if member not in self._free:
            limit = self._member(member).limit_bytes
            self._free[member] = None if limit is None else self._rooms.left(member, limit)
        free = self._free[member]
        return None if free is None else free - self._nbytes.get(member, 0)

    def _roomy(self, chunk: ChunkId, members: Sequence[MemberId]) -> list[MemberId]:
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
        # Its own memory is taken already; other holders need their copies no longer.
        for other in holders - {member}:
            self._nbytes[other] = self._nbytes.get(other, 0) - nbytes


def _in_turn(group: GroupView, targets: Sequence[MemberId]) -> dict[ChunkId, MemberId]:
    """Give each former member's share to a target in turn, as a Readmit with targets does."""
    return {
        chunk: targets[k % len(targets)]
        for k, former in enumerate(group.former)
        for chunk in group.shares.get(former, ())
    }


def _former_slots_first(group: GroupView, free: Sequence[MemberView]) -> list[MemberView]:
    """Prefer members that stand where a vanished one stood: they may still have its chunks."""
    slots = {m.slot for m in group.former}
    return sorted(free, key=lambda m: (m.id.slot not in slots, m.id.slot))


def absence_policy(absent: str) -> WholeGroup | Reload:
    """Choose the readmission rule that goes with a job's ``absent`` setting."""
    return Reload() if absent == "reload" else WholeGroup()
