"""A list of records that keeps the recent ones as objects and older ones compressed."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

Record = dict[str, Any]
#: Compressed records, or the records themselves if they cannot be pickled.
Block = bytes | list[Record]

#: Records that are compressed together; few, because this happens on an event loop.
BLOCK: Final = 64
#: Memory of a record as an object, about.
RECORD_BYTES: Final = 2048
#: The last records stay uncompressed: clients that follow a job ask for them.
RECENT: Final = 1024


@dataclass(frozen=True, slots=True)
class RecordsView:
    """A snapshot of a range of records; blocks are decompressed during iteration."""

    blocks: tuple[Block, ...]
    #: Records to skip at the start of the first block.
    skipped: int
    recent: tuple[Record, ...]
    n: int

    def __len__(self) -> int:
        """Return the number of records."""
        return self.n

    def __iter__(self) -> Iterator[Record]:
        """Iterate over the records; each iteration may yield new objects."""
        left = self.n
        for k, block in enumerate(self.blocks):
            for record in _unpacked(block)[self.skipped if k == 0 else 0 :][:left]:
                left -= 1
                yield record
        yield from self.recent[:left]


class CompressedRecords(Sequence[Record]):
    """An append-only list of plain mappings that needs a fraction of a list's memory.

    Records must not be modified after they were appended. A mapping of a dozen names and numbers
    needs one to two kilobytes as an object, and about a hundred bytes compressed.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._blocks: list[Block] = []
        self._recent: list[Record] = []
        #: Number of records, which is read more often than the records.
        self._n = 0
        self.extend(records)

    def append(self, record: Record) -> None:
        """Append a record."""
        self._recent.append(record)
        self._n += 1
        if len(self._recent) >= RECENT + BLOCK:
            self._blocks.append(_packed(self._recent[:BLOCK]))
            del self._recent[:BLOCK]

    def compact(self) -> None:
        """Compress the recent records too: clients ask for them seldom now."""
        while len(self._recent) >= BLOCK:
            self._blocks.append(_packed(self._recent[:BLOCK]))
            del self._recent[:BLOCK]

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about."""
        packed = sum(
            len(block) if isinstance(block, bytes) else RECORD_BYTES * len(block)
            for block in self._blocks
        )
        return packed + RECORD_BYTES * len(self._recent)

    def extend(self, records: Iterable[Record]) -> None:
        """Append several records."""
        for record in records:
            self.append(record)

    def view(self, start: int, stop: int) -> RecordsView:
        """Return the records from ``start`` up to ``stop`` without decompressing them.

        Another thread may iterate over the result while records are appended here.
        """
        start, stop, _ = slice(start, stop).indices(len(self))
        packed = BLOCK * len(self._blocks)
        first, last = start // BLOCK, -(-min(stop, packed) // BLOCK)
        return RecordsView(
            blocks=tuple(self._blocks[first:last]),
            skipped=start % BLOCK,
            recent=tuple(self._recent[max(0, start - packed) : max(0, stop - packed)]),
            n=max(0, stop - start),
        )

    def __len__(self) -> int:
        """Return the number of records."""
        return self._n

    def __iter__(self) -> Iterator[Record]:
        """Iterate over the records present at the call."""
        return iter(self.view(0, len(self)))

    @overload
    def __getitem__(self, k: int) -> Record: ...

    @overload
    def __getitem__(self, k: slice) -> list[Record]: ...

    def __getitem__(self, k: int | slice) -> Record | list[Record]:
        """Return one record, or a list for a slice."""
        if isinstance(k, slice):
            start, stop, step = k.indices(len(self))
            if step != 1:
                return list(self)[k]
            return list(self.view(start, stop))
        at = range(len(self))[k]
        packed = BLOCK * len(self._blocks)
        return (
            self._recent[at - packed]
            if at >= packed
            else _unpacked(self._blocks[at // BLOCK])[at % BLOCK]
        )

    def __eq__(self, other: object) -> bool:
        """Compare with a list or another instance, record by record."""
        if not isinstance(other, list | CompressedRecords):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} records>"


def _packed(records: list[Record]) -> Block:
    try:
        return zlib.compress(pickle.dumps(records, -1), 1)
    except (pickle.PicklingError, TypeError, AttributeError):
        return records  # the job record of a simulation may hold objects that cannot be pickled


def _unpacked(block: Block) -> list[Record]:
    if isinstance(block, list):
        return block
    # These bytes were pickled in this process and never left it.
    records: list[Record] = pickle.loads(zlib.decompress(block))
    return records
