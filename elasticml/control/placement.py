"""Placement of chunks on members: pure functions of rows, members and a seed."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from elasticml.control.policy import Chunks
from elasticml.control.seeded_random import shuffled
from elasticml.ids import ChunkId, ChunkInfo, MemberId, is_trained

#: Largest difference of a member's examples from the mean, as a share of the mean, with which the
#: chunks of data that lie on members stay where they were read.
UNEVEN_MAX: Final = 0.2


def contiguous(
    chunks: Sequence[ChunkInfo], members: Sequence[MemberId], partitions: int | None = None
) -> dict[ChunkId, MemberId]:
    """Assign each member a contiguous range of the file with an equal number of examples.

    A chunk goes to the partition that contains its middle example, and so to the member of that
    partition; without ``partitions`` there is one partition per member.
    """
    return _stretches(sorted(chunks, key=lambda c: c.id), members, partitions)


def scattered(
    chunks: Sequence[ChunkInfo],
    members: Sequence[MemberId],
    seed: int,
    partitions: int | None = None,
) -> dict[ChunkId, MemberId]:
    """Assign chunks in random order drawn from the seed, an equal number of examples per member.

    With ``partitions`` each partition is a random part of the examples, and a member gets whole
    partitions.
    """
    order = shuffled(sorted(chunks, key=lambda c: c.id), seed)
    return _stretches(order, members, partitions)


def evened(
    chunks: Sequence[ChunkInfo],
    owners: Mapping[ChunkId, MemberId | None],
    members: Sequence[MemberId],
) -> dict[ChunkId, MemberId]:
    """Leave chunks with the members that read them, unless those differ much in examples.

    Chunks move from the fullest to the emptiest member, the last ones first, while one of the two
    differs from the mean by more than a fifth and the move makes their difference smaller. Chunks
    of other owners go to the emptiest member.

    Parameters
    ----------
    owners : mapping
        The member that read each chunk.
    """
    target = {c: m for c, m in owners.items() if m is not None and m in members}
    rows = dict.fromkeys(members, 0)
    owned: dict[MemberId, list[ChunkInfo]] = {m: [] for m in members}
    homeless: list[ChunkInfo] = []
    for chunk in sorted(chunks, key=lambda c: c.id):
        member = target.get(chunk.id)
        if member is None:
            homeless.append(chunk)
            continue
        rows[member] += chunk.rows
        owned[member].append(chunk)
    for chunk in homeless:
        member = target[chunk.id] = min(members, key=lambda m: (rows[m], m))
        rows[member] += chunk.rows
        owned[member].append(chunk)
    mean = sum(rows.values()) / len(members)
    while True:
        giver, taker = max(members, key=lambda m: (rows[m], m)), min(members, key=lambda m: rows[m])
        if rows[giver] <= (1 + UNEVEN_MAX) * mean and rows[taker] >= (1 - UNEVEN_MAX) * mean:
            return target
        gap, chunks_there = rows[giver] - rows[taker], owned[giver]
        at = next(
            (k for k in reversed(range(len(chunks_there))) if 0 < chunks_there[k].rows < gap), None
        )
        if at is None:
            return target
        chunk = chunks_there.pop(at)
        target[chunk.id] = taker
        rows[giver] -= chunk.rows
        rows[taker] += chunk.rows
        owned[taker].insert(0, chunk)


def _stretches(
    order: Sequence[ChunkInfo], members: Sequence[MemberId], partitions: int | None
) -> dict[ChunkId, MemberId]:
    trained = [(c.id, c.rows) for c in order if is_trained(c.id)]
    # They have no training rows, and take as long to score as they are large.
    held = [(c.id, c.nbytes) for c in order if not is_trained(c.id)]
    n_parts = partitions or len(members)
    target: dict[ChunkId, MemberId] = {}
    for sized in (trained, held):
        total = sum(size for _, size in sized)
        before = 0
        for id, size in sized:
            middle = before + size / 2
            part = min(int(middle * n_parts / total), n_parts - 1) if total else 0
            target[id] = members[part * len(members) // n_parts]
            before += size
    return target


def to_emptiest(
    chunks: Sequence[ChunkInfo],
    rows: Mapping[MemberId, int],
    holders: Mapping[ChunkId, Collection[MemberId]] | None = None,
) -> dict[ChunkId, MemberId]:
    """Assign chunks one by one to the member with the fewest examples so far.

    Chunks that some of the members hold are assigned first, to their emptiest holder: only their
    state has to be sent.

    Parameters
    ----------
    chunks : sequence of ChunkInfo
    rows : mapping
        Examples of each member.
    holders : mapping, optional
        Holders of each chunk's body.
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
        # A chunk without examples counts as one, so that not all of them go to one member.
        heapq.heapreplace(heap, (n + max(chunk.rows, 1), member))
    return target


