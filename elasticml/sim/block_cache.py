"""The data of a simulated job: each block is read once and shared by all virtual workers."""

from __future__ import annotations

from collections.abc import Iterable

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.digests import digest_of_chunks
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.source import Source, read_block, resolve_chunk_bytes
from elasticml.ids import ChunkId
from elasticml.user_cache import CacheSetting


class BlockCache:
    """Chunks by id, read on first use.

    Each virtual worker gets its own chunk object with its own state; all of them share the body
    that is stored here.

    Parameters
    ----------
    source : Source
    chunk_bytes : int, optional
        As in the job record.
    n_members : int
        Number of members at the start of the job: it determines the size of chunks.
    cache : path, bool or None
        As in the job record.
    """

    def __init__(
        self, source: Source, chunk_bytes: int | None, n_members: int, cache: CacheSetting = None
    ) -> None:
        self.source = source
        blocks = source.blocks()
        self.n_blocks = len(blocks)
        self.is_in_memory = bool(getattr(source, "is_in_memory", False))
        self._nbytes = {block.index: block.nbytes for block in blocks}
        self._chunk_bytes = resolve_chunk_bytes(source, chunk_bytes, n_members)
        self._n_members = n_members
        self._cache = cache
        self._chunks: dict[ChunkId, Chunk] = {}
        self._read: dict[int, tuple[list[Chunk], BlockSummary]] = {}

    def nbytes(self, blocks: Iterable[int]) -> int:
        """Return the estimated bytes of blocks before they are read."""
        return sum(self._nbytes[block] for block in blocks)

    def survey(self, block: int) -> BlockSummary:
        """Survey a block; errors of the source propagate."""
        return self.source.survey(block)

    def read(self, block: int) -> tuple[list[Chunk], BlockSummary]:
        """Read a block; errors of the source propagate."""
        if block not in self._read:
            read = read_block(self.source, block, self._chunk_bytes, self._n_members, self._cache)
            self._read[block] = read
            self._chunks.update({chunk.id: chunk for chunk in read[0]})
        return self._read[block]

    def lend(self, id: ChunkId) -> Chunk:
        """Return a new chunk without state that shares the body of one that has been read."""
        chunk = self._chunks[id]
        return Chunk(id, chunk.body) if isinstance(chunk, Chunk) else chunk

    def chunk_bytes(self, ids: Iterable[ChunkId]) -> int:
        """Return the bytes of chunks."""
        return sum(self._chunks[id].nbytes for id in ids)

    def digest(self, chunks: Iterable[Chunk]) -> str:
        """Return the digest of the bodies of chunks; empty for chunks without bytes."""
        real = [chunk for chunk in chunks if isinstance(chunk, Chunk)]
        return digest_of_chunks(real) if real else ""
