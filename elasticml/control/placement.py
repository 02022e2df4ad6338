"""Where chunks go: pure arithmetic on rows and members, without a ledger; chance is a seed."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence

from elasticml.control.chance import shuffled
from elasticml.terms import ChunkId, ChunkInfo, MemberId


def contiguous(
    chunks: Sequence[ChunkInfo], members: Sequence[MemberId], partitions: int | None = None
) -> dict[ChunkId, MemberId]:
    """Deal chunks in file order so that every member gets an equal stretch of examples.

    A chunk goes to the partition in whose stretch its middle example lies, and with it to the
    member of that partition; without ``partitions`` there is one to a member.
    """
    return _stretches(sorted(chunks, key=lambda c: c.id), members, partitions)


def scattered(
    chunks: Sequence[ChunkInfo],
    members: Sequence[MemberId],
    seed: int,
    partitions: int | None = None,
) -> dict[ChunkId, MemberId]:
    """Deal chunks in an order drawn from the seed, as many examples to each member.

    With ``partitions`` each of them is a random part of the examples, and a member has whole ones.
    """
    order = shuffled(sorted(chunks, key=lambda c: c.id), seed)
    return _stretches(order, members, partitions)


def _stretches(
    order: Sequence[ChunkInfo], members: Sequence[MemberId], partitions: int | None
) -> dict[ChunkId, MemberId]:
    total = sum(c.rows for c in order)
    n_parts = partitions or len(members)
    target: dict[ChunkId, MemberId] = {}
    before = 0
    for chunk in order:
        middle = before + chunk.rows / 2
        part = min(int(middle * n_parts / total), n_parts - 1) if total else 0
        target[chunk.id] = members[part * len(members) // n_parts]
        before += chunk.rows
    return target


def to_emptiest(
    chunks: Sequence[ChunkInfo],
    rows: Mapping[MemberId, int],
    holders: Mapping[ChunkId, Collection[MemberId]] | None = None,
) -> dict[ChunkId, MemberId]:
    """Hand chunks out one by one, each to whoever has the fewest examples by then.

    Chunks with a copy among the members come first and go to their emptiest holder: only their
    state has to travel.

    Parameters
    ----------
    chunks : sequence of ChunkInfo
    rows : mapping
        The members, and how many examples each has.
    holders : mapping, optional
        Who has a copy of each chunk's body.
    """
    load = dict(rows)
    target: dict[ChunkId, MemberId] = {}
    rest: list[ChunkInfo] = []
    for chunk in sorted(chunks, key=lambda c: c.id):
        among = [m for m in (holders or {}).get(chunk.id, ()) if m in load]
        if not among:
            rest.append(chunk)
            continue
        member = target[chunk.id] = min(among, key=lambda m: (load[m], m))
        load[member] += chunk.rows
    heap = [(n, m) for m, n in load.items()]
    heapq.heapify(heap)
    for chunk in rest:
        n, member = heap[0]
        target[chunk.id] = member
        # A chunk without examples counts, too, so that they do not all go to one member.
        heapq.heapreplace(heap, (n + max(chunk.rows, 1), member))
    return target


def to_newcomers(
    owned: Mapping[MemberId, Sequence[ChunkInfo]],
    newcomers: Sequence[MemberId],
    keys: Sequence[int] = (),
    held: Mapping[MemberId, Collection[ChunkId]] | None = None,
) -> dict[ChunkId, MemberId]:
    """Take chunks at random from the fullest members until the newcomers have an equal share.

    A move is made only where it narrows the difference between the two members. What a newcomer
    holds already, from an earlier life or as a copy, goes to it before anything else.

    Source: the uni-task paper's elastic scaling; deviation: what is held goes first.

    Parameters
    ----------
    owned : mapping
        What each member owns that gives.
    newcomers : sequence of MemberId
    keys : sequence of int
        What chance depends on: a seed, a round.
    held : mapping, optional
        Chunks whose body each newcomer has.
    """
    rows = {m: sum(c.rows for c in chunks) for m, chunks in owned.items()}
    rows.update(dict.fromkeys(newcomers, 0))
    left: dict[MemberId, dict[ChunkId, ChunkInfo]] = {}

    def left_to(giver: MemberId) -> dict[ChunkId, ChunkInfo]:
        # Drawn when it is the fullest for the first time; most members never are.
        if giver not in left:
            order = shuffled(sorted(owned[giver], key=lambda c: c.id), *keys, giver.slot)
            left[giver] = {c.id: c for c in order}
        return left[giver]

    # Of each pair the fullest giver and the emptiest taker; entries may have been overtaken.
    givers = [(-rows[m], -m.slot, -m.incarnation, m) for m in owned]
    takers = [(rows[m], m) for m in newcomers]
    heapq.heapify(givers)
    heapq.heapify(takers)
    ready: dict[tuple[MemberId, MemberId], list[ChunkId]] = {}
    moves: dict[ChunkId, MemberId] = {}
    while givers and takers:
        giver, taker = givers[0][3], takers[0][1]
        if -givers[0][0] != rows[giver]:
            heapq.heapreplace(givers, (-rows[giver], -giver.slot, -giver.incarnation, giver))
            continue
        if takers[0][0] != rows[taker]:
            heapq.heapreplace(takers, (rows[taker], taker))
            continue
        there = left_to(giver)
        if not there:
            break
        if (taker, giver) not in ready:
            held_there = (held or {}).get(taker, ())
            ready[taker, giver] = [c for c in there if c in held_there] if held_there else []
        copies = ready[taker, giver]
        while copies and copies[-1] not in there:
            copies.pop()
        chunk = there[copies[-1] if copies else next(reversed(there))]
        if rows[giver] - chunk.rows < rows[taker] + chunk.rows:
            break
        del there[chunk.id]
        moves[chunk.id] = taker
        rows[giver] -= chunk.rows
        rows[taker] += chunk.rows
    return moves


def fitting(
    chunks: Sequence[ChunkInfo],
    seconds: float,
    bytes_per_second: float,
    copied: Collection[ChunkId] = (),
) -> list[ChunkInfo]:
    """Choose the chunks that can be moved in the time left: the most examples per byte first.

    Of those in ``copied`` the body need not travel; they fit as long as there is any time.
    """
    budget = max(0.0, seconds) * bytes_per_second
    chosen: list[ChunkInfo] = [c for c in chunks if c.id in copied and seconds > 0]
    rest = [c for c in chunks if c.id not in copied]
    for chunk in sorted(rest, key=lambda c: (-c.rows / max(c.nbytes, 1), c.id)):
        if chunk.nbytes <= budget:
            chosen.append(chunk)
            budget -= chunk.nbytes
    return chosen