def to_newcomers(
    owned: Mapping[MemberId, Sequence[ChunkInfo]],
    newcomers: Sequence[MemberId],
    keys: Sequence[int] = (),
    held: Mapping[MemberId, Collection[ChunkId]] | None = None,
    *,
    is_contiguous: bool = False,
    rows: Mapping[MemberId, int] | None = None,
) -> dict[ChunkId, MemberId]:
    """Move chunks from the fullest members until the newcomers have an equal share.

    A move is made only if it reduces the difference between the two members. Chunks that a newcomer
    already holds, from an earlier incarnation or as a copy, go to it first.

    Source: the uni-task paper's elastic scaling. Deviations: held chunks go first, and
    ``is_contiguous``.

    Parameters
    ----------
    owned : mapping
        Chunks owned by each giving member.
    newcomers : sequence of MemberId
    keys : sequence of int
        Keys of the random choice: a seed, a round.
    held : mapping, optional
        Chunks whose body each newcomer holds.
    is_contiguous : bool
        Take each giver's last chunks instead of random ones, and give each newcomer consecutive
        ones: they are of few blocks, and a block is read whole when the newcomer is lost.
    rows : mapping, optional
        Examples of each giving member, so that only the fullest ones' chunks are looked up.
    """
    if rows is None:
        rows = {m: sum(c.rows for c in chunks) for m, chunks in owned.items()}
    rows = dict(rows)
    rows.update(dict.fromkeys(newcomers, 0))
    left: dict[MemberId, dict[ChunkId, ChunkInfo]] = {}
    all_held = {c for chunks in (held or {}).values() for c in chunks}

    def left_to(giver: MemberId) -> dict[ChunkId, ChunkInfo]:
        # Ordered when it is the fullest for the first time; most members never are.
        if giver not in left:
            order = sorted(owned[giver], key=lambda c: c.id)
            if not is_contiguous:
                order = shuffled(order, *keys, giver.slot)
            # Taken from the end: what a newcomer holds is left to it as long as possible.
            order.sort(key=lambda c: c.id not in all_held)
            left[giver] = {c.id: c for c in order}
        return left[giver]

    # Heaps of givers, fullest first, and takers, emptiest first; stale entries are refreshed.
    givers = [(-rows[m], -m.slot, -m.incarnation, m) for m in owned]
    takers = [(rows[m], m) for m in newcomers]
    heapq.heapify(givers)
    heapq.heapify(takers)
    ready: dict[tuple[MemberId, MemberId], list[ChunkId]] = {}
    moves: dict[ChunkId, MemberId] = {}
    sizes: dict[ChunkId, int] = {}
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
            here = (held or {}).get(taker, ())
            ready[taker, giver] = [c for c in there if c in here] if here else []
        copies = ready[taker, giver]
        while copies and copies[-1] not in there:
            copies.pop()
        chunk = there[copies[-1] if copies else next(reversed(there))]
        most = (rows[giver] - rows[taker]) / 2
        if is_contiguous and chunk.rows > most:
            # The last chunk may be the largest: another one may still help.
            chunk = next((c for c in reversed(there.values()) if c.rows <= most), chunk)
        if chunk.rows > most:
            break
        del there[chunk.id]
        moves[chunk.id] = taker
        sizes[chunk.id] = chunk.rows
        rows[giver] -= chunk.rows
        rows[taker] += chunk.rows
    if is_contiguous and len(newcomers) > 1:
        moves |= _consecutive(moves, newcomers, sizes, held or {})
    return moves


def _consecutive(
    moves: Mapping[ChunkId, MemberId],
    newcomers: Sequence[MemberId],
    rows: Mapping[ChunkId, int],
    held: Mapping[MemberId, Collection[ChunkId]],
) -> dict[ChunkId, MemberId]:
    """Exchange chunks that newcomers do not hold, so that each gets consecutive ones.

    Nothing is exchanged if a newcomer would have more examples than the fullest one has now.
    """
    now = dict.fromkeys(newcomers, 0)
    for chunk, member in moves.items():
        now[member] += rows[chunk]
    rest = sorted(c for c, m in moves.items() if c not in held.get(m, ()))
    load, level = dict(now), sum(now.values()) / len(newcomers)
    for chunk in rest:
        load[moves[chunk]] -= rows[chunk]
    target, waiting = dict[ChunkId, MemberId](), sorted(newcomers, reverse=True)
    for chunk in rest:
        while len(waiting) > 1 and load[waiting[-1]] + rows[chunk] / 2 > level:
            waiting.pop()
        target[chunk] = waiting[-1]
        load[waiting[-1]] += rows[chunk]
    return target if max(load.values()) <= max(now.values()) else {}


def fitting(
    chunks: Sequence[ChunkInfo],
    seconds: float,
    bytes_per_second: float,
    copied: Collection[ChunkId] = (),
) -> list[ChunkInfo]:
    """Choose chunks that can be moved in the time left, those with most examples per byte first.

    The bodies of chunks in ``copied`` need not be sent; they fit if there is any time.
    """
    budget = max(0.0, seconds) * bytes_per_second
    chosen: list[ChunkInfo] = [c for c in chunks if c.id in copied and seconds > 0]
    rest = [c for c in chunks if c.id not in copied]
    for chunk in sorted(rest, key=lambda c: (-c.rows / max(c.nbytes, 1), c.id)):
        if chunk.nbytes <= budget:
            chosen.append(chunk)
            budget -= chunk.nbytes
    return chosen


class MemoryBudget:
    """Free memory of members.

    Parameters
    ----------
    chunks : Chunks
        The ledger.
    coming : mapping
        Chunks on their way to a new owner.
    """

    def __init__(self, chunks: Chunks, coming: Mapping[ChunkId, MemberId]) -> None:
        self._chunks = chunks
        self._coming = coming
        self._to: dict[MemberId, set[ChunkId]] = {}
        for chunk, member in coming.items():
            self._to.setdefault(member, set()).add(chunk)

    def left(self, member: MemberId, limit_bytes: int) -> int:
        """Return the free bytes without spare copies; negative if the member is over its limit.

        Not spare are the chunks that the member owns, those on their way to it, and copies of
        chunks whose owner, present or future, does not hold the body.
        """
        chunks = self._chunks
        kept = {*chunks.of(member), *self._to.get(member, ())}
        kept |= {c for c in chunks.held_by(member) - kept if not self._is_elsewhere(c)}
        return limit_bytes - sum(chunks.nbytes(c) for c in kept)

    def _is_elsewhere(self, chunk: ChunkId) -> bool:
        owner = self._chunks.owner(chunk)
        home = self._coming.get(chunk) if owner is None else owner
        return home is not None and (home == owner or home in self._chunks.holders(chunk))
