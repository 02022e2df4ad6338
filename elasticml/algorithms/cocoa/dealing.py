"""Assign a member's chunks to its groups."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from elasticml.algorithms.cocoa.orders import mix_hash
from elasticml.terms import ChunkId

#: Load that a group may have above an equal share, in units of the largest chunk.
_SLACK: Final = 0.5


def dealt(ids: Sequence[ChunkId], sizes: Sequence[float], n: int, draw: int = 0) -> list[int]:
    """Assign chunks to groups of similar size so that a change of chunks moves few others.

    Each chunk ranks the groups by its own hash. Chunks, the largest first, take the first group of
    their ranking that has room; if none has, the emptiest. A chunk that leaves then makes room for
    a chunk that its group had turned away, and moves little else.

    Parameters
    ----------
    sizes : sequence of float
        One for each chunk, nonnegative; for example stored values.
    n : int
        Groups, >= 1.
    draw : int
        Seed: another value redraws the whole assignment.

    Returns
    -------
    list of int in [0, n)
        One for each chunk; a function of the arguments alone, independent of the chunks' order and
        of earlier assignments.

    Source: rendezvous hashing (Thaler and Ravishankar, 1998) with bounded loads.
    """
    if n == 1:
        return [0] * len(ids)
    room = sum(sizes) / n + _SLACK * max(sizes, default=0.0)
    hashes = [mix_hash(draw, zlib.crc32(str(id).encode())) for id in ids]
    loads, groups = [0.0] * n, [0] * len(ids)
    for i in sorted(range(len(ids)), key=lambda i: (-_class_of(sizes[i]), hashes[i], ids[i])):
        ranking = sorted(range(n), key=lambda k: mix_hash(hashes[i], k))
        free = [k for k in ranking if loads[k] + sizes[i] <= room]
        groups[i] = free[0] if free else min(ranking, key=lambda k: loads[k])
        loads[groups[i]] += sizes[i]
    return groups


def _class_of(size: float) -> int:
    """Return the size's power of two: within it, chunks are ordered by hash and not by size."""
    return int(size).bit_length()
