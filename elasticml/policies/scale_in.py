"""Scale-in: how many members remain, which ones leave, and who receives their chunks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from elasticml.control.policy import Chunks, MemberView, Retire, View
from elasticml.ids import ChunkId, MemberId
from elasticml.policies.load_balancing import (
    assign_greedily,
    predicted_seconds,
    rows_owned,
    seconds_per_row,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalCost:
    """The cost of giving a member back."""

    member: MemberId
    #: Seconds to send the chunk bodies that no other member holds.
    moving_s: float
    #: Examples that the others take over.
    rows: int
    #: Seconds per example relative to the members' median; 1 if not measured.
    slowness: float


def removal_costs(view: View) -> list[RemovalCost]:
    """List the cost of giving back each working member, cheapest first.

    The order is by time to send, then the slowest, then the fewest examples, then the youngest.
    """
    measured = [m.seconds_per_row[-1] for m in view.working if m.seconds_per_row]
    median = statistics.median(measured) if measured else 0.0
    return sorted(
        (_cost(m, view, median) for m in view.working),
        key=lambda c: (
            c.moving_s,
            -c.slowness,
            c.rows,
            -c.member.incarnation,
            -c.member.slot,
        ),
    )


def cheapest(view: View, count: int) -> tuple[MemberId, ...]:
    """Return the ``count`` members that cost least to give back, cheapest first."""
    return tuple(cost.member for cost in removal_costs(view)[:count])


def _cost(member: MemberView, view: View, median: float) -> RemovalCost:
    chunks = view.chunks
    unique_bytes = 0
    if chunks is not None:
        others = {m.id for m in view.working if m != member}
        owned = chunks.of(member.id)
        unique_bytes = sum(chunks.nbytes(c) for c in owned if not others & chunks.holders(c))
    per_row = member.seconds_per_row[-1] if member.seconds_per_row else median
    return RemovalCost(
        member=member.id,
        moving_s=unique_bytes / view.move_bytes_per_s,
        rows=member.rows,
        slowness=per_row / median if median > 0 else 1.0,
    )


#: Numbers of members at which CoCoA was measured slowest: no single partition, and little
#: parallelism.
SMALL = (2, 3)
#: Rounds of the median of a member's speed.
ROUNDS = 4


def fewer(view: View, factor: int, *, minimum: int = 1, avoid: Sequence[int] = ()) -> int | None:
    """Return ``max(minimum, K / factor)`` members, or the next possible number.

    Sizes in ``avoid`` are skipped downwards as long as the data fit. A size whose memory cannot
    hold the data is raised to the smallest one that can.

    Returns
    -------
    int or None
        None if that is not fewer than the present members.
    """
    members = len(view.working)
    size = max(minimum, members // factor)
    while size in avoid and size > minimum:
        size -= 1
    while size < members and not fits(view, size):
        size += 1
    while size in avoid and minimum < size < members:
        size += 1
    return size if size < members else None


def fits(view: View, members: int) -> bool:
    """Whether all chunks fit into the memory of this many of the working members.

    The members with the most memory count; :func:`retire` chooses which ones remain. True if some
    limit is unknown.
    """
    if view.chunks is None:
        return True
    limits = [m.in_memory_bytes for m in view.working]
    finite = [limit for limit in limits if limit is not None]
    if len(finite) < len(limits):
        return True
    nbytes = sum(view.chunks.nbytes(c) for m in view.working for c in view.chunks.of(m.id))
    return nbytes <= sum(sorted(finite, reverse=True)[:members])


def retire(view: View, members: int, why: str, *, whole: bool = False) -> Retire:
    """Suggest a scale-in to ``members`` members.

    Parameters
    ----------
    view : View
    members : int
        How many remain.
    why : str
    whole : bool
        Order the members by their first chunk, and let one of each run of neighbours take all
        chunks of the run, as with static partitions. Otherwise the members that cost least leave,
        and their chunks are balanced over the others by seconds per example.
    """
    if whole:
        return _merge_neighbours(view, members, why)
    gone = cheapest(view, len(view.working) - members)
    kept = [m for m in view.working if m.id not in gone]
    if view.chunks is None:
        return Retire(members=gone, why=why)
    cost = seconds_per_row(view.working, ROUNDS)
    cost = {m.id: cost[m.id] for m in kept}
    load = predicted_seconds({m: rows_owned(view.chunks, m) for m in cost}, cost)
    orphans = sorted(chunk for m in gone for chunk in view.chunks.of(m))
    return Retire(members=gone, why=why, targets=assign_greedily(orphans, view.chunks, load, cost))


def _merge_neighbours(view: View, members: int, why: str) -> Retire:
    """Merge runs of neighbours; if K is a multiple of ``members``, whole static partitions."""
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
    """Predict how long a round waits for a scale-in to ``members`` members.

    Members send in parallel and receive in parallel. Bodies that a remaining member holds already
    do not travel.
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
