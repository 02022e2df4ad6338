"""Where a vector lies in another process's memory, and whether it is what lies there.

A descriptor travels instead of the vector. It names a slot (``shared_slots.py``) by process and
file descriptor, and says what the slot's head must say, so that a reader who comes too late, or
finds another file behind the number, sees that it is not the vector.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: A slot begins with eight words: a magic one, then, as in a descriptor behind its first word,
#: whose it is, which one, and what lies in it. The sequence is 0 until that is whole.
HEAD_BYTES: Final = 64
MAGIC: Final = b"emlslot1"
LIFE, SLOT, SEQUENCE, EXCHANGE, NBYTES = 1, 3, 4, 5, 6
#: pid, descriptor, life, slot, sequence, exchange, bytes.
_DESCRIPTOR: Final = struct.Struct("<II16sQQQQ")
DESCRIPTOR_BYTES: Final = _DESCRIPTOR.size
assert DESCRIPTOR_BYTES == 8 * (NBYTES + 1)
#: In a descriptor: which slot of whom.
WHOSE: Final = slice(8 * LIFE, 8 * SEQUENCE)
#: Exchange and bytes, at the end of a descriptor.
_CONTENT: Final = struct.Struct("<QQ")
#: What a number has become may be a pipe without a writer, or a terminal: wait for neither.
_TO_LOOK: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_NO_ROOM_HERE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class NoSharedMemoryError(Exception):
    """This process cannot share memory, or not with that peer; the message says why.

    Parameters
    ----------
    is_gone : bool
        The owner is no longer there, or has closed the slot.
    is_other : bool
        There is something else: perhaps the owner has closed the slot, and its number is another
        file's by now.
    """

    def __init__(self, message: str, is_gone: bool = False, is_other: bool = False) -> None:
        super().__init__(message)
        self.is_gone = is_gone
        self.is_other = is_other


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Where a vector lies, and which one must lie there."""

    pid: int
    fd: int
    #: Drawn by the owner when it begins to share; another process of the same pid has another one.
    life: bytes
    slot: int
    sequence: int
    exchange: int
    nbytes: int

    def pack(self) -> bytes:
        """Write it as bytes."""
        return _DESCRIPTOR.pack(
            self.pid, self.fd, self.life, self.slot, self.sequence, self.exchange, self.nbytes
        )


def commit(
    memory: mmap.mmap,
    pid: int,
    fd: int,
    life: bytes,
    slot: int,
    sequence: int,
    exchange: int,
    nbytes: int,
) -> bytes:
    """Have a slot's head say what lies there, and pack the descriptor that does."""
    place = _DESCRIPTOR.pack(pid, fd, life, slot, sequence, exchange, nbytes)
    memory[8 * SEQUENCE : DESCRIPTOR_BYTES] = place[8 * SEQUENCE :]
    return place


def unpack_descriptor(raw: bytes) -> Descriptor:
    """Read a descriptor back from the beginning of ``raw``."""
    return Descriptor(*_DESCRIPTOR.unpack_from(raw))


def content_of(raw: bytes) -> tuple[int, int]:
    """Read exchange and bytes from a descriptor."""
    exchange, nbytes = _CONTENT.unpack_from(raw, 8 * EXCHANGE)
    return exchange, nbytes


def map_slot(pid: int, fd: int) -> mmap.mmap:
    """Map the memory behind a process's file descriptor, to be read.

    Raises
    ------
    NoSharedMemoryError
        When there is none of this user's that others cannot read, or the process is gone.
    """
    try:
        own = os.open(f"/proc/{pid}/fd/{fd}", _TO_LOOK)
    except OSError as fault:
        raise NoSharedMemoryError(
            f"the memory of process {pid} is out of reach: {fault}",
            is_gone=fault.errno in (errno.ENOENT, errno.ESRCH),
            is_other=fault.errno not in _NO_ROOM_HERE,
        ) from None
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, own)
        try:
            facts = os.fstat(own)
            if facts.st_uid != os.geteuid() or facts.st_mode & 0o177777 != 0o100600:
                raise NoSharedMemoryError(
                    f"the memory of process {pid} belongs to user {facts.st_uid}, mode "
                    f"{facts.st_mode & 0o7777:o}, wanted user {os.geteuid()}, mode 600",
                    is_other=True,
                )
            return mmap.mmap(own, facts.st_size, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as fault:
            is_empty = isinstance(fault, ValueError)
            raise NoSharedMemoryError(
                f"the memory of process {pid}: {fault}", is_other=is_empty
            ) from None


def fault_of(memory: mmap.mmap, wanted: bytes) -> str | None:
    """Say why what lies in a slot is not what a packed descriptor says; None where it is."""
    _, nbytes = _CONTENT.unpack_from(wanted, 8 * EXCHANGE)
    if len(memory) < HEAD_BYTES + nbytes:
        return f"a slot of {len(memory)} bytes, wanted {HEAD_BYTES} + {nbytes}"
    # One comparison: the head is laid out as the descriptor is.
    if memory[:DESCRIPTOR_BYTES] == MAGIC + wanted[8:]:
        return None
    here, there = unpack_descriptor(memory[:HEAD_BYTES]), unpack_descriptor(wanted)
    owner = "its owner's" if here.life == there.life else "another life's"
    got, want = (
        f"slot {d.slot}, sequence {d.sequence}, exchange {d.exchange}, {d.nbytes} bytes"
        for d in (here, there)
    )
    return f"{owner} {got}, wanted {want}"


def check_offer(offer: Mapping[str, Any]) -> None:
    """Find out whether the memory of the peer that made this offer can be read here.

    Raises
    ------
    NoSharedMemoryError
        When it is on another host, in another container, another user's, or gone.
    """
    memory = map_slot(int(offer["pid"]), int(offer["fd"]))
    wanted = Descriptor(0, 0, bytes.fromhex(offer["life"]), 0, 0, 0, 0)
    fault = fault_of(memory, wanted.pack())
    if fault is not None:
        raise NoSharedMemoryError(f"process {offer['pid']} here is not the peer: {fault}")
