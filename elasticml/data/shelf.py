"""Chunks that do not all fit into memory: which of them stay, and how the others stream past.

Bodies are mapped from files. A pass over them is cut into batches: while one is worked on, the
active buffer, threads of its own fetch the next ones, the swap buffers, and make ready what the
work on them needs, such as the order of their rows; afterwards its pages are let go, but for the
chunks that stay. Those are the ones that matter most, as far as the algorithm has said: DuHL.

Source: Snap ML, section 3, "Asynchronous Data Streaming" and "Streaming Permutation Generation",
between a disk and memory instead of memory and a GPU; and DuHL, with chunks for coordinates.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from elasticml.data import mapped
from elasticml.data.chunk import Chunk
from elasticml.data.pool import Pool
from elasticml.data.spill import FILE_BYTES, Spill
from elasticml.errors import DataError
from elasticml.terms import ChunkId

T = TypeVar("T")

#: Bytes of a batch: so many of them in the whole limit, within these bounds.
_BATCHES_IN_LIMIT: Final = 64
BATCH_BYTES_MIN: Final = 2**20
BATCH_BYTES_MAX: Final = 32 * 2**20
#: Threads that fetch and let go; two passes over parts of the chunks may go on at once.
_READERS: Final = 2
#: Batches that are fetched while one is worked on: a late one leaves the other to go on with.
_AHEAD: Final = 2
#: Batches that are in memory besides what stays: of two passes, and with those being let go.
_WINDOW: Final = 2 * (_AHEAD + 1)


class Shelf:
    """The mapped chunks of one member in one job.

    A body is the same wherever it is. Who chooses chunks by ``staying``, as CoCoA's passes do that
    leave some out, computes what depends on the memory left; for all others only time does.

    Parameters
    ----------
    limit_bytes : int
        What this process's memory shall be at most: all that is in no file, and the bodies here.
    folder : Path
        On a local disk, for bodies that are in no file yet.
    measure : callable
        Bytes of this process's memory that are in no file.
    streams : bool
        Who computes goes through chunks by :func:`flow`. For others, compressed bodies are unpacked
        to the disk.
    """

    def __init__(
        self,
        limit_bytes: int,
        folder: Path,
        measure: Callable[[], int] = mapped.anonymous_bytes,
        *,
        streams: bool = True,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.folder = folder
        self.streams = streams
        share = limit_bytes // _BATCHES_IN_LIMIT
        self.batch_bytes = max(BATCH_BYTES_MIN, min(BATCH_BYTES_MAX, share))
        #: Where compressed bodies are unpacked.
        self.pool = Pool(self.batch_bytes)
        #: Where numbers of rows are kept, in files.
        self._spill = Spill(folder)
        self._numbers = Pool(FILE_BYTES, self._spill.place)
        #: The disk took no more numbers of rows since the last plan.
        self._is_full = False
        #: Chunks whose bodies are kept in memory.
        self.staying: frozenset[ChunkId] = frozenset()
        #: Bytes of bodies that have been fetched and let go, to tell how much was read anew.
        self.streamed_bytes = 0
        self._measure = measure
        #: How much each chunk matters, as far as it has been said.
        self.importance: Mapping[ChunkId, float] = {}
        #: Bytes of further forms of chunks, such as scaled rows, which stay or go with them.
        self._beside: dict[ChunkId, int] = {}
        #: Held for a moment.
        self._counting = threading.Lock()
        self._readers: ThreadPoolExecutor | None = None

    def settle(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Have chunks on the shelf: those that are in no file are copied to one, state and all.

        A compressed body stays where it is.

        Raises
        ------
        OSError
            When the disk does not take them.
        """
        loose = [chunk for chunk in chunks if self.copies(chunk)]
        places = self._spill.places([chunk.nbytes for chunk in loose])
        copies = {
            chunk.id: _copied(chunk, place) for chunk, place in zip(loose, places, strict=True)
        }
        settled = [copies.get(chunk.id, chunk) for chunk in chunks]
        for chunk in settled:
            chunk.shelf = self
        self.release(settled)
        return settled

    def copies(self, chunk: Chunk) -> bool:
        """Whether a chunk's body must be copied to a file to be on the shelf."""
        return not chunk.is_mapped or (chunk.is_packed and not self.streams)

    def buffer(self, nbytes: int) -> memoryview | None:
        """Return where a body may be received; None where that would take time.

        For an event loop: no file is made, and nobody is waited for who makes one.
        """
        return self._spill.place_at_once(nbytes)

    def maps(self, buffer: memoryview) -> bool:
        """Whether a buffer lies in a file that bodies are copied to."""
        return self._spill.maps(buffer)

    def numbers(self, n: int, dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """Return an array of n numbers in a file, such as dual variables; not cleared.

        It takes memory only while the kernel sees fit, and its place is used again when nobody has
        the array any more. Where the disk is full it is in memory, which is measured; the disk is
        asked again after the next :meth:`plan`.
        """
        if n and not self._is_full:
            try:
                return np.frombuffer(self._numbers.take(n * np.dtype(dtype).itemsize), dtype)
            except OSError:
                self._is_full = True
        return np.empty(n, dtype)

    def settle_form(self, form: Chunk) -> Chunk:
        """Have another form of a chunk, under the same id, on the shelf beside it.

        Raises
        ------
        DataError
            When the disk does not take it.
        """
        try:
            (settled,) = self.settle([form])
        except OSError as error:
            raise DataError(
                f"{self.folder} takes no scaled copies of chunks ({error.strerror}): free some "
                "room, use more memory per worker, or name a folder with room in ELASTICML_SPILL",
                path=str(self.folder),
            ) from None
        self._beside[form.id] = settled.nbytes
        return settled

    def rank(self, importance: Mapping[ChunkId, float]) -> None:
        """Say how much each chunk matters, in all: of those that matter most a byte, many stay."""
        self.importance = dict(importance)

    def plan(self, chunks: Sequence[Chunk]) -> None:
        """Decide which of a member's chunks stay in memory; before each pass.

        What other things take of the memory is measured, so that states, models and whatever else
        grows push bodies out.
        """
        importance = self.importance
        self._is_full = False
        order = sorted(
            (chunk for chunk in chunks if chunk.is_mapped),
            key=lambda chunk: -importance.get(chunk.id, 0.0) / chunk.nbytes,
        )
        window = self._window(order)
        # Unpacked bodies are in no file, and are counted as bodies below: those in the pool, and
        # those that were unpacked before the member had to do with a disk.
        unpacked = sum(c.nbytes for c in order if c.is_packed and c.is_here and c.shelf is None)
        others = max(0, self._measure() - self.pool.held_bytes - unpacked)
        # Numbers of rows are in files, but looked at in every pass.
        left = self.limit_bytes - others - window - self._numbers.held_bytes
        if left < 0:
            self._spill.let_go()
        staying = set()
        for chunk in order:
            nbytes = self._taken(chunk) + self._beside.get(chunk.id, 0)
            if nbytes > left:
                break
            left -= nbytes
            staying.add(chunk.id)
        before, self.staying = self.staying, frozenset(staying)
        # What was looked at besides a pass goes as well, where that is known.
        self.release([c for c in order if c.id in before or (c.is_packed and c.is_here)])
        self.pool.trim(window)

    def _taken(self, chunk: Chunk) -> int:
        """Return the memory that a body takes while it is here."""
        return self.pool.size_of(chunk.nbytes) if chunk.is_packed else chunk.nbytes

    def _window(self, chunks: Sequence[Chunk]) -> int:
        """Return the memory of the batches that are here besides what stays."""
        # A batch holds one chunk at least, however large it is, or one form of it.
        largest = max((max(self._taken(c), self._beside.get(c.id, 0)) for c in chunks), default=0)
        # Small bodies that are unpacked take more memory than they have bytes.
        taken, nbytes = sum(map(self._taken, chunks)), sum(c.nbytes for c in chunks)
        return _WINDOW * max(math.ceil(self.batch_bytes * taken / max(1, nbytes)), largest)

    def flow(self, chunks: Sequence[Chunk]) -> Iterator[Chunk]:
        """Give chunks out in their order, with their bodies fetched ahead and let go behind."""
        batches = self.batches(chunks)
        for number in self.stages(batches, lambda number: number):
            yield from batches[number]

    def batches(self, chunks: Sequence[Chunk]) -> list[Sequence[Chunk]]:
        """Cut chunks into consecutive batches of at most ``batch_bytes``, or one chunk."""
        cuts, nbytes = [0], 0
        for number, chunk in enumerate(chunks):
            if nbytes and nbytes + chunk.nbytes > self.batch_bytes:
                cuts.append(number)
                nbytes = 0
            nbytes += chunk.nbytes
        ends = [*cuts[1:], len(chunks)]
        return [chunks[low:high] for low, high in zip(cuts, ends, strict=True) if high > low]

    def stages(
        self, batches: Sequence[Sequence[Chunk]], prepare: Callable[[int], T]
    ) -> Iterator[T]:
        """Go through batches, one in hand and the next ones under way.

        Parameters
        ----------
        prepare : callable (int) -> T
            What else is to be done ahead for the batch with this number; in a thread of its own.

        Yields
        ------
        T
            What was prepared, when the batch's bodies are here; they may be let go after that.
        """
        if not batches:
            return
        with self._counting:
            if self._readers is None:
                self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="em-shelf")
            submit = self._readers.submit

        #: Of each batch that is here, the chunks whose bodies must not go.
        pinned: dict[int, list[Chunk]] = {}

        def ready(number: int, former: int | None) -> T:
            put_back(former)
            held = pinned[number] = []
            for chunk in batches[number]:
                if chunk.is_mapped:
                    mapped.ask_for(chunk.stored)
            for chunk in batches[number]:
                if chunk.is_mapped:
                    _fetch(chunk, self)
                    held.append(chunk)
            return prepare(number)

        def put_back(number: int | None) -> None:
            if number is not None:
                for chunk in pinned.pop(number, []):
                    chunk.unpin()
                self.release(batches[number])

        #: What is here or under way, and what goes before each comes.
        here: deque[tuple[int, Future[T], int | None]] = deque()
        former: int | None = None
        try:
            for number in range(len(batches)):
                for k in range(number + len(here), min(number + _AHEAD + 1, len(batches))):
                    here.append((k, submit(ready, k, former), former))
                    former = None
                yield here[0][1].result()
                put_back(former)  # the last ones, after which nothing comes
                former = here.popleft()[0]
        finally:
            # Whoever worked has come to the end, has failed, or has seen enough.
            for k, future, before in here:
                if future.cancel():
                    put_back(before)
                else:
                    wait([future])
                    put_back(k)
            put_back(former)

    def release(self, chunks: Sequence[Chunk]) -> None:
        """Let go of bodies; those that stay, stay."""
        nbytes = 0
        for chunk in chunks:
            if not chunk.is_mapped or chunk.id in self.staying:
                continue
            if not chunk.is_packed:
                mapped.let_go(chunk.stored)
                nbytes += chunk.nbytes
            elif chunk.let_go():
                nbytes += chunk.nbytes
        with self._counting:
            self.streamed_bytes += nbytes

    def close(self) -> None:
        """Let the disk go with the last chunk that lies there, and what is kept for later use.

        A pass that is still going on ends as it may: its threads end when nobody has the shelf.
        """
        self._spill.close()
        self._numbers.trim(0)
        self.pool.trim(0)


