"""What a member holds of a job's data: reading blocks, taking chunks in, letting them go."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from elasticml.data.cache import Setting
from elasticml.data.chunk import Chunk
from elasticml.data.facts import BlockSummary
from elasticml.data.mapped import FileSlab, disk_room, padded_sum
from elasticml.data.places import reason_of
from elasticml.data.shelf import Shelf
from elasticml.data.source import Source, read_block, read_chunks
from elasticml.errors import DataError
from elasticml.runtime.slabs import Slab
from elasticml.terms import ChunkId


class ChunkStore:
    """Chunks by id; it outlives a member's life, so that a fenced one comes back with its data.

    Several threads may read and load at once.

    Parameters
    ----------
    limit_bytes : int, optional
        Bytes that chunk bodies may take in memory; None means no limit.
    shelf : Shelf, optional
        Where all bodies go, on a disk, once they do not fit; without one that is an error.
    """

    def __init__(self, limit_bytes: int | None = None, shelf: Shelf | None = None) -> None:
        self.chunks: dict[ChunkId, Chunk] = {}
        self.limit_bytes = limit_bytes
        self.shelf = shelf
        #: Bytes of the bodies that are here.
        self.held_bytes = 0
        #: Not all bodies have fitted into memory: those that come are put on the shelf.
        self.is_out_of_core = False
        #: What the member computes over: nobody else's word on the states of these counts.
        self.owned: frozenset[ChunkId] = frozenset()
        self._counting = threading.Lock()

    @property
    def room_bytes(self) -> int | None:
        """Bytes of bodies that can be here, in memory and on the disk; None without limit."""
        if self.limit_bytes is None or self.shelf is None:
            return self.limit_bytes
        return max(self.limit_bytes, self.held_bytes) + disk_room(self.shelf.folder)

    def put(self, chunks: Iterable[Chunk]) -> None:
        """Take chunks in, all or none; those that are here already stay as they are.

        Raises
        ------
        DataError
            When they fit neither the member's memory nor its disk.
        """
        with self._counting:
            new = {chunk.id: chunk for chunk in chunks if chunk.id not in self.chunks}
            held = self.held_bytes + sum(chunk.nbytes for chunk in new.values())
            if new and self._is_too_much(held):
                # What is computed over already stays where it is: its addresses are known.
                moved = {} if self.owned or self.is_out_of_core else self.chunks
                shelved = self._shelved([*moved.values(), *new.values()], held)
                new = {chunk.id: chunk for chunk in shelved}
                self.is_out_of_core = True
            self.chunks.update(new)
            self.held_bytes = held

    def slab(self, sizes: Sequence[int]) -> Slab | FileSlab:
        """Return where bodies of these sizes may be received: in memory, or on the shelf's disk.

        Raises
        ------
        DataError
            When the disk does not take them.
        """
        with self._counting:
            if self.shelf is None or not self._is_too_much(self.held_bytes + sum(sizes)):
                return Slab(sizes)
            try:
                return FileSlab(padded_sum(sizes), self.shelf.folder)
            except OSError as error:
                raise self._full(self.held_bytes + sum(sizes), error) from None

    def _is_too_much(self, held: int) -> bool:
        """Whether bodies of so many bytes do not fit into memory, or some have not before."""
        return self.is_out_of_core or (self.limit_bytes is not None and held > self.limit_bytes)

    def _shelved(self, chunks: Sequence[Chunk], held: int) -> list[Chunk]:
        if self.shelf is None:
            raise self._full(held, None)
        try:
            return self.shelf.settle(chunks)
        except OSError as error:
            raise self._full(held, error) from None

    def _full(self, held: int, error: OSError | None) -> DataError:
        place = ""
        if self.shelf is not None and error is not None:
            place = f", and {self.shelf.folder} takes no more ({reason_of(error)})"
        return DataError(
            f"the chunks on one member take {held} bytes, its limit is {self.limit_bytes}{place}: "
            "use more members, more memory per worker, dtype float32, or a folder with room on a "
            "local disk, named in ELASTICML_SPILL",
            held=held,
            limit=self.limit_bytes,
        )

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

    def close(self) -> None:
        """Forget all chunks: the last job that looked at them has ended."""
        with self._counting:
            self.chunks, self.held_bytes = {}, 0
        if self.shelf is not None:
            self.shelf.close()
