"""Which of a member's chunks belong to which of its groups."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from elasticml.algorithms.cocoa.orders import mixed
from elasticml.terms import ChunkId

#: Of the largest chunk, how much a group may hold above an equal share before others get its like.
_SLACK: Final = 0.5


def dealt(ids: Sequence[ChunkId], sizes: Sequence[float], n: int, draw: int = 0) -> list[int]:
    """Deal chunks into groups of about equal sizes, so that chunks that come or go move few others.

    Each chunk ranks the groups by a hash of its own. Chunks, the largest first, take the first
    group of their ranking that is not full; one that finds all of them full takes the emptiest. So
    a chunk that leaves makes room for one that its group had turned away, and that is about all.

    Parameters
    ----------
    sizes : sequence of float, as many
        Not negative; stored values, for instance.
    n : int
        Groups, >= 1.
    draw : int
        Another one deals all chunks anew.

    Returns
    -------
    list of int in [0, n), as many
        A function of the arguments alone, whatever their order and whatever was dealt before.

    Source: rendezvous hashing (Thaler and Ravishankar, 1998) with bounded loads.
    """
    if n == 1:
        return [0] * len(ids)
    room = sum(sizes) / n + _SLACK * max(sizes, default=0.0)
    hashes = [mixed(draw, zlib.crc32(str(id).encode())) for id in ids]
    loads, groups = [0.0] * n, [0] * len(ids)
    for i in sorted(range(len(ids)), key=lambda i: (-_class_of(sizes[i]), hashes[i], ids[i])):
        ranking = sorted(range(n), key=lambda k: mixed(hashes[i], k))
        free = [k for k in ranking if loads[k] + sizes[i] <= room]
        groups[i] = free[0] if free else min(ranking, key=lambda k: loads[k])
        loads[groups[i]] += sizes[i]
    return groups


def _class_of(size: float) -> int:
    """Return the size's power of two: within it, chunks go by their hashes and not by size."""
    return int(size).bit_length()
