"""Out-of-core chunks: which bodies stay in memory, and how the others are streamed from disk.

Bodies are mapped from files. A pass over them is divided into batches. While one batch (the active
buffer) is processed, reader threads fetch the next ones (the swap buffers) and prepare what their
processing needs, such as a permutation of the rows. Afterwards the batch's pages are released,
except for resident chunks: those with the largest importance per byte, as reported by the algorithm
(DuHL).

Source: Snap ML, section 3, "Asynchronous Data Streaming" and "Streaming Permutation Generation",
applied to disk and memory instead of memory and GPU; and DuHL, with chunks instead of coordinates.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.out_of_core import mapped_memory
from elasticml.errors import DataError
from elasticml.ids import ChunkId

#: Buffer sizes are multiples of this, in bytes.
GRAIN: Final = 4096
#: A buffer is reused only for arrays that fill at least this fraction of it.
_FILLED_MIN: Final = 0.75


@dataclass(slots=True, eq=False)
class _Buffer:
    """A buffer, in use or idle."""

    raw: NDArray[np.uint8]
    #: Leading bytes that are resident; the bytes after them were never accessed, or were released.
    touched: int

    @property
    def nbytes(self) -> int:
        """Capacity."""
        return self.raw.nbytes


class BufferPool:
    """Buffers of several sizes, returned to the pool by garbage collection.

    A buffer is reused only after the last view of it is gone, so existing views stay valid. If a
    buffer is reused for a smaller array, or discarded, its unneeded pages are returned at once.

    Parameters
    ----------
    idle_bytes_max : int
        Most idle bytes that are kept when a buffer of another size must be allocated.
    make : callable (int) -> memoryview
        Allocates a buffer of the given bytes, aligned to 64; its exceptions propagate.
    """

    def __init__(self, idle_bytes_max: int, make: Callable[[int], memoryview]) -> None:
        self.idle_bytes_max = idle_bytes_max
        self._make = make
        #: Resident bytes of all buffers, in use or idle.
        self.held_bytes = 0
        self._lock = threading.Lock()
        #: Returned buffers. Only atomic operations: finalizers run at any point of any thread.
        self._returned: deque[_Buffer] = deque()
        #: The other idle buffers, smallest first, and the number of buffers discarded so far.
        self._idle: list[_Buffer] = []
        self._n_discarded = 0

    @staticmethod
    def size_of(nbytes: int) -> int:
        """Return the memory that an array of ``nbytes`` takes in the pool."""
        return -(-nbytes // GRAIN) * GRAIN

    def take(self, nbytes: int) -> memoryview:
        """Return a buffer of ``nbytes``; its content is undefined."""
        size = self.size_of(nbytes)
        with self._lock:
            buffer = self._reusable(size)
            if buffer is None:
                buffer = _Buffer(np.frombuffer(self._make(size), np.uint8), 0)
            elif buffer.touched > size:
                mapped_memory.evict(buffer.raw[size : buffer.touched].data)
            self.held_bytes += size - buffer.touched
            buffer.touched = size
        body = buffer.raw[:nbytes]
        # Every view of it keeps this array alive.
        weakref.finalize(body, self._returned.append, buffer).atexit = False
        return body.data

    def _reusable(self, size: int) -> _Buffer | None:
        """Return the smallest idle buffer that fits; if there is none, discard idle buffers."""
        self._collect()
        at = bisect_left(self._idle, size, key=lambda buffer: buffer.nbytes)
        if at < len(self._idle) and size >= _FILLED_MIN * self._idle[at].nbytes:
            return self._idle.pop(at)
        self._discard(self.idle_bytes_max)
        return None

    def trim(self, idle_bytes_max: int) -> None:
        """Discard idle buffers until at most ``idle_bytes_max`` remain."""
        with self._lock:
            self._collect()
            self._discard(idle_bytes_max)

    def _collect(self) -> None:
        for _ in range(len(self._returned)):
            insort(self._idle, self._returned.popleft(), key=lambda buffer: buffer.nbytes)

    def _discard(self, idle_bytes_max: int) -> None:
        excess = sum(buffer.touched for buffer in self._idle) - idle_bytes_max
        while excess > 0:
            # Discard sizes in turn: the next request may need any of them.
            self._n_discarded += 1
            buffer = self._idle.pop(self._n_discarded % len(self._idle))
            mapped_memory.evict(buffer.raw.data)
            self.held_bytes -= buffer.touched
            excess -= buffer.touched


#: Bytes of a file; a larger request gets a larger file.
FILE_BYTES: Final = 64 * 2**20


class SpillFiles:
    """Allocates buffers in unnamed files; a file disappears with its last buffer.

    Parameters
    ----------
    folder : Path
        On a local disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Held while a file is created.
        self._filling = threading.Lock()
        #: The file with free space, and all files in use.
        self._slab: mapped_memory.FileSlab | None = None
        self._slabs: weakref.WeakSet[mapped_memory.FileSlab] = weakref.WeakSet()
        #: Held while the set of files is changed or copied.
        self._listing = threading.Lock()

    def allocate_many(self, sizes: Sequence[int]) -> list[memoryview]:
        """Allocate buffers of these sizes, contiguous in one file.

        Raises
        ------
        OSError
            When the disk has no room.
        """
        nbytes = mapped_memory.padded_sum(sizes)
        with self._filling:
            if sizes and (self._slab is None or self._slab.room < nbytes):
                self._slab = None  # first: its disk space is freed if no buffer is in use
                self._slab = self._new_slab(nbytes)
            slab = self._slab
            return [] if slab is None else [slab.take(size) for size in sizes]

    def _new_slab(self, nbytes: int) -> mapped_memory.FileSlab:
        if nbytes < FILE_BYTES:
            try:
                return self.slab(FILE_BYTES)
            except OSError:  # a nearly full disk may still have room for this request
                pass
        return self.slab(nbytes)

    def allocate(self, nbytes: int) -> memoryview:
        """Allocate a buffer of ``nbytes``; raises as :meth:`allocate_many` does."""
        return self.allocate_many([nbytes])[0]

    def try_allocate(self, nbytes: int) -> memoryview | None:
        """Allocate a buffer without blocking; None if that is not possible.

        For an event loop: creates no file, and does not wait for another thread that creates one.
        """
        if not self._filling.acquire(blocking=False):
            return None
        try:
            slab = self._slab
            has_room = slab is not None and slab.room >= mapped_memory.padded_sum([nbytes])
            return slab.take(nbytes) if slab is not None and has_room else None
        finally:
            self._filling.release()

    def maps(self, buffer: memoryview) -> bool:
        """Whether a buffer is in one of the files."""
        return any(slab.maps(buffer) for slab in self._in_use())

    def slab(self, nbytes: int) -> mapped_memory.FileSlab:
        """Return buffers of ``nbytes`` in all, in a file of their own; raises OSError."""
        slab = mapped_memory.FileSlab(nbytes, self.folder)
        with self._listing:
            self._slabs.add(slab)
        return slab

    def _in_use(self) -> list[mapped_memory.FileSlab]:
        with self._listing:
            return list(self._slabs)

    def evict(self) -> None:
        """Release the pages of all files; they are read again on access."""
        for slab in self._in_use():
            slab.evict()

    def close(self) -> None:
        """Allocate no more in the current file; disk space is freed with the last buffer."""
        with self._filling:
            self._slab = None


