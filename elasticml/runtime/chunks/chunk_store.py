"""A member's chunks of a job, in memory or on disk: read, received, owned and dropped."""

from __future__ import annotations

import asyncio
import itertools
import mmap
import threading
import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.body import aligned_buffer
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.out_of_core.mapped_memory import (
    FileSlab,
    disk_room,
    padded_sum,
    return_free_memory,
)
from elasticml.data.out_of_core.store import OutOfCoreStore
from elasticml.data.source import Source, read_again, read_block
from elasticml.data.storage.filesystem import reason_of
from elasticml.errors import DataError, host_fault
from elasticml.ids import ChunkId
from elasticml.user_cache import CacheSetting

#: Smaller transfers gain nothing from large pages.
SLAB_BYTES_MIN: Final = 4 * 2**20
#: Chunks of at most 1 MiB that leave the memory together.
_PIECE_CHUNKS: Final = 16

_HAS_LARGE_PAGES: Final = hasattr(mmap, "MADV_HUGEPAGE") and hasattr(mmap, "MADV_DONTNEED")


class ReceiveBuffers:
    """Buffers for the bodies of one transfer, in one mapping with large pages.

    Most of the cost of receiving a body is page faults: the kernel provides new pages one by one.
    Large pages avoid that. The pages of a body are returned to the system when the body is no
    longer referenced, so dropping some bodies frees their memory.

    Parameters
    ----------
    sizes : sequence of int
        Bytes of each body.
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
        """Whether a buffer is mapped from a file: never."""
        return False

    def take(self, nbytes: int) -> memoryview:
        """Return a buffer from the mapping, or a separate one if there is no room."""
        start, self._at = self._at, self._at + padded_sum([nbytes])
        if self._memory is None or self._at > self._array.nbytes:
            return aligned_buffer(nbytes)
        body = self._array[start : start + nbytes]
        # Every view of the body keeps this array alive, and with it the body's pages.
        weakref.finalize(body, _give_back, self._memory, start, start + nbytes).atexit = False
        return body.data


def _give_back(memory: mmap.mmap, start: int, stop: int) -> None:
    """Return the pages that lie completely between two offsets to the system."""
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    nbytes = stop // mmap.PAGESIZE * mmap.PAGESIZE - first
    if nbytes > 0:
        memory.madvise(mmap.MADV_DONTNEED, first, nbytes)


class ChunkStore:
    """Chunks by id. A store outlives its member: a fenced member returns with its data.

    Several threads may read and load concurrently.

    Parameters
    ----------
    limit_bytes : int, optional
        Limit of chunk bodies in memory; None means no limit.
    out_of_core : OutOfCoreStore, optional
        Stores all bodies on disk once they do not fit into memory; without it that is an error.
    forms : int
        Number of forms of each body, such as the body and a scaled copy.
    row_bytes : int
        Bytes that the solver keeps of each row besides.
    """

    def __init__(
        self,
        limit_bytes: int | None = None,
        out_of_core: OutOfCoreStore | None = None,
        forms: int = 1,
        row_bytes: int = 0,
    ) -> None:
        self.chunks: dict[ChunkId, Chunk] = {}
        self.limit_bytes = limit_bytes
        self.out_of_core = out_of_core
        self._forms = forms
        self._row_bytes = row_bytes
        self._held_rows = 0
        #: Bytes of all bodies in the store.
        self.held_bytes = 0
        #: The bodies did not fit into memory: new ones go to disk.
        self.is_out_of_core = False
        #: Chunks that the member computes on: their bodies are not moved in memory.
        self.owned: frozenset[ChunkId] = frozenset()
        #: Held while bodies are copied to disk.
        self._putting = threading.Lock()
        #: Held briefly.
        self._counting = threading.Lock()

    @property
    def room_bytes(self) -> int | None:
        """Capacity for bodies in bytes, in memory and on disk; None means no limit."""
        if self.limit_bytes is None or self.out_of_core is None:
            return self.limit_bytes
        on_disk = disk_room(self.out_of_core.folder) // self._forms
        return max(self.limit_bytes, self.held_bytes) + on_disk

    def put(self, chunks: Iterable[Chunk]) -> None:
        """Add chunks, all or none; chunks that are in the store already stay unchanged.

        This may copy bodies to disk; on an event loop use :meth:`take`.

        Raises
        ------
        DataError
            When they fit neither into the member's memory nor on its disk.
        """
        chunks = list(chunks)
        if self._fits(chunks):
            # Verify outside the lock, so that threads do it in parallel.
            for chunk in chunks:
                chunk.load()
        with self._putting:
            self._put(chunks)

    def _fits(self, chunks: Iterable[Chunk]) -> bool:
        """Whether the chunks fit into memory now."""
        with self._counting:
            return not self._is_too_much(self._new(chunks).values())

    async def take(self, chunks: Sequence[Chunk]) -> None:
        """Add chunks as :meth:`put` does, in a thread if that takes time.

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
        """Whether adding the chunks takes time: copies to disk, or bodies that are not loaded."""
        with self._counting:
            new = self._new(chunks)
            if self.out_of_core is None or not self._is_too_much(new.values()):
                return not all(chunk.is_loaded for chunk in new.values())
            return any(not c.is_mapped for c in [*new.values(), *self._moved().values()])

    def _put(self, chunks: Iterable[Chunk]) -> None:
        with self._counting:
            new = self._new(chunks)
            nbytes, is_too_much = _bytes_of(new.values()), self._is_too_much(new.values())
            # Reserve the room before the lock is released.
            self.held_bytes = held = self.held_bytes + nbytes
            if not new or not is_too_much:
                self._add(new.values())
                return
            moved = list(self._moved().values())
        try:
            # In pieces, each of which leaves the memory before the next one is copied.
            while moved:
                self._move([moved.pop() for _ in range(min(_PIECE_CHUNKS, len(moved)))], held)
                return_free_memory()
            stored = self._store_on_disk(list(new.values()), held)
        except BaseException:
            with self._counting:
                self.held_bytes -= nbytes
            raise
        with self._counting:
            self.is_out_of_core = True
            self._add(stored)
        return_free_memory()

    def _add(self, chunks: Collection[Chunk]) -> None:
        self.chunks.update({chunk.id: chunk for chunk in chunks})
        self._held_rows += sum(chunk.n_rows for chunk in chunks)

    def _new(self, chunks: Iterable[Chunk]) -> dict[ChunkId, Chunk]:
        return {chunk.id: chunk for chunk in chunks if chunk.id not in self.chunks}

    def _moved(self) -> dict[ChunkId, Chunk]:
        """Chunks that move to disk when the first chunk does not fit.

        Owned chunks are not moved: kernels hold pointers to their bodies.
        """
        return {} if self.owned or self.is_out_of_core else dict(self.chunks)

    def _move(self, chunks: Sequence[Chunk], held: int) -> None:
        """Replace chunks by their copies on disk, unless they were owned or replaced since."""
        stored = self._store_on_disk(chunks, held)
        with self._counting:
            for old, new in zip(chunks, stored, strict=True):
                if old.id not in self.owned and self.chunks.get(old.id) is old:
                    new.state, new.state_version = old.state, old.state_version
                    self.chunks[new.id] = new

    def set_state(self, id: ChunkId, state: dict[str, NDArray[Any]], version: int) -> None:
        """Set a chunk's state if the chunk is in the store."""
        with self._counting:
            chunk = self.chunks.get(id)
            if chunk is not None:
                chunk.state, chunk.state_version = state, version

    def __contains__(self, id: object) -> bool:
        """Whether a chunk is in the store."""
        return id in self.chunks

    def buffer(self, nbytes: int) -> memoryview:
        """Return a buffer for a body to receive, on disk if it does not fit into memory."""
        with self._counting:
            is_too_much = self._is_too_much(arriving=nbytes)
        if is_too_much and self.out_of_core is not None:
            buffer = self.out_of_core.buffer(nbytes)
            if buffer is not None:
                return buffer
        return aligned_buffer(nbytes)

    async def slab(self, sizes: Sequence[int]) -> ReceiveBuffers | FileSlab:
        """Return buffers for bodies to receive, in memory or on disk.

        Parameters
        ----------
        sizes : sequence of int
            Bytes of each body.

        Raises
        ------
        DataError
            When there is no room on disk.
        """
        nbytes = sum(sizes)
        with self._counting:
            held = self.held_bytes + nbytes
            if self.out_of_core is None or not self._is_too_much(arriving=nbytes):
                return ReceiveBuffers(sizes)
        try:
            # Allocating a file may block.
            return await asyncio.to_thread(self.out_of_core.slab, sizes)
        except OSError as error:
            raise self._full(held, error) from None

    def _is_too_much(self, new: Collection[Chunk] = (), arriving: int = 0) -> bool:
        """Whether bodies exceed the memory, or are on disk already.

        Parameters
        ----------
        new : collection of Chunk
            Chunks that are in memory, but not in the store.
        arriving : int
            Bytes of bodies that are not in memory yet.
        """
        nbytes = arriving + _bytes_of(new)
        if self.is_out_of_core or self.limit_bytes is None:
            return self.is_out_of_core
        if self.held_bytes + nbytes > self.limit_bytes:
            return True
        if self.out_of_core is None:
            return False
        # What the solver will make of these bodies; what it has made of owned ones is there.
        rows = sum(chunk.n_rows for chunk in new)
        if not self.owned:
            rows, nbytes = rows + self._held_rows, nbytes + self.held_bytes
        # The next block is as large, and is parsed beside these.
        growth = arriving + _bytes_of(new) + (self._forms - 1) * nbytes + self._row_bytes * rows
        return growth > self.out_of_core.room_bytes

    def _store_on_disk(self, chunks: Sequence[Chunk], held: int) -> list[Chunk]:
        if self.out_of_core is None:
            raise self._full(held, None)
        try:
            return self.out_of_core.settle(chunks)
        except OSError as error:
            raise self._full(held, error) from None

    def _full(self, held: int, error: OSError | None) -> DataError:
        disk = ""
        if self.out_of_core is not None and error is not None:
            disk = f", and {self.out_of_core.folder} takes no more ({reason_of(error)})"
        limit = f"its limit is {self.limit_bytes}"
        if self.limit_bytes == 0:
            limit = "its process alone takes as much as it may"
        return DataError(
            f"the chunks on one member take {held} bytes, {limit}{disk}: "
            "use more members, more memory per worker, dtype float32, or a folder with room on a "
            "local disk, named in ELASTICML_SPILL",
            host_fault=None if error is None else host_fault(error),
        )

    def ids(self) -> list[ChunkId]:
        """Return the ids of all chunks; other threads may be adding more."""
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
        """Read a block of the source through the cache, and store its chunks.

        The driver has sent the chunks of an in-memory source, and has their summaries.
        """
        if getattr(source, "is_in_memory", False):
            with self._counting:
                received = [chunk for id, chunk in self.chunks.items() if id.block == block]
            return sorted(received, key=lambda chunk: chunk.id), None
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
    ) -> tuple[int, int]:
        """Read those of these chunks that are missing; return the bytes read, and those parsed."""
        missing = sorted(id for id in ids if id not in self.chunks)
        nbytes = parsed = 0
        # Block by block: together they may not fit into memory.
        for _, of_block in itertools.groupby(missing, lambda id: id.block):
            chunks = read_again(source, list(of_block), chunk_bytes, n_members, cache)
            nbytes, parsed = nbytes + _bytes_of(chunks), parsed + parsed_bytes(chunks)
            self.put(chunks)
        return nbytes, parsed

    def drop(self, ids: Iterable[ChunkId]) -> None:
        """Remove chunks, body and state; ignore ids that are not in the store."""
        ids = frozenset(ids)
        # A chunk that was given away since the last Own may come back before the next one.
        self.owned -= ids
        with self._counting:
            for id in ids:
                chunk = self.chunks.pop(id, None)
                if chunk is not None:
                    self.held_bytes -= chunk.nbytes
                    self._held_rows -= chunk.n_rows

    def own(self, ids: Sequence[ChunkId]) -> list[Chunk]:
        """Return the chunks to compute on, in the order of ids; keep the others as copies."""
        with self._counting:
            owned = [self.chunks[id] for id in ids]
            self.owned = frozenset(ids)
        return owned

    def close(self) -> None:
        """Remove all chunks, after the job has ended."""
        with self._counting:
            self.chunks, self.held_bytes, self._held_rows = {}, 0, 0
        if self.out_of_core is not None:
            self.out_of_core.close()


def parsed_bytes(chunks: Iterable[Chunk]) -> int:
    """Return the bytes of chunks just read that come from the source, not from a file of chunks."""
    return sum(chunk.nbytes for chunk in chunks if not chunk.is_mapped)


def _bytes_of(chunks: Iterable[Chunk]) -> int:
    return sum(chunk.nbytes for chunk in chunks)
