"""Chunk replication: copies of every chunk body on as many members, and hosts, as the job asks."""

from __future__ import annotations

from collections.abc import Sequence

from elasticml.control.policy import Chunks, Discard, MemberView, Replicate, View
from elasticml.control.seeded_random import shuffled
from elasticml.ids import ChunkId, MemberId

#: Copies move away from a member that holds more than this times an even share of the bytes.
CROWDED = 1.25


class ChunkReplication:
    """Copy chunk bodies until every chunk has enough holders, and drop surplus copies.

    A new holder is drawn at random among the members with free memory, on a host without a copy if
    possible, and such that all members hold about the same number of bytes. The random choice
    spreads a member's chunks over all others: after its loss each of them takes over a few, and any
    pair of members can exchange chunks. Copies concentrated on a few members, because these read
    the whole source or joined first, are therefore replaced by random ones before they are dropped.
    """

    name = "replicas"

    def __init__(self) -> None:
        #: The last situation in which nothing was to do; saves a scan of all chunks.
        self._settled_key: tuple[object, ...] | None = None

    def suggest(self, view: View) -> Sequence[Replicate | Discard]:
        """Return the copies to make and the surplus copies to drop."""
        chunks = view.chunks
        if chunks is None or view.holders < 2 or len(view.working) + len(view.spares) < 2:
            return []
        # Copies on a member near its end do not count.
        staying = {m.id: m for m in (*view.working, *view.spares) if not m.is_ending}
        if not staying:
            return []
        marked = tuple(sorted(m for m, view_of in staying.items() if view_of.is_marked))
        key = (view.changes, view.holders, marked, *sorted(staying))
        if key == self._settled_key:
            return []
        owned = [c for m in (*view.working, *view.leaving) for c in chunks.of(m.id)]
        hosts = len({m.host for m in staying.values()})
        missing: dict[ChunkId, MemberId] = {}
        surplus: dict[MemberId, list[ChunkId]] = {}
        load = {m: view_of.held_bytes for m, view_of in staying.items()}
        total = sum(chunks.nbytes(c) for c in owned)
        even = view.holders * total / len(staying)
        for chunk in shuffled(sorted(owned), view.seed, view.round):
            if chunk in view.copying:
                continue
            there = [staying[m] for m in sorted(chunks.holders(chunk)) if m in staying]
            spread = min(view.holders, hosts)
            if len(there) < view.holders or len({m.host for m in there}) < spread:
                target = _target(view, chunk, chunks.nbytes(chunk), there, staying, load)
                if target is not None:
                    missing[chunk] = target
                    load[target] += chunks.nbytes(chunk)
            elif len(there) == view.holders:
                extra = _extra(chunks, chunk, there, 1, load)
                if extra is None or load[extra] <= CROWDED * even:
                    continue
                left = [m for m in there if m.id != extra]
                target = _target(view, chunk, chunks.nbytes(chunk), left, staying, load)
                if target not in (None, extra) and load[target] < even:
                    missing[chunk] = target
                    load[target] += chunks.nbytes(chunk)
                    load[extra] -= chunks.nbytes(chunk)  # dropped once the new copy has arrived
            elif len(there) > view.holders:
                extra = _extra(chunks, chunk, there, spread, load)
                if extra is not None:
                    surplus.setdefault(extra, []).append(chunk)
        if not missing and not surplus and not view.copying:
            self._settled_key = key
        suggestions: list[Replicate | Discard] = []
        if missing:
            why = f"{len(missing)} chunks have too few holders apart, or on crowded members"
            suggestions.append(Replicate(targets=missing, why=why))
        for member, copies in sorted(surplus.items()):
            why = f"{len(copies)} copies more than {view.holders}"
            suggestions.append(Discard(member=member, chunks=tuple(sorted(copies)), why=why))
        return suggestions


def _target(
    view: View,
    chunk: ChunkId,
    nbytes: int,
    there: Sequence[MemberView],
    staying: dict[MemberId, MemberView],
    load: dict[MemberId, int],
) -> MemberId | None:
    """Draw a new holder, on a host without a copy if possible; None if no member has room."""
    taken, hosts = {m.id for m in there}, {m.host for m in there}
    fit = [
        m
        for m in sorted(staying.values(), key=lambda m: m.id)
        if m.id not in taken
        and not m.is_marked
        and (m.in_memory_bytes is None or load[m.id] + nbytes <= m.in_memory_bytes)
    ]
    apart = [m for m in fit if m.host not in hosts]
    if not apart and len(there) >= view.holders:
        return None  # enough copies, although not on separate hosts
    candidates = shuffled(apart or fit, view.seed, view.round, chunk.block, chunk.ordinal)
    # Power of two choices: the less loaded of two random members keeps loads nearly even.
    return min(candidates[:2], key=lambda m: load[m.id]).id if candidates else None


def _extra(
    chunks: Chunks,
    chunk: ChunkId,
    there: Sequence[MemberView],
    spread: int,
    load: dict[MemberId, int],
) -> MemberId | None:
    """Choose the copy to drop: on the fullest member, keeping the others on separate hosts."""
    owner = chunks.owner(chunk)
    for member in sorted(there, key=lambda m: (-load[m.id], m.id)):
        others = {m.host for m in there if m is not member}
        if member.id != owner and len(others) >= spread:
            return member.id
    return None
