"""The random order in which a member's rows are visited, in memory or batch by batch.

In memory, the buckets of all chunks are put into one random order. On a disk, first the chunks are,
then the buckets of as many chunks as are in memory at a time: XORSHIFT draws a batch's order in the
thread that fetches the batch, while the rows of the batch before it are visited. No order is
stored: the same seed numbers give it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from elasticml.algorithms.cocoa import sdca_kernels
from elasticml.algorithms.cocoa.chunk_pointers import Piece
from elasticml.algorithms.cocoa.duhl import DuhlSelection
from elasticml.arrays import I64
from elasticml.data.out_of_core.store import OutOfCoreStore, store_of

#: Called with the number of a piece whose body is loaded.
Measure = Callable[[int], None]

_MASK: Final = 2**64 - 1
#: Rows of a bucket for data that fit in a processor's cache, and for larger data, for which longer
#: runs read faster.
BUCKET: Final = 8
LONG_BUCKET: Final = 64
#: Stored values from which long buckets are used.
LONG_FROM: Final = 8_000_000


class VisitOrder:
    """The order of visits to a member's rows; ``bind``, then any number of epochs.

    Parameters
    ----------
    skips : bool
        Skip chunks that would have to be read and matter little, see
        :mod:`elasticml.algorithms.cocoa.duhl`.
    """

    def __init__(self, *, skips: bool = False) -> None:
        self._turns = DuhlSelection() if skips else None
        self._pieces: Sequence[Piece] = ()
        self._visits = np.zeros(0, np.int64)
        self._starts = np.zeros(1, np.int64)
        #: Where rows stream from.
        self.store: OutOfCoreStore | None = None

    def bind(self, pieces: Sequence[Piece], bucket: int) -> None:
        """Lay out the visits: the chunk in a number's upper 32 bits, its first row in the lower.

        Parameters
        ----------
        bucket : int
            Consecutive rows visited together.
        """
        each = [
            (number << 32) + np.arange(0, piece.chunk.n_rows, bucket, dtype=np.int64)
            for number, piece in enumerate(pieces)
        ]
        self._pieces = pieces
        self._visits = np.concatenate(each) if each else np.zeros(0, np.int64)
        self._starts = np.cumsum([0, *(part.size for part in each)], dtype=np.int64)
        self.store = store_of([piece.chunk for piece in pieces])

    @property
    def size(self) -> int:
        """Visits per epoch."""
        return self._visits.size

    @property
    def n_batches(self) -> int:
        """Batches per epoch."""
        if self.store is None:
            return 1
        return len(self.store.batches([piece.chunk for piece in self._pieces]))

    def epoch(
        self,
        key: tuple[int, int, int],
        share: float,
        *,
        whole: bool = False,
        measure: Measure = lambda number: None,
    ) -> Iterator[I64]:
        """Yield an epoch's visits: all at once, or batch by batch where rows stream.

        Parameters
        ----------
        key : tuple of int
            Seed, pass and epoch: they determine the order.
        share : float
            A fraction of an epoch visits a random share of the buckets (of the chunks, where they
            stream).
        whole : bool
            Skip no chunk.
        measure : callable
            Where bodies stream, called before each one's rows are visited, in the thread that
            fetches it.

        Yields
        ------
        ndarray (any,), int64
            The bodies of its chunks are loaded while it is processed.
        """
        if self.store is not None:
            yield from self._streamed(self.store, key, share, whole, measure)
            return
        order = self._visits.copy()
        sdca_kernels.shuffle(order, mix_hash(*key))
        # A fraction of an epoch visits the first buckets of its order.
        yield order[: max(1, round(share * order.size))]

    def _streamed(
        self,
        out_of_core: OutOfCoreStore,
        key: tuple[int, int, int],
        share: float,
        whole: bool,
        measure: Measure,
    ) -> Iterator[I64]:
        turns = np.arange(len(self._pieces), dtype=np.int64)
        if self._turns is not None and share == 1.0:
            chunks = [piece.chunk for piece in self._pieces]
            past = out_of_core.importance, out_of_core.resident
            turns = turns[self._turns.next(chunks, *past, whole=whole)]
        sdca_kernels.shuffle(turns, mix_hash(*key))
        numbers = turns[: max(1, round(share * turns.size))].tolist()
        batches = out_of_core.batches([self._pieces[number].chunk for number in numbers])
        ends = np.cumsum([len(batch) for batch in batches]).tolist()

        def ordered(k: int) -> I64:
            some = numbers[ends[k] - len(batches[k]) : ends[k]]
            for number in some:
                measure(number)
            parts = [self._visits[self._starts[n] : self._starts[n + 1]] for n in some]
            order = np.concatenate(parts)
            sdca_kernels.shuffle(order, mix_hash(*key, k + 1))
            return order

        for order in out_of_core.stages(batches, ordered):
            if order.size:
                yield order


def mix_hash(*numbers: int) -> int:
    """Hash integers into one of 63 bits (splitmix64)."""
    z = 0
    for number in numbers:
        z = ((z ^ number) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z ^= z >> 31
    return z >> 1


def bucket_for(stored: int) -> int:
    """Return the bucket size for data with this number of stored values."""
    return BUCKET if stored < LONG_FROM else LONG_BUCKET
