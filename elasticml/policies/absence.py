"""When groups of absent chunks come back, and to whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from elasticml.control.policy import Chunks, GroupView, MemberView, Readmit, View
from elasticml.terms import ChunkId, MemberId


class WholeGroup:
    """Bring the oldest group back once as many members are free as vanished with it.

    With fewer newcomers than that for ``patience_s`` seconds, the group is spread over those that
    there are; the paper's rule is ``patience_s=inf``.

    Source: Algorithm 2 of the resource-elastic paper, lines 18-21. Deviations: patience, and
    ``first_fitting``, which lets a later, smaller group pass a large one that waits at the head.

    Parameters
    ----------
    patience_s : float
        Seconds, >= 0.
    first_fitting : bool
    """

    name = "whole_group"
    is_standing: Literal[True] = True

    def __init__(self, patience_s: float = 30.0, first_fitting: bool = False) -> None:
        self.patience_s = patience_s
        self.first_fitting = first_fitting

    def suggest(self, view: View) -> Sequence[Readmit]:
        """Return the groups to bring back now."""
        free = list(view.spares)
        found: list[Readmit] = []
        for group in view.groups:
            size = len(group.former)
            waited = view.now_s - group.absent_since_s
            if len(free) >= size:
                targets = _former_slots_first(group, free)[:size]
                why = f"{len(free)} members free, {size} needed"
            elif free and waited >= self.patience_s:
                targets = _former_slots_first(group, free)
                why = f"{len(free)} of {size} members free after {waited:.0f} s"
            elif self.first_fitting:
                continue
            else:
                break
            found.append(Readmit(group=group.id, targets=tuple(t.id for t in targets), why=why))
            free = [m for m in free if m not in targets]
        return found


class Reload:
    """Bring every group back at once: on those who have its bodies where all of them are held.

    Else on free members where there are any, and on survivors where there are none.
    """

    name = "reload"
    is_standing: Literal[True] = True

    def suggest(self, view: View) -> Sequence[Readmit]:
        """Return the groups to bring back now: all of them."""
        free = list(view.spares)
        found: list[Readmit] = []
        load = {m.id: m.rows for m in (*view.working, *view.spares)}
        for group in view.groups:
            owners = None if view.chunks is None else _on_holders(group, view.chunks, load)
            if owners is not None:
                found.append(Readmit(group=group.id, targets=(), why="copies", owners=owners))
                free = [m for m in free if m.id not in set(owners.values())]
                continue
            hosts = free or sorted(view.working, key=lambda m: (m.rows, m.id))
            if not hosts:
                break
            found.append(
                Readmit(
                    group=group.id,
                    targets=tuple(m.id for m in hosts[: max(len(group.former), 1)]),
                    why="free members" if free else "read again on survivors",
                )
            )
            free = free[len(group.former) :]
        return found


def _on_holders(
    group: GroupView, chunks: Chunks, load: dict[MemberId, int]
) -> dict[ChunkId, MemberId] | None:
    """Give every chunk to the emptiest of those who have its body; None where one has nobody.

    ``load`` is how many examples each member has that stays; what is given is added to it.
    """
    after = dict(load)
    owners: dict[ChunkId, MemberId] = {}
    for chunk in group.chunks:
        holders = [m for m in chunks.holders(chunk) if m in after]
        if not holders:
            return None
        owner = owners[chunk] = min(holders, key=lambda m: (after[m], m))
        after[owner] += chunks.rows(chunk)
    load.update(after)
    return owners if owners else None


def _former_slots_first(group: GroupView, free: Sequence[MemberView]) -> list[MemberView]:
    """Prefer members that stand where a vanished one stood: they may still have its chunks."""
    slots = {m.slot for m in group.former}
    return sorted(free, key=lambda m: (m.id.slot not in slots, m.id.slot))


def absence_policy(absent: str) -> WholeGroup | Reload:
    """Choose the readmission rule that goes with a job's ``absent`` setting."""
    return Reload() if absent == "reload" else WholeGroup()
