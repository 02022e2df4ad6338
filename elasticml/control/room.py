"""What the memory of members has room for, once they have dropped all the copies that they may."""

from __future__ import annotations

from collections.abc import Mapping

from elasticml.control.policy import Chunks
from elasticml.terms import ChunkId, MemberId


class Rooms:
    """Memory that members have left.

    Parameters
    ----------
    chunks : Chunks
        The ledger.
    coming : mapping
        Chunks that are on their way to a new owner.
    """

    def __init__(self, chunks: Chunks, coming: Mapping[ChunkId, MemberId]) -> None:
        self._chunks = chunks
        self._coming = coming
        self._to: dict[MemberId, set[ChunkId]] = {}
        for chunk, member in coming.items():
            self._to.setdefault(member, set()).add(chunk)

    def left(self, member: MemberId, limit_bytes: int) -> int:
        """Bytes that are free when only that stays which must; negative where that is too much.

        That is what the member owns, what is on its way to it, and its copies of chunks that nobody
        else has who owns them or will.
        """
        chunks = self._chunks
        kept = {*chunks.of(member), *self._to.get(member, ())}
        kept |= {c for c in chunks.held_by(member) - kept if not self._is_elsewhere(c)}
        return limit_bytes - sum(chunks.nbytes(c) for c in kept)

    def _is_elsewhere(self, chunk: ChunkId) -> bool:
        owner = self._chunks.owner(chunk)
        home = self._coming.get(chunk) if owner is None else owner
        return home is not None and (home == owner or home in self._chunks.holders(chunk))
