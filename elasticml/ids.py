"""Identifiers, sizes and units that every layer shares."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, NewType

#: Version of the package; all processes of a job must run the same one.
VERSION: Final = "0.1.0"
#: Format version of job records; the scheduler rejects others.
RECORD_VERSION: Final = 1

Generation = NewType("Generation", int)
ExchangeId = NewType("ExchangeId", int)
GroupId = NewType("GroupId", int)

#: No exchange; real ids start at 1.
NO_EXCHANGE = ExchangeId(0)

#: Bit mask of contributors; bit ``s`` is the member in slot ``s``.
Mask = NewType("Mask", int)


# Ids are tuples, not dataclasses: with a thousand chunks, comparing and hashing ids dominates the
# driver's work between two rounds, and tuples do it without running Python code.
class MemberId(NamedTuple):
    """One incarnation of a member: a reusable slot and an incarnation number used only once."""

    slot: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.slot}.{self.incarnation}"

    @property
    def bit(self) -> Mask:
        """The bit of the slot in a contributor mask."""
        return Mask(1 << self.slot)


def member_id(text: str) -> MemberId:
    """Parse a member id from ``str(member)``."""
    slot, incarnation = text.split(".")
    return MemberId(int(slot), int(incarnation))


class ChunkId(NamedTuple):
    """Chunk id: the source, the block of the source, and the chunk's index within the block."""

    source: str
    block: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self.source}/{self.block}/{self.ordinal}"


#: What the rows of a chunk are for.
Role = Literal["train", "validation", "test"]
#: Chunks with ordinals from this one on hold rows of a role.
ROLE_ORDINALS: Final[Mapping[Role, int]] = {"train": 0, "validation": 1 << 24, "test": 1 << 25}


def role_of(id: ChunkId) -> Role:
    """Return what the rows of a chunk are for; those that are not for training are scored only."""
    return max((start, role) for role, start in ROLE_ORDINALS.items() if id.ordinal >= start)[1]


def is_trained(id: ChunkId) -> bool:
    """Whether a chunk holds training rows."""
    return id.ordinal < ROLE_ORDINALS["validation"]


def chunk_id(text: str) -> ChunkId:
    """Parse a chunk id from ``str(chunk)``."""
    source, block, ordinal = text.rsplit("/", 2)
    return ChunkId(source, int(block), int(ordinal))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkInfo:
    """Metadata of a chunk that the ledger keeps: id, rows and bytes."""

    id: ChunkId
    #: Training examples; none in a chunk of validation or test rows.
    rows: int
    nbytes: int


def mask_of(slots: Iterable[int]) -> Mask:
    """Return the mask of the given slots, in time linear in their number and the largest slot."""
    indices = list(slots)
    if len(indices) < 8:
        mask = 0
        for slot in indices:
            mask |= 1 << slot
        return Mask(mask)
    flags = bytearray(max(indices) // 8 + 1)
    for slot in indices:
        flags[slot >> 3] |= 1 << (slot & 7)
    return Mask(int.from_bytes(flags, "little"))


def members_in(mask: int, members: Iterable[MemberId]) -> frozenset[MemberId]:
    """Return the members whose slots are set in a mask, in time linear in members and slots."""
    digits = f"{mask:b}"[::-1]
    n = len(digits)
    return frozenset(m for m in members if m[0] < n and digits[m[0]] == "1")


_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*$")
_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_size(text: str | int) -> int:
    """Parse a size such as ``"1 MiB"``, ``"200 KiB"``, ``"2GB"`` or ``4096`` into bytes.

    Raises
    ------
    ValueError
        When the text is not a number with an optional unit.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.match(text)
    unit = match.group(2).lower() if match else None
    if match is None or unit not in _UNITS:
        raise ValueError(f"size {text[:60]!r} is not a number with a unit such as '1 MiB'")
    return int(float(match.group(1)) * _UNITS[unit])


def format_size(nbytes: float) -> str:
    """Format a number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024 or unit == "GiB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    raise AssertionError("unreachable")
