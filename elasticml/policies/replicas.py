"""Every chunk's body on as many members as the job wants, on different hosts if there are any."""

from __future__ import annotations

from collections.abc import Sequence

from elasticml.control.chance import shuffled
from elasticml.control.policy import Chunks, Discard, MemberView, Replicate, View
from elasticml.terms import ChunkId, MemberId

#: A member that holds more than this times an even share of the bytes is relieved of copies.
CROWDED = 1.25


class Replicas:
    """Have bodies copied until every chunk has its holders, and drop what is more than that.

    A further holder is drawn at random, on another host than those that hold the chunk where that
    is possible, and so that all members hold about as many bytes; members that have no memory left
    get nothing. The random choice spreads a member's chunks over all others: after its loss each of
    them takes over a few, and all of them can be dealt each other's chunks. So copies that came
    about otherwise, on a few members that have read everything, or that were there before others
    came, are drawn anew elsewhere before they are dropped.
    """

    name = "replicas"

    def __init__(self) -> None:
        #: The facts at which there was nothing to do: looking at every chunk takes a while.
        self._content_with: tuple[object, ...] | None = None

    def suggest(self, view: View) -> Sequence[Replicate | Discard]:
        """Return the copies that are missing, and those that are too many."""
        chunks = view.chunks
        if chunks is None or view.holders < 2 or len(view.working) + len(view.spares) < 2:
            return []
        staying = {m.id: m for m in (*view.working, *view.spares)}
        marked = tuple(sorted(m for m, view_of in staying.items() if view_of.is_marked))
        facts = (view.changes, view.holders, marked, *sorted(staying))
        if facts == self._content_with:
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
                    load[extra] -= chunks.nbytes(chunk)  # dropped when the new copy is there
            elif len(there) > view.holders:
                extra = _extra(chunks, chunk, there, spread, load)
                if extra is not None:
                    surplus.setdefault(extra, []).append(chunk)
        if not missing and not surplus and not view.copying:
            self._content_with = facts
        found: list[Replicate | Discard] = []
        if missing:
            why = f"{len(missing)} chunks have too few holders apart, or on crowded members"
            found.append(Replicate(targets=missing, why=why))
        for member, copies in sorted(surplus.items()):
            why = f"{len(copies)} copies more than {view.holders}"
            found.append(Discard(member=member, chunks=tuple(sorted(copies)), why=why))
        return found


def _target(
    view: View,
    chunk: ChunkId,
    nbytes: int,
    there: Sequence[MemberView],
    staying: dict[MemberId, MemberView],
    load: dict[MemberId, int],
) -> MemberId | None:
    """Draw a further holder: another host first, then among the emptier half."""
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
        return None  # there are enough, if not apart
    among = shuffled(apart or fit, view.seed, view.round, chunk.block, chunk.ordinal)
    # Of two drawn at random the emptier one: as random as can be, and nearly even.
    return min(among[:2], key=lambda m: load[m.id]).id if among else None


def _extra(
    chunks: Chunks,
    chunk: ChunkId,
    there: Sequence[MemberView],
    spread: int,
    load: dict[MemberId, int],
) -> MemberId | None:
    """Choose the copy to drop: on the fullest member, so that the others are still apart."""
    owner = chunks.owner(chunk)
    for member in sorted(there, key=lambda m: (-load[m.id], m.id)):
        others = {m.host for m in there if m is not member}
        if member.id != owner and len(others) >= spread:
            return member.id
    return None