def _fetch(chunk: Chunk, shelf: Shelf) -> None:
    """Have a mapped chunk's body here, unpacked and checked, until it is unpinned and let go."""
    if chunk.is_packed and chunk.is_here:
        chunk.bring(pin=True)
        return
    if chunk.is_packed:
        # One that was unpacked before the member had to do with a disk comes to the pool as well.
        chunk.shelf = shelf
    mapped.fetch(chunk.stored)
    chunk.bring(pin=True)
    if chunk.is_packed:
        mapped.let_go(chunk.stored)


def _copied(chunk: Chunk, place: memoryview) -> Chunk:
    """Copy a chunk, state and all, to a place in a file; other threads run meanwhile."""
    np.copyto(np.frombuffer(place, np.uint8), np.frombuffer(chunk.body, np.uint8))
    copy = Chunk(chunk.id, place.toreadonly())
    copy.is_mapped = True
    copy.state, copy.state_version = chunk.state, chunk.state_version
    return copy


def shelf_of(chunks: Sequence[Chunk]) -> Shelf | None:
    """Return the shelf on which the first of these chunks stands that is on one."""
    return next((chunk.shelf for chunk in chunks if chunk.shelf is not None), None)


def flow(chunks: Sequence[Chunk]) -> Iterator[Chunk]:
    """Give chunks out in their order; those on a shelf as they stream past.

    For loops that look at bodies. One that looks at ids and sizes alone needs none of them here.
    """
    shelf = shelf_of(chunks)
    return iter(chunks) if shelf is None else shelf.flow(chunks)


def numbers(chunk: Chunk, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return an array of a number for each row: in a file where the chunk is on a shelf.

    Not cleared.
    """
    shelf = chunk.shelf
    return np.empty(chunk.n_rows, dtype) if shelf is None else shelf.numbers(chunk.n_rows, dtype)


def kept(chunk: Chunk, values: NDArray[Any]) -> NDArray[Any]:
    """Return an array of a number for each row: itself, or a copy of it in a file."""
    if chunk.shelf is None:
        return values
    place = numbers(chunk, values.dtype)
    np.copyto(place, values)
    return place


def release(chunks: Sequence[Chunk]) -> None:
    """Let go of what of the bodies on a shelf was looked at besides a pass, such as labels."""
    shelf = shelf_of(chunks)
    if shelf is not None:
        shelf.release(chunks)


def make_room(chunks: Sequence[Chunk]) -> None:
    """Decide anew which bodies on a shelf stay in memory; before each pass over them."""
    shelf = shelf_of(chunks)
    if shelf is not None:
        shelf.plan(chunks)
