"""Elastic scaling: chunks follow members that leave and join. Every job has this policy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Final, Literal

from elasticml.control.placement import fitting, to_emptiest, to_newcomers
from elasticml.control.policy import Chunks, MemberView, Move, Replicate, View
from elasticml.ids import ChunkId, ChunkInfo, MemberId
from elasticml.policies.load_balancing import LAST_CHUNK_MAX, ROUNDS_PER_TRIAL, slowdown

#: Longest time that a round is held up by bodies that a newcomer needs, as predicted.
HOLD_S_MAX: Final = 0.05


class ElasticScaling:
    """Move chunks off leaving members, and give newcomers a fair share of all members' chunks.

    Bodies that only a member holds whose end is near are copied while it still works, so that
    little has to be sent when it is drained.

    Source: "elastic scaling" of the uni-task paper: chunks of a task that ends go round-robin to
    the remaining ones; for a new task they are taken at random from every old one until the shares
    are equal. Deviations: a leaver sends as many chunks as fit into half of its grace period, those
    with a copy elsewhere first; balance counts examples instead of chunks; a leaver's replacement
    takes its chunks, too; no newcomer gets a share while it could readmit absent examples; with
    contiguous placement a newcomer gets consecutive chunks, so that few blocks are read again when
    it is lost; and it gets the bodies of its share as copies, in the background, before it becomes
    their owner, if moving them would hold up the round.

    Examples
    --------
    >>> em.policies.ElasticScaling().name
    'elastic_scaling'
    """

    name = "elastic_scaling"
    is_standing: Literal[True] = True

    def suggest(self, view: View) -> Sequence[Move | Replicate]:
        """Return the moves and copies that are due now."""
        if view.moving or view.chunks is None:
            return []
        moves = _from_leavers(view, view.chunks)
        changes = moves or _to_newcomers(view, view.chunks)
        return [*changes, *_ahead(view, view.chunks)]


def _infos(chunks: Chunks, member: MemberId) -> list[ChunkInfo]:
    return [
        ChunkInfo(id=c, rows=chunks.rows(c), nbytes=chunks.nbytes(c)) for c in chunks.of(member)
    ]


class _Owned(Mapping[MemberId, Sequence[ChunkInfo]]):
    """The chunks of each member, looked up when they are asked for: few members give any."""

    def __init__(self, chunks: Chunks, members: Collection[MemberId]) -> None:
        self._chunks = chunks
        self._members = members

    def __getitem__(self, member: MemberId) -> Sequence[ChunkInfo]:
        """Return the chunks that a member owns."""
        return _infos(self._chunks, member)

    def __iter__(self) -> Iterator[MemberId]:
        """Iterate over the members."""
        return iter(self._members)

    def __len__(self) -> int:
        """Count the members."""
        return len(self._members)


def _hosts(view: View) -> dict[MemberId, int]:
    """Return the members that can take leavers' chunks, each with its number of examples.

    Spares are included, because they may replace the leavers, unless absent chunks need them and
    other members work. Members whose containers are marked for preemption are excluded.
    """
    spares_are_needed = view.absent_rows > 0 and bool(view.working)
    hosts = view.steady_loads()
    return hosts if spares_are_needed else {**hosts, **{m.id: m.rows for m in view.spares}}


def _from_leavers(view: View, chunks: Chunks) -> list[Move]:
    """Move the chunks of leaving members to remaining ones, as many as the grace period allows."""
    load = _hosts(view) if view.leaving else {}
    if not load:
        return []
    targets: dict[ChunkId, MemberId] = {}
    for leaver in view.leaving:
        owned = _infos(chunks, leaver.id)
        holders = {c.id: chunks.holders(c.id) for c in owned}
        if leaver.deadline_s is not None:
            copied = {c for c, members in holders.items() if any(m in load for m in members)}
            left_s = 0.5 * (leaver.deadline_s - view.now_s)
            owned = fitting(owned, left_s, view.move_bytes_per_s, copied)
        moves = to_emptiest(owned, load, holders)
        targets.update(moves)
        for chunk, host in moves.items():
            load[host] += chunks.rows(chunk)
    leavers = ", ".join(str(m.id) for m in view.leaving)
    return [Move(targets=targets, why=f"{leavers} will go")] if targets else []


def _ahead(view: View, chunks: Chunks) -> list[Replicate]:
    """Copy the bodies that only members near their end hold."""
    if not view.has_ending:
        return []
    ending = [m for m in (*view.working, *view.leaving) if m.is_ending]
    load = _hosts(view) if ending else {}
    if not load:
        return []
    alone = [
        info
        for member in ending
        for info in _infos(chunks, member.id)
        if info.id not in view.copying and not chunks.holders(info.id) & load.keys()
    ]
    if not alone:
        return []
    why = f"{', '.join(str(m.id) for m in ending)} will go"
    return [Replicate(targets=to_emptiest(alone, load, {}), why=why)]


def _to_newcomers(view: View, chunks: Chunks) -> list[Move | Replicate]:
    """Give newcomers a fair share, unless absent chunks wait for them.

    A share whose bodies take long to send is copied first, while rounds go on. The shares of other
    newcomers do not wait for it.
    """
    if view.absent_rows or view.expected or not view.spares or not view.working:
        return []
    slow_by = {m.id: slowdown(m, view.working) for m in view.spares if m.seconds_per_row}
    newcomers = [m for m in view.spares if slow_by.get(m.id, 1.0) <= LAST_CHUNK_MAX]
    if not newcomers:
        return _trials(view, chunks, slow_by)
    rows = view.loads()
    held = {m.id: chunks.held_by(m.id) for m in newcomers}

    def shares(held: Mapping[MemberId, Collection[ChunkId]]) -> dict[ChunkId, MemberId]:
        return to_newcomers(
            _Owned(chunks, rows),
            [m.id for m in newcomers],
            (view.seed, view.round),
            held,
            is_contiguous=view.is_contiguous,
            rows=rows,
        )

    targets = shares(held)
    slow = {m.id for m in newcomers if _takes_long(view, chunks, m, targets)}
    suggestions: list[Move | Replicate] = []
    now = {c: m for c, m in targets.items() if m not in slow}
    if now:
        suggestions.append(Move(targets=now, why=f"a share for {_names(now.values())}"))
    if slow:
        # What is already on its way counts as held, so that each round wants the same copies.
        coming = {m: {c for c, to in view.copying.items() if to == m} for m in slow}
        planned = shares({m: held[m] | coming.get(m, set()) for m in held})
        ahead = {
            c: m
            for c, m in planned.items()
            if m in slow and c not in held[m] and c not in view.copying
        }
        if ahead:
            why = f"a share for {_names(ahead.values())}, copied first"
            suggestions.append(Replicate(targets=ahead, why=why))
    return suggestions


def _trials(
    view: View, chunks: Chunks, slow_by: Mapping[MemberId, float]
) -> list[Move | Replicate]:
    """Give one chunk now and then to members whose chunks were taken because they are slow."""
    due = [m for m, by in slow_by.items() if view.round % (ROUNDS_PER_TRIAL * ceil(by)) == 0]
    rows = view.loads()
    owned = chunks.of(max(rows, key=lambda m: (rows[m], m)))
    targets = dict(zip(sorted(owned, key=chunks.rows)[: len(owned) - 1], due, strict=False))
    return [Move(targets=targets, why=f"a trial of {_names(targets.values())}")] if targets else []


def _takes_long(
    view: View, chunks: Chunks, newcomer: MemberView, targets: Mapping[ChunkId, MemberId]
) -> bool:
    """Whether a newcomer's share should be copied before it moves."""
    lacking = [c for c, m in targets.items() if m == newcomer.id and m not in chunks.holders(c)]
    nbytes = sum(chunks.nbytes(c) for c in lacking)
    if nbytes <= HOLD_S_MAX * view.move_bytes_per_s:
        return False
    # Copies stay in memory; a share that does not fit moves to where there is a disk.
    limit = newcomer.in_memory_bytes
    coming = sum(chunks.nbytes(c) for c, to in view.copying.items() if to == newcomer.id)
    return limit is None or newcomer.held_bytes - coming + nbytes <= limit


def _names(members: Iterable[MemberId]) -> str:
    return ", ".join(str(m) for m in sorted(set(members)))
