"""Records of a long run in memory: the last ones as they are, older ones packed."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

Record = dict[str, Any]
#: Packed records, or those that cannot be.
Block = bytes | list[Record]

#: Records that are packed together: a few at a time, since it happens on an event loop.
BLOCK: Final = 64
#: The last records are not packed: those who follow a job ask for them.
RECENT: Final = 1024


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some of the records, as they are now; unpacked while one goes through them."""

    blocks: tuple[Block, ...]
    #: Records of the blocks, before the recent ones, that are no part of it.
    skipped: int
    recent: tuple[Record, ...]
    n: int

    def __len__(self) -> int:
        """Count the records."""
        return self.n

    def __iter__(self) -> Iterator[Record]:
        """Go through the records; two goes may not yield the same objects."""
        left = self.n
        for k, block in enumerate(self.blocks):
            for record in _unpacked(block)[self.skipped if k == 0 else 0 :][:left]:
                left -= 1
                yield record
        yield from self.recent[:left]


class PackedRecords(Sequence[Record]):
    """A growing list of plain mappings that takes a fraction of a list's memory.

    What has been appended must not be changed any more. A mapping of a dozen names and numbers
    takes one to two kilobytes as an object, and some hundred bytes packed.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._blocks: list[Block] = []
        self._recent: list[Record] = []
        #: All of them: their number is asked for more often than they are.
        self._n = 0
        self.extend(records)

    def append(self, record: Record) -> None:
        """Add a record at the end."""
        self._recent.append(record)
        self._n += 1
        if len(self._recent) >= RECENT + BLOCK:
            self._blocks.append(_packed(self._recent[:BLOCK]))
            del self._recent[:BLOCK]

    def extend(self, records: Iterable[Record]) -> None:
        """Add records at the end."""
        for record in records:
            self.append(record)

    def stretch(self, start: int, stop: int) -> Stretch:
        """Return the records from ``start`` up to ``stop`` without unpacking them.

        Another thread may go through it while records are added here.
        """
        start, stop, _ = slice(start, stop).indices(len(self))
        packed = BLOCK * len(self._blocks)
        first, last = start // BLOCK, -(-min(stop, packed) // BLOCK)
        return Stretch(
            blocks=tuple(self._blocks[first:last]),
            skipped=start % BLOCK,
            recent=tuple(self._recent[max(0, start - packed) : max(0, stop - packed)]),
            n=max(0, stop - start),
        )

    def __len__(self) -> int:
        """Count the records."""
        return self._n

    def __iter__(self) -> Iterator[Record]:
        """Go through the records that there are now."""
        return iter(self.stretch(0, len(self)))

    @overload
    def __getitem__(self, k: int) -> Record: ...

    @overload
    def __getitem__(self, k: slice) -> list[Record]: ...

    def __getitem__(self, k: int | slice) -> Record | list[Record]:
        """Return one record, or a list of some."""
        if isinstance(k, slice):
            start, stop, step = k.indices(len(self))
            if step != 1:
                return list(self)[k]
            return list(self.stretch(start, stop))
        at = range(len(self))[k]
        packed = BLOCK * len(self._blocks)
        return (
            self._recent[at - packed]
            if at >= packed
            else _unpacked(self._blocks[at // BLOCK])[at % BLOCK]
        )

    def __eq__(self, other: object) -> bool:
        """Whether these are the records of a list, or of another one like this."""
        if not isinstance(other, list | PackedRecords):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} records>"


def _packed(records: list[Record]) -> Block:
    try:
        return zlib.compress(pickle.dumps(records, -1), 1)
    except (pickle.PicklingError, TypeError, AttributeError):
        return records  # a simulated job's record may hold what only its own process knows


def _unpacked(block: Block) -> list[Record]:
    if isinstance(block, list):
        return block
    # Our own bytes, which have never left this process.
    found: list[Record] = pickle.loads(zlib.decompress(block))
    return found
