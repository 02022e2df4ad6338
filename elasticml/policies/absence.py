"""When groups of absent chunks come back, and to whom."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

from elasticml.control.policy import GroupView, MemberView, Readmit, View
from elasticml.terms import ChunkId, MemberId


class WholeGroup:
    """Bring the oldest group back once as many members are free as vanished with it.

    With fewer newcomers than that for ``patience_s`` seconds, the group is spread over those that
    there are. With none, it is spread over those that work, as far as their memory has room: after
    ``patience_s`` if they are as many as the job began with, since nobody else need come then, and
    after ``alone_s`` otherwise, since a node may be lost for good. The paper's rule is
    ``patience_s=inf, alone_s=inf``.

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
        if 0 < view.start_members <= len(view.working):
            alone_s, why_alone = self.patience_s, ", and as many work as at the start"
        for group in view.groups:
            size = len(group.former)
            waited = view.now_s - group.absent_since_s
            if len(free) >= size:
                targets = _former_slots_first(group, free)[:size]
                why = f"{len(free)} members free, {size} needed"
            elif free and waited >= self.patience_s:
                targets = _former_slots_first(group, free)
                why = f"{len(free)} of {size} members free after {waited:.0f} s"
            elif not free and waited >= alone_s and (owners := homes.spread(group)):
                why = f"nobody free in {waited:.0f} s{why_alone}"
                found.append(Readmit(group=group.id, targets=(), why=why, owners=owners))
                continue
            elif self.first_fitting:
                continue
            else:
                break
            found.append(Readmit(group=group.id, targets=tuple(t.id for t in targets), why=why))
            free = [m for m in free if m not in targets]
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
            if owners or not homes.fit(group, targets):
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
    """What members that stay own, and what their memory has room for; grows with what is given."""

    def __init__(self, view: View) -> None:
        self._chunks = view.chunks
        self._view = view

    @cached_property
    def _members(self) -> tuple[MemberView, ...]:
        return (*self._view.steady, *self._view.spares)

    @cached_property
    def _rows(self) -> dict[MemberId, int]:
        return {m.id: m.rows for m in self._members}

    @cached_property
    def _left(self) -> dict[MemberId, int | None]:
        """Bytes left when copies of others' chunks are dropped; None without a limit."""
        return {m.id: self._room(m) for m in self._members}

    def _room(self, member: MemberView) -> int | None:
        chunks, limit = self._chunks, member.limit_bytes
        if chunks is None or limit is None:
            return None
        return limit - sum(chunks.nbytes(c) for c in chunks.of(member.id))

    def of_holders(self, group: GroupView) -> dict[ChunkId, MemberId]:
        """Give every chunk that somebody has to the emptiest of those who have it."""
        owners: dict[ChunkId, MemberId] = {}
        if self._chunks is None:
            return owners
        for chunk in group.chunks:
            holders = [m for m in self._chunks.holders(chunk) if m in self._rows]
            if holders:
                self._take(owners, chunk, min(holders, key=lambda m: (self._rows[m], m)))
        return owners

    def fit(self, group: GroupView, members: Sequence[MemberId]) -> bool:
        """Whether each of these has room for the group."""
        chunks, lefts = self._chunks, [self._left[m] for m in members]
        if chunks is None or all(left is None for left in lefts):
            return True
        nbytes = sum(chunks.nbytes(c) for c in group.chunks)
        return all(left is None or left >= nbytes for left in lefts)

    def spread(self, group: GroupView) -> dict[ChunkId, MemberId]:
        """Give every chunk to those who have it or else to the emptiest; nothing if not all fit."""
        owners = self.of_holders(group)
        for chunk in group.chunks:
            if chunk not in owners:
                if not (among := self._roomy(chunk, list(self._rows))):
                    return {}
                self._take(owners, chunk, min(among, key=lambda m: (self._rows[m], m)))
        return owners

    def give(
        self,
        group: GroupView,
        owners: dict[ChunkId, MemberId],
        wanted: Sequence[MemberId],
        others: Sequence[MemberId],
    ) -> None:
        """Give the other chunks of a group to the emptiest that has room, the wanted ones first."""
        for chunk in group.chunks:
            if chunk not in owners:
                among = self._roomy(chunk, wanted) or self._roomy(chunk, others) or wanted
                self._take(owners, chunk, min(among, key=lambda m: (self._rows[m], m)))

    def _roomy(self, chunk: ChunkId, members: Sequence[MemberId]) -> list[MemberId]:
        assert self._chunks is not None
        nbytes = self._chunks.nbytes(chunk)
        return [m for m in members if (left := self._left[m]) is None or left >= nbytes]

    def _take(self, owners: dict[ChunkId, MemberId], chunk: ChunkId, member: MemberId) -> None:
        assert self._chunks is not None
        owners[chunk] = member
        self._rows[member] += self._chunks.rows(chunk)
        left = self._left[member]
        self._left[member] = None if left is None else left - self._chunks.nbytes(chunk)


def _former_slots_first(group: GroupView, free: Sequence[MemberView]) -> list[MemberView]:
    """Prefer members that stand where a vanished one stood: they may still have its chunks."""
    slots = {m.slot for m in group.former}
    return sorted(free, key=lambda m: (m.id.slot not in slots, m.id.slot))


def absence_policy(absent: str) -> WholeGroup | Reload:
    """Choose the readmission rule that goes with a job's ``absent`` setting."""
    return Reload() if absent == "reload" else WholeGroup()
