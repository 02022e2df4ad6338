"""Identifiers and units shared by every layer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, NewType

#: The package's version; processes of one job must agree on it.
VERSION: Final = "0.1.0"

Generation = NewType("Generation", int)
ExchangeId = NewType("ExchangeId", int)
GroupId = NewType("GroupId", int)

#: Stands for none; exchanges are counted from 1.
NO_EXCHANGE = ExchangeId(0)

#: Slots whose bits may stand in a contributor mask; bit ``s`` is the member in slot ``s``.
Mask = NewType("Mask", int)


# Ids are tuples, no dataclasses: with a thousand chunks, comparing and hashing them is most of what
# the driver does between two rounds, and a tuple does it without Python code.
class MemberId(NamedTuple):
    """One life of a member: a slot that may be refilled and an incarnation that is never reused."""

    slot: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.slot}.{self.incarnation}"

    @property
    def bit(self) -> Mask:
        """The slot's bit in a contributor mask."""
        return Mask(1 << self.slot)


def member_id(text: str) -> MemberId:
    """Read a member id back from ``str(member)``."""
    slot, incarnation = text.split(".")
    return MemberId(int(slot), int(incarnation))


class ChunkId(NamedTuple):
    """Identity of a chunk: the source it was read from, the block in it, its place in the block."""

    source: str
    block: int
    ordinal: int

    def __str__(self) -> str:
        return f"{self.source}/{self.block}/{self.ordinal}"


def chunk_id(text: str) -> ChunkId:
    """Read a chunk id back from ``str(chunk)``."""
    source, block, ordinal = text.rsplit("/", 2)
    return ChunkId(source, int(block), int(ordinal))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkInfo:
    """What the ledger knows of a chunk without holding it."""

    id: ChunkId
    rows: int
    nbytes: int


def mask_of(slots: Iterable[int]) -> Mask:
    """Return the mask with these slots' bits; linear in the slots and the largest of them."""
    found = list(slots)
    if len(found) < 8:
        mask = 0
        for slot in found:
            mask |= 1 << slot
        return Mask(mask)
    flags = bytearray(max(found) // 8 + 1)
    for slot in found:
        flags[slot >> 3] |= 1 << (slot & 7)
    return Mask(int.from_bytes(flags, "little"))


def members_in(mask: int, members: Iterable[MemberId]) -> frozenset[MemberId]:
    """Choose those members whose slots' bits stand in a mask; linear in members and slots."""
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
    """Bytes of a size such as ``"1 MiB"``, ``"200 KiB"``, ``"2GB"`` or ``4096``.

    Raises
    ------
    ValueError
        When the text is no number with an optional unit.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.match(text)
    unit = match.group(2).lower() if match else None
    if match is None or unit not in _UNITS:
        raise ValueError(f"size {text!r} is not a number with a unit such as '1 MiB'")
    return int(float(match.group(1)) * _UNITS[unit])


def format_size(nbytes: float) -> str:
    """Write a number of bytes with a binary unit, for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024 or unit == "GiB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    raise AssertionError("unreachable")