T = TypeVar("T")

#: The size of a batch is the memory limit divided by this, within the bounds below.
_BATCHES_IN_LIMIT: Final = 64
BATCH_BYTES_MIN: Final = 2**20
BATCH_BYTES_MAX: Final = 32 * 2**20
#: Threads that fetch and release; two passes over parts of the chunks may run concurrently.
_READERS: Final = 2
#: Batches fetched ahead of the active one: two, so that a slow read need not stall the pass.
_AHEAD: Final = 2
#: Batches in memory besides resident chunks: of two passes, including those being released.
_WINDOW: Final = 2 * (_AHEAD + 1)
#: Bytes that are copied to a file before they are flushed and released.
PIECE_BYTES: Final = 16 * 2**20
#: Seconds between two looks at the process's memory, and the part of the limit at which the pages
#: of all files are released. A pass touches at most a tenth of 1 GiB in that time.
LOOK_S: Final = 0.02
FULL_SHARE: Final = 1.05


class OutOfCoreStore:
    """The out-of-core store: the mapped chunks of one member in one job.

    Streaming does not change a body. Results depend on the available memory only for algorithms
    that choose chunks by ``resident``, such as CoCoA passes that skip chunks; for others only the
    time does.

    Parameters
    ----------
    limit_bytes : int
        Limit of this process's resident memory: anonymous memory, and the mapped pages of files.
    folder : Path
        On a local disk, for bodies that are not in a file yet.
    measure : callable
        Returns the bytes of this process's resident memory.
    """

    def __init__(
        self,
        limit_bytes: int,
        folder: Path,
        measure: Callable[[], int] = mapped_memory.resident_bytes,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.folder = folder
        share = limit_bytes // _BATCHES_IN_LIMIT
        self.batch_bytes = max(BATCH_BYTES_MIN, min(BATCH_BYTES_MAX, share))
        #: Spill files of bodies, those of per-row arrays, and the buffers in the latter.
        self._spill = SpillFiles(folder)
        self._row_files = SpillFiles(folder)
        self._row_arrays = BufferPool(FILE_BYTES, self._row_files.allocate)
        #: Whether the disk has refused a per-row array since the last plan.
        self._is_full = False
        #: Chunks whose bodies are kept in memory.
        self.resident: frozenset[ChunkId] = frozenset()
        #: Bytes of released bodies: a measure of how much is read again.
        self.streamed_bytes = 0
        #: Bytes of bodies released since the pages of per-row arrays were.
        self._passed_bytes = 0
        self._measure = measure
        #: Importance of each chunk, if reported.
        self.importance: Mapping[ChunkId, float] = {}
        #: Bytes of derived forms of chunks, such as scaled rows; resident if the chunk is.
        self._form_bytes: dict[ChunkId, int] = {}
        #: Protects the byte counter and the creation of the readers; held briefly.
        self._counting = threading.Lock()
        self._readers: ThreadPoolExecutor | None = None
        #: Files of bodies besides the spill files, such as those of the cache.
        self._files: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        #: Set when the thread that releases pages is to end; None before it has begun.
        self._closed: threading.Event | None = None

    def settle(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Add chunks to the store; those not in a file are copied to one, including their state.

        Raises
        ------
        OSError
            When the disk has no room.
        """
        self._watch()
        in_memory = [chunk for chunk in chunks if not chunk.is_mapped]
        spilled: dict[ChunkId, Chunk] = {}
        for piece in self.batches(in_memory, PIECE_BYTES):
            buffers = self._spill.allocate_many([chunk.nbytes for chunk in piece])
            for chunk, buffer in zip(piece, buffers, strict=True):
                spilled[chunk.id] = _copied(chunk, buffer)
            mapped_memory.write_out(buffers)
        added = [spilled.get(chunk.id, chunk) for chunk in chunks]
        for chunk in added:
            chunk.out_of_core = self
            if isinstance(chunk.stored.obj, mmap.mmap):
                with self._counting:
                    self._files.add(chunk.stored.obj)
        self.release(added)
        return added

    def slab(self, sizes: Sequence[int]) -> mapped_memory.FileSlab:
        """Return buffers in a file, to receive bodies of these sizes; raises OSError."""
        self._watch()
        return self._spill.slab(mapped_memory.padded_sum(sizes))

    # --- the limit -------------------------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        """Bytes that this process may still take."""
        return self.limit_bytes - self._measure()

    def _watch(self) -> None:
        """Begin to watch the process's memory, in a thread that ends with this store."""
        with self._counting:
            if self._closed is not None:
                return
            self._closed = threading.Event()
        arguments = weakref.ref(self), self._closed
        threading.Thread(
            target=_watch, args=arguments, name="em-out-of-core-memory", daemon=True
        ).start()

    def relieve(self) -> None:
        """Release the pages of all files if the process's memory is full; they are read again.

        Pages are accessed outside passes too: by algorithms that do not stream, by receiving, by
        states in files. The page cache keeps what it can, and no limit counts that.
        """
        if self._measure() > FULL_SHARE * self.limit_bytes:
            self.evict()

    def evict(self) -> None:
        """Release the mapped pages of all bodies and per-row arrays."""
        self._spill.evict()
        self._row_files.evict()
        with self._counting:
            files = list(self._files)
        for file in files:
            file.madvise(mmap.MADV_DONTNEED)

    def buffer(self, nbytes: int) -> memoryview | None:
        """Allocate a buffer to receive a body, without blocking; None if that is not possible.

        For an event loop: creates no file, and does not wait for another thread that creates one.
        """
        return self._spill.try_allocate(nbytes)

    def maps(self, buffer: memoryview) -> bool:
        """Whether a buffer is in a spill file."""
        return self._spill.maps(buffer) or self._row_files.maps(buffer)

    def row_array(self, n: int, dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """Return an array of length n in a file, such as dual variables; content undefined.

        Its pages are released like those of bodies, and its buffer is reused when the array is
        gone. If the disk is full the array is in (measured) memory; the disk is tried
        again after the next :meth:`plan`.
        """
        if n and not self._is_full:
            try:
                return np.frombuffer(self._row_arrays.take(n * np.dtype(dtype).itemsize), dtype)
            except OSError:
                self._is_full = True
        return np.empty(n, dtype)

    def add_form(self, form: Chunk) -> Chunk:
        """Add a derived form of a chunk, under the same id.

        Raises
        ------
        DataError
            When the disk has no room.
        """
        try:
            (added,) = self.settle([form])
        except OSError as error:
            raise DataError(
                f"{self.folder} has no room for scaled copies of chunks ({error.strerror}): free "
                "some, use more memory per worker, or name a folder with room in ELASTICML_SPILL"
            ) from None
        self._form_bytes[form.id] = added.nbytes
        return added

    def set_importance(self, importance: Mapping[ChunkId, float]) -> None:
        """Set each chunk's total importance; chunks with the most importance per byte stay."""
        self.importance = dict(importance)

    def plan(self, chunks: Sequence[Chunk]) -> None:
        """Decide which of a member's chunks stay in memory; call it before each pass.

        Other memory is measured, so that growing states and models displace bodies.
        """
        importance = self.importance
        self._is_full = False
        order = sorted(
            (chunk for chunk in chunks if chunk.is_mapped),
            key=lambda chunk: -importance.get(chunk.id, 0.0) / chunk.nbytes,
        )
        window = self._window(order)
        # All other memory can be measured while no body is in it: bodies come back from the page
        # cache.
        self.evict()
        others = self._measure()
        # Per-row arrays are in files, but accessed in every pass; no more than a window at a time.
        rows = min(self._row_arrays.held_bytes, window)
        left = self.limit_bytes - others - window - rows
        resident = set()
        for chunk in order:
            nbytes = chunk.nbytes + self._form_bytes.get(chunk.id, 0)
            if nbytes > left:
                break
            left -= nbytes
            resident.add(chunk.id)
        before, self.resident = self.resident, frozenset(resident)
        self.release([chunk for chunk in order if chunk.id in before])

    def _window(self, chunks: Sequence[Chunk]) -> int:
        """Return the memory of the batches that are loaded besides resident chunks."""
        # A batch has at least one chunk, however large, or one derived form.
        largest = max((max(c.nbytes, self._form_bytes.get(c.id, 0)) for c in chunks), default=0)
        return _WINDOW * max(self.batch_bytes, largest)

    def stream_chunks(self, chunks: Sequence[Chunk]) -> Iterator[Chunk]:
        """Yield chunks in order; bodies are fetched ahead and released behind."""
        batches = self.batches(chunks)
        for number in self.stages(batches, lambda number: number):
            yield from batches[number]

    def stream_rows(self, chunks: Sequence[Chunk]) -> Iterator[Chunk]:
        """Yield chunks in order, for their per-row arrays: these are released behind."""
        for batch in self.batches(chunks):
            yield from batch
            self._row_files.evict()

    def batches(
        self, chunks: Sequence[Chunk], bytes_max: int | None = None
    ) -> list[Sequence[Chunk]]:
        """Divide chunks into consecutive batches of at most ``batch_bytes``, or one chunk."""
        cuts, nbytes = [0], 0
        bytes_max = self.batch_bytes if bytes_max is None else bytes_max
        for number, chunk in enumerate(chunks):
            if nbytes and nbytes + chunk.nbytes > bytes_max:
                cuts.append(number)
                nbytes = 0
            nbytes += chunk.nbytes
        ends = [*cuts[1:], len(chunks)]
        return [chunks[low:high] for low, high in zip(cuts, ends, strict=True) if high > low]

    def stages(
        self, batches: Sequence[Sequence[Chunk]], prepare: Callable[[int], T]
    ) -> Iterator[T]:
        """Iterate over batches, fetching the next ones in the background.

        Parameters
        ----------
        prepare : callable (int) -> T
            Further preparation of the batch with this number; called in a reader thread.

        Yields
        ------
        T
            The result of ``prepare``, once the batch's bodies are loaded; they may be released
            after the next step.
        """
        if not batches:
            return
        with self._counting:
            if self._readers is None:
                self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="em-out-of-core")
            submit = self._readers.submit

        def load_batch(number: int, former: int | None) -> T:
            release_batch(former)
            for chunk in batches[number]:
                if chunk.is_mapped:
                    mapped_memory.read_ahead(chunk.stored)
            for chunk in batches[number]:
                if chunk.is_mapped:
                    mapped_memory.fetch(chunk.stored)
                    chunk.load()
            return prepare(number)

        def release_batch(number: int | None) -> None:
            if number is not None:
                self.release(batches[number])

        #: Loaded or loading batches, and the batch that each releases before it loads.
        loading: deque[tuple[int, Future[T], int | None]] = deque()
        former: int | None = None
        try:
            for number in range(len(batches)):
                for k in range(number + len(loading), min(number + _AHEAD + 1, len(batches))):
                    loading.append((k, submit(load_batch, k, former), former))
                    former = None
                yield loading[0][1].result()
                release_batch(former)  # at the end no further batch releases it
                former = loading.popleft()[0]
        finally:
            # The caller has finished, failed, or closed the generator early.
            for k, future, before in loading:
                if future.cancel():
                    release_batch(before)
                else:
                    wait([future])
                    release_batch(k)
            release_batch(former)

    def release(self, chunks: Sequence[Chunk]) -> None:
        """Release bodies, except those of resident chunks."""
        nbytes = 0
        for chunk in chunks:
            if not chunk.is_mapped or chunk.id in self.resident:
                continue
            mapped_memory.evict(chunk.stored)
            nbytes += chunk.nbytes
        with self._counting:
            self.streamed_bytes += nbytes
            self._passed_bytes += nbytes
            is_due = self._passed_bytes >= self.batch_bytes
            self._passed_bytes *= not is_due
        if is_due:
            self._row_files.evict()

    def close(self) -> None:
        """Discard idle buffers; disk space is freed with the last chunk in the spill files.

        A running pass may finish: the reader threads end when the store is garbage-collected.
        """
        if self._closed is not None:
            self._closed.set()
        self._spill.close()
        self._row_files.close()
        self._row_arrays.trim(0)


def _watch(store: weakref.ref[OutOfCoreStore], closed: threading.Event) -> None:
    """Release pages whenever the memory is full, until the store is closed or gone."""
    while not closed.wait(LOOK_S):
        present = store()
        if present is None:
            return
        present.relieve()
        del present


def _copied(chunk: Chunk, buffer: memoryview) -> Chunk:
    """Copy a chunk and its state to a buffer in a file; ``copyto`` releases the GIL."""
    np.copyto(np.frombuffer(buffer, np.uint8), np.frombuffer(chunk.body, np.uint8))
    copy = Chunk(chunk.id, buffer.toreadonly())
    copy.is_mapped = True
    copy.state, copy.state_version = chunk.state, chunk.state_version
    return copy


def store_of(chunks: Sequence[Chunk]) -> OutOfCoreStore | None:
    """Return the out-of-core store of these chunks; None if none of them is in one."""
    stores = (chunk.out_of_core for chunk in chunks if chunk.out_of_core is not None)
    return next((store for store in stores if isinstance(store, OutOfCoreStore)), None)


def stream_chunks(chunks: Sequence[Chunk], *, bodies: bool = True) -> Iterator[Chunk]:
    """Yield chunks in order; out-of-core chunks are streamed.

    For loops that access bodies, or per-row arrays alone. Loops over ids and sizes need neither.
    """
    out_of_core = store_of(chunks)
    if out_of_core is None:
        return iter(chunks)
    return out_of_core.stream_chunks(chunks) if bodies else out_of_core.stream_rows(chunks)


def row_array(chunk: Chunk, dtype: DTypeLike = np.float64, n: int = 1) -> NDArray[Any]:
    """Return an array of n numbers for each row, in a file if the chunk is out of core.

    Its content is undefined.
    """
    out_of_core, length = chunk.out_of_core, n * chunk.n_rows
    return np.empty(length, dtype) if out_of_core is None else out_of_core.row_array(length, dtype)


def kept(chunk: Chunk, values: NDArray[Any]) -> NDArray[Any]:
    """Return ``values`` (n_rows,), or, if the chunk is out of core, a copy of it in a file."""
    if chunk.out_of_core is None:
        return values
    copy = row_array(chunk, values.dtype)
    np.copyto(copy, values)
    return copy


def release(chunks: Sequence[Chunk]) -> None:
    """Release pages that were accessed outside a streaming pass, such as labels."""
    out_of_core = store_of(chunks)
    if out_of_core is not None:
        out_of_core.release(chunks)


def plan_residency(chunks: Sequence[Chunk]) -> None:
    """Decide again which out-of-core bodies stay in memory; call it before each pass."""
    out_of_core = store_of(chunks)
    if out_of_core is not None:
        out_of_core.plan(chunks)
