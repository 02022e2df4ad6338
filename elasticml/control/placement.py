"""Where chunks go: pure arithmetic on rows and members, without a ledger and without chance."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from elasticml.terms import ChunkId, ChunkInfo, MemberId


def contiguous(
    chunks: Sequence[ChunkInfo], members: Sequence[MemberId], partitions: int | None = None
) -> dict[ChunkId, MemberId]:
    """Deal chunks in file order so that every member gets an equal stretch of examples.

    A chunk goes to the partition in whose stretch its middle example lies, and with it to the
    member of that partition; without ``partitions`` there is one to a member.
    """
    total = sum(c.rows for c in chunks)
    n_parts = partitions or len(members)
    target: dict[ChunkId, MemberId] = {}
    before = 0
    for chunk in sorted(chunks, key=lambda c: c.id):
        middle = before + chunk.rows / 2
        part = min(int(middle * n_parts / total), n_parts - 1) if total else 0
        target[chunk.id] = members[part * len(members) // n_parts]
        before += chunk.rows
    return target


def to_emptiest(
    chunks: Sequence[ChunkInfo], rows: Mapping[MemberId, int]
) -> dict[ChunkId, MemberId]:
    """Hand chunks out one by one, each to whoever has the fewest examples by then."""
    heap = [(n, m) for m, n in rows.items()]
    heapq.heapify(heap)
    target: dict[ChunkId, MemberId] = {}
    for chunk in sorted(chunks, key=lambda c: c.id):
        n, member = heap[0]
        target[chunk.id] = member
        # A chunk without examples counts, too, so that they do not all go to one member.
        heapq.heapreplace(heap, (n + max(chunk.rows, 1), member))
    return target


def to_newcomers(
    owned: Mapping[MemberId, Sequence[ChunkInfo]], newcomers: Sequence[MemberId]
) -> dict[ChunkId, MemberId]:
    """Take chunks from the fullest members until the newcomers have an equal share.

    A move is made only where it narrows the difference between the two members.
    """
    rows = {m: sum(c.rows for c in chunks) for m, chunks in owned.items()}
    rows.update(dict.fromkeys(newcomers, 0))
    left = {m: sorted(chunks, key=lambda c: c.id) for m, chunks in owned.items()}
    moves: dict[ChunkId, MemberId] = {}
    while True:
        giver = max(left, key=lambda m: (rows[m], m), default=None)
        taker = min(newcomers, key=lambda m: (rows[m], m), default=None)
        if giver is None or taker is None or not left[giver]:
            return moves
        chunk = left[giver][-1]
        if rows[giver] - chunk.rows < rows[taker] + chunk.rows:
            return moves
        left[giver].pop()
        moves[chunk.id] = taker
        rows[giver] -= chunk.rows
        rows[taker] += chunk.rows


def fitting(
    chunks: Sequence[ChunkInfo], seconds: float, bytes_per_second: float
) -> list[ChunkInfo]:
    """Choose the chunks that can be moved in the time left: the most examples per byte first."""
    budget = max(0.0, seconds) * bytes_per_second
    chosen: list[ChunkInfo] = []
    for chunk in sorted(chunks, key=lambda c: (-c.rows / max(c.nbytes, 1), c.id)):
        if chunk.nbytes <= budget:
            chosen.append(chunk)
            budget -= chunk.nbytes
    return chosen
