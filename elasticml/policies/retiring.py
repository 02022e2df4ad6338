"""How many members stay at a scale-in, which, and who gets the chunks of the others."""

from __future__ import annotations

from collections.abc import Sequence

from elasticml.control.policy import Chunks, Retire, View
from elasticml.policies.cheapest import cheapest
from elasticml.policies.speeds import predicted_seconds, rows_owned, seconds_per_row, spread
from elasticml.terms import ChunkId, MemberId

#: Numbers of members at which CoCoA was measured slowest of all: no longer one partition, not yet
#: many hands.
SMALL = (2, 3)
#: Rounds that the median of a member's speed looks back.
ROUNDS = 4


def fewer(view: View, factor: int, *, minimum: int = 1, avoid: Sequence[int] = ()) -> int | None:
    """Return ``max(minimum, K / factor)`` members, or what comes next that is possible.

    Sizes to avoid are passed over downwards, as long as the data fit; a size on which the data do
    not fit is raised to the smallest one that they do fit.

    Returns
    -------
    int or None
        None where that would not be fewer than there are.
    """
    members = len(view.working)
    wanted = max(minimum, members // factor)
    while wanted in avoid and wanted > minimum:
        wanted -= 1
    while wanted < members and not fits(view, wanted):
        wanted += 1
    while wanted in avoid and minimum < wanted < members:
        wanted += 1
    return wanted if wanted < members else None


def fits(view: View, members: int) -> bool:
    """Whether all chunks fit on so many of the members that work now, as far as limits are known.

    The roomiest are taken: which ones do stay is :func:`retire`'s business.
    """
    if view.chunks is None:
        return True
    limits = [m.in_memory_bytes for m in view.working]
    known = [limit for limit in limits if limit is not None]
    if len(known) < len(limits):
        return True
    nbytes = sum(view.chunks.nbytes(c) for m in view.working for c in view.chunks.of(m.id))
    return nbytes <= sum(sorted(known, reverse=True)[:members])


def retire(view: View, members: int, why: str, *, whole: bool = False) -> Retire:
    """Make the suggestion that leaves so many members.

    Parameters
    ----------
    view : View
    members : int
        How many stay.
    why : str
    whole : bool
        Members stand in the order of their first chunk, and every stretch of them leaves all its
        chunks to one of its own, as with static partitions; else those go whose loss costs least,
        and their chunks are spread evenly over the others, seconds per example considered.
    """
    if whole:
        return _merged(view, members, why)
    gone = cheapest(view, len(view.working) - members)
    kept = [m for m in view.working if m.id not in gone]
    if view.chunks is None:
        return Retire(members=gone, why=why)
    cost = seconds_per_row(view.working, ROUNDS)
    cost = {m.id: cost[m.id] for m in kept}
    load = predicted_seconds({m: rows_owned(view.chunks, m) for m in cost}, cost)
    given = sorted(chunk for m in gone for chunk in view.chunks.of(m))
    return Retire(members=gone, why=why, targets=spread(given, view.chunks, load, cost))


def _merged(view: View, members: int, why: str) -> Retire:
    """Merge stretches of neighbours: with K a multiple of the rest, whole static partitions."""
    chunks = view.chunks
    order = [m.id for m in view.working]
    if chunks is not None:
        order.sort(key=lambda m: (chunks.of(m)[:1], m))
    heirs: dict[int, MemberId] = {}
    targets: dict[ChunkId, MemberId] = {}
    gone: list[MemberId] = []
    for place, member in enumerate(order):
        heir = heirs.setdefault(place * members // len(order), member)
        if heir != member:
            gone.append(member)
            targets.update(_all_to(chunks, member, heir))
    return Retire(members=tuple(gone), why=why, targets=targets if chunks is not None else None)


def _all_to(chunks: Chunks | None, member: MemberId, heir: MemberId) -> dict[ChunkId, MemberId]:
    return dict.fromkeys(chunks.of(member), heir) if chunks is not None else {}


def pause_seconds(view: View, members: int) -> float:
    """Predict how long a round waits for a scale-in to so many members.

    Members send side by side, and those that stay receive side by side; bodies that one of them
    holds already do not travel.
    """
    if view.chunks is None:
        return 0.0
    count = len(view.working)
    gone = set(cheapest(view, count - members)) if members < count else {m.id for m in view.working}
    kept = {m.id for m in view.working} - gone
    sent = [
        sum(view.chunks.nbytes(c) for c in view.chunks.of(m) if not kept & view.chunks.holders(c))
        for m in gone
    ]
    received = sum(sent) / max(len(kept), 1) if kept else 0.0
    return max([*sent, received], default=0.0) / view.move_bytes_per_s
