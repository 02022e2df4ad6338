"""What a member holds of a job's data: reading blocks, taking chunks in, letting them go."""

from __future__ import annotations

import asyncio
import mmap
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.body import aligned_buffer
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.out_of_core.mapped_memory import FileSlab, disk_room, padded_sum
from elasticml.data.out_of_core.store import OutOfCoreStore
from elasticml.data.source import Source, read_block, read_chunks
from elasticml.data.storage.block_cache import CacheSetting
from elasticml.data.storage.filesystem import reason_of
from elasticml.errors import DataError
from elasticml.ids import ChunkId

# Memory for chunk bodies that arrive together.
#
# Most of what it costs to receive a body is that its pages are new: the kernel hands them out one
# by
# one, as they are written to. A slab holds the bodies of one order in large pages, and gives each
# body's pages back when nobody looks at it any more, so that dropping some bodies of an order frees
# their memory, as if each lay by itself.

#: Below this, large pages gain nothing.
SLAB_BYTES_MIN: Final = 4 * 2**20

_HAS_LARGE_PAGES: Final = hasattr(mmap, "MADV_HUGEPAGE") and hasattr(mmap, "MADV_DONTNEED")


class ReceiveBuffers:
    """Buffers for bodies whose sizes are known beforehand.

    Parameters
    ----------
    sizes : sequence of int
        Bytes of the bodies.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        nbytes = padded_sum(sizes)
        self._memory: mmap.mmap | None = None
        self._array: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._at = 0
        if nbytes >= SLAB_BYTES_MIN and _HAS_LARGE_PAGES:
            self._memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._memory.madvise(mmap.MADV_HUGEPAGE)
            self._array = np.frombuffer(self._memory, np.uint8)

    def maps(self, buffer: memoryview) -> bool:
        """Whether a buffer lies in a file: none of these does."""
        return False

    def take(self, nbytes: int) -> memoryview:
        """Return a buffer, of the slab where there is room, else of its own."""
        start, self._at = self._at, self._at + padded_sum([nbytes])
        if self._memory is None or self._at > self._array.nbytes:
            return aligned_buffer(nbytes)
        body = self._array[start : start + nbytes]
        # Whatever looks at the body keeps this array alive, and with it the body's pages.
        weakref.finalize(body, _give_back, self._memory, start, start + nbytes).atexit = False
        return body.data


def _give_back(memory: mmap.mmap, start: int, stop: int) -> None:
    """Give the pages that lie wholly between two places back to the system."""
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    nbytes = stop // mmap.PAGESIZE * mmap.PAGESIZE - first
    if nbytes > 0:
        memory.madvise(mmap.MADV_DONTNEED, first, nbytes)


class ChunkStore:
    """Chunks by id; it outlives a member's life, so that a fenced one comes back with its data.

    Several threads may read and load at once.

    Parameters
    ----------
    limit_bytes : int, optional
        Bytes that chunk bodies may take in memory; None means no limit.
    shelf : Shelf, optional
        Where all bodies go, on a disk, once they do not fit; without one that is an error.
    forms : int
        Of each body that will be on the disk, such as a scaled copy besides itself.
    """

    def __init__(
        self,
        limit_bytes: int | None = None,
        out_of_core: OutOfCoreStore | None = None,
        forms: int = 1,
    ) -> None:
        self.chunks: dict[ChunkId, Chunk] = {}
        self.limit_bytes = limit_bytes
        self.out_of_core = out_of_core
        self._forms = forms
        #: Bytes of the bodies that are here.
        self.held_bytes = 0
        #: Not all bodies have fitted into memory: those that come are put on the shelf.
        self.is_out_of_core = False
        #: What the member computes over: these bodies stay where they are in memory.
        self.owned: frozenset[ChunkId] = frozenset()
        #: Held for as long as bodies are copied to the disk.
        self._putting = threading.Lock()
        #: Held for a moment.
        self._counting = threading.Lock()

    @property
    def room_bytes(self) -> int | None:
        """Bytes of bodies that can be here, in memory and on the disk; None without limit."""
        if self.limit_bytes is None or self.out_of_core is None:
            return self.limit_bytes
        on_disk = disk_room(self.out_of_core.folder) // self._forms
        return max(self.limit_bytes, self.held_bytes) + on_disk

    def put(self, chunks: Iterable[Chunk]) -> None:
        """Take chunks in, all or none; those that are here already stay as they are.

        What does not fit into memory is copied to the disk meanwhile: not for an event loop, see
        :meth:`take`.

        Raises
        ------
        DataError
            When they fit neither the member's memory nor its disk.
        """
        chunks = list(chunks)
        if self._fits(chunks):
            # Unpacked and checked once, by as many threads as put chunks here.
            for chunk in chunks:
                chunk.load()
        with self._putting:
            self._put(chunks)

    def _fits(self, chunks: Iterable[Chunk]) -> bool:
        """Whether chunks would fit into memory now."""
        with self._counting:
            return not self._is_too_much(self.held_bytes + _bytes_of(self._new(chunks)))

    async def take(self, chunks: Sequence[Chunk]) -> None:
        """Take chunks in as :meth:`put` does: at once, or in a thread where that takes time.

        Raises
        ------
        DataError
            As :meth:`put` does.
        """
        if self._putting.acquire(blocking=False):
            try:
                if not self._copies(chunks):
                    self._put(chunks)
                    return
            finally:
                self._putting.release()
        await asyncio.to_thread(self.put, chunks)

    def _copies(self, chunks: Iterable[Chunk]) -> bool:
        """Whether taking chunks in means to copy bodies to the disk."""
        with self._counting:
            new = self._new(chunks)
            if self.out_of_core is None or not self._is_too_much(self.held_bytes + _bytes_of(new)):
                return not all(chunk.is_loaded for chunk in new.values())
            return any(self.out_of_core.copies(c) for c in [*new.values(), *self._moved().values()])

    def _put(self, chunks: Iterable[Chunk]) -> None:
        with self._counting:
            new = self._new(chunks)
            nbytes = _bytes_of(new)
            # From now on this room is taken, whoever looks meanwhile.
            self.held_bytes = held = self.held_bytes + nbytes
            if not new or not self._is_too_much(held):
                self.chunks.update(new)
                return
            moved = self._moved()
        try:
            shelved = self._shelved([*moved.values(), *new.values()], held)
        except BaseException:
            with self._counting:
                self.held_bytes -= nbytes
            raise
        with self._counting:
            self.is_out_of_core = True
            for chunk in shelved:
                self._replace(chunk, moved.get(chunk.id))

    def _new(self, chunks: Iterable[Chunk]) -> dict[ChunkId, Chunk]:
        return {chunk.id: chunk for chunk in chunks if chunk.id not in self.chunks}

    def _moved(self) -> dict[ChunkId, Chunk]:
        """Chunks that go to the disk with the first ones that do not fit.

        What is computed over already stays where it is: its addresses are known.
        """
        return {} if self.owned or self.is_out_of_core else dict(self.chunks)

    def _replace(self, chunk: Chunk, former: Chunk | None) -> None:
        """Put a chunk that is on the disk now in its place, unless that has been taken since."""
        if former is not None:
            if chunk.id in self.owned or self.chunks.get(chunk.id) is not former:
                return
            chunk.state, chunk.state_version = former.state, former.state_version
        self.chunks[chunk.id] = chunk

    def set_state(self, id: ChunkId, state: dict[str, NDArray[Any]], version: int) -> None:
        """Give a chunk a state, if it is here."""
        with self._counting:
            chunk = self.chunks.get(id)
            if chunk is not None:
                chunk.state, chunk.state_version = state, version

    def __contains__(self, id: object) -> bool:
        """Whether a chunk's body is here."""
        return id in self.chunks

    def buffer(self, nbytes: int) -> memoryview:
        """Return where a body may be received: on the disk where it does not fit into memory."""
        with self._counting:
            is_too_much = self._is_too_much(self.held_bytes + nbytes)
        if is_too_much and self.out_of_core is not None:
            place = self.out_of_core.buffer(nbytes)
            if place is not None:
                return place
        return aligned_buffer(nbytes)

    async def slab(self, sizes: Sequence[int], body_bytes: int) -> ReceiveBuffers | FileSlab:
        """Return where bodies of these sizes may be received: in memory, or on the shelf's disk.

        Parameters
        ----------
        sizes : sequence of int
            Bytes that come.
        body_bytes : int
            Of all of them, once they are unpacked.

        Raises
        ------
        DataError
            When the disk does not take them.
        """
        with self._counting:
            held = self.held_bytes + body_bytes
            if self.out_of_core is None or not self._is_too_much(held):
                return ReceiveBuffers(sizes)
        try:
            # Disks may take their time.
            return await asyncio.to_thread(FileSlab, padded_sum(sizes), self.out_of_core.folder)
        except OSError as error:
            raise self._full(held, error) from None

    def _is_too_much(self, held: int) -> bool:
        """Whether bodies of so many bytes do not fit into memory, or some have not before."""
        return self.is_out_of_core or (self.limit_bytes is not None and held > self.limit_bytes)

    def _shelved(self, chunks: Sequence[Chunk], held: int) -> list[Chunk]:
        if self.out_of_core is None:
            raise self._full(held, None)
        try:
            return self.out_of_core.settle(chunks)
        except OSError as error:
            raise self._full(held, error) from None

    def _full(self, held: int, error: OSError | None) -> DataError:
        place = ""
        if self.out_of_core is not None and error is not None:
            place = f", and {self.out_of_core.folder} takes no more ({reason_of(error)})"
        limit = f"its limit is {self.limit_bytes}"
        if self.limit_bytes == 0:
            limit = "its process alone takes as much as it may"
        return DataError(
            f"the chunks on one member take {held} bytes, {limit}{place}: "
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
        cache: CacheSetting = None,
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
        cache: CacheSetting = None,
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
        with self._counting:
            owned = [self.chunks[id] for id in ids]
            self.owned = frozenset(ids)
        return owned

    def close(self) -> None:
        """Forget all chunks: the last job that looked at them has ended."""
        with self._counting:
            self.chunks, self.held_bytes = {}, 0
        if self.out_of_core is not None:
            self.out_of_core.close()


def _bytes_of(chunks: Mapping[ChunkId, Chunk]) -> int:
    return sum(chunk.nbytes for chunk in chunks.values())
