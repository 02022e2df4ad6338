"""Memory budget: the free memory of members once they have dropped all spare copies."""

from __future__ import annotations

from collections.abc import Mapping

from elasticml.control.policy import Chunks
from elasticml.ids import ChunkId, MemberId


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
