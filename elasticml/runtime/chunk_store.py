"""What a member holds of a job's data: reading blocks, taking chunks in, letting them go."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from elasticml.data.cache import Setting
from elasticml.data.chunk import Chunk
from elasticml.data.facts import BlockSummary
from elasticml.data.source import Source, read_block, read_chunks
from elasticml.errors import DataError
from elasticml.terms import ChunkId


class ChunkStore:
    """Chunks by id; it outlives a member's life, so that a fenced one comes back with its data.

    Several threads may read and load at once.

    Parameters
    ----------
    limit_bytes : int, optional
        Bytes that chunk bodies may take; None means no limit.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.chunks: dict[ChunkId, Chunk] = {}
        self.limit_bytes = limit_bytes
        #: Bytes of the bodies that are here.
        self.held_bytes = 0
        #: What the member computes over: nobody else's word on the states of these counts.
        self.owned: frozenset[ChunkId] = frozenset()
        self._counting = threading.Lock()

    def put(self, chunks: Iterable[Chunk]) -> None:
        """Take chunks in, all or none; those that are here already stay as they are.

        Raises
        ------
        DataError
            When they do not fit the member's memory.
        """
        with self._counting:
            new = {chunk.id: chunk for chunk in chunks if chunk.id not in self.chunks}
            held = self.held_bytes + sum(chunk.nbytes for chunk in new.values())
            if new and self.limit_bytes is not None and held > self.limit_bytes:
                raise DataError(
                    f"the chunks on one member take {held} bytes, its limit is {self.limit_bytes}: "
                    "use more members, more memory per worker, or dtype float32",
                    held=held,
                    limit=self.limit_bytes,
                )
            self.chunks.update(new)
            self.held_bytes = held

    def ids(self) -> list[ChunkId]:
        """Return the ids of all chunks that are here; others may be reading further ones."""
        with self._counting:
            return list(self.chunks)

    def read(
        self,
        source: Source,
        block: int,
        chunk_bytes: int | None,
        n_members: int,
        cache: Setting = None,
    ) -> tuple[list[Chunk], BlockSummary | None]:
        """Read a block of the source, through the cache, and keep its chunks.

        The chunks of an in-memory source have been sent here; the driver has their summaries.
        """
        if getattr(source, "is_in_memory", False):
            with self._counting:
                here = [chunk for id, chunk in self.chunks.items() if id.block == block]
            return sorted(here, key=lambda chunk: chunk.id), None
        chunks, summary = read_block(source, block, chunk_bytes, n_members, cache)
        self.put(chunks)
        return chunks, summary

    def load(
        self,
        source: Source,
        ids: Sequence[ChunkId],
        chunk_bytes: int | None,
        n_members: int,
        cache: Setting = None,
    ) -> int:
        """Have these chunks here: those that are missing are read again. Returns bytes read."""
        missing = [id for id in ids if id not in self.chunks]
        if missing:
            self.put(read_chunks(source, missing, chunk_bytes, n_members, cache))
        return sum(self.chunks[id].nbytes for id in missing)

    def drop(self, ids: Iterable[ChunkId]) -> None:
        """Forget chunks, body and state; those that are not here are passed over."""
        ids = frozenset(ids)
        # Given away since the last Own, so that they may come back before the next one.
        self.owned -= ids
        with self._counting:
            for id in ids:
                chunk = self.chunks.pop(id, None)
                self.held_bytes -= 0 if chunk is None else chunk.nbytes

    def own(self, ids: Sequence[ChunkId]) -> list[Chunk]:
        """Chunks to compute over, in the order of ids; the others stay, as copies of others'."""
        owned = [self.chunks[id] for id in ids]
        self.owned = frozenset(ids)
        return owned
