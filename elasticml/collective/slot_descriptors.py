"""Descriptors of vectors in another process's shared memory, and checks of a slot's content.

A descriptor travels in place of the vector. It names a slot (``shared_slots.py``) by process and
file descriptor, and repeats what the slot's header must contain. A reader that comes too late, or
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

#: A slot starts with a header of eight words: the magic number, then the same words as a
#: descriptor after its first one: owner, slot number and content. The sequence is 0 until the
#: content is complete.
HEAD_BYTES: Final = 64
MAGIC: Final = b"emlslot1"
LIFE, SLOT, SEQUENCE, EXCHANGE, NBYTES = 1, 3, 4, 5, 6
#: pid, descriptor, life, slot, sequence, exchange, bytes.
_DESCRIPTOR: Final = struct.Struct("<II16sQQQQ")
DESCRIPTOR_BYTES: Final = _DESCRIPTOR.size
assert DESCRIPTOR_BYTES == 8 * (NBYTES + 1)
#: The part of a descriptor that identifies the owner and the slot.
WHOSE: Final = slice(8 * LIFE, 8 * SEQUENCE)
#: Exchange and bytes, at the end of a descriptor.
_CONTENT: Final = struct.Struct("<QQ")
#: A reused file descriptor may be a pipe without a writer, or a terminal: do not block on either.
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_LOCAL_LIMITS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class NoSharedMemoryError(Exception):
    """This process cannot share memory, or not with that peer; the message says why.

    Parameters
    ----------
    is_gone : bool
        The owner has ended or has closed the slot.
    is_other : bool
        The file is not the expected one: the owner may have closed the slot, and its file
        descriptor may belong to another file now.
    """

    def __init__(self, message: str, is_gone: bool = False, is_other: bool = False) -> None:
        super().__init__(message)
        self.is_gone = is_gone
        self.is_other = is_other


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The location of a vector, and the content expected there."""

    pid: int
    fd: int
    #: Random id of the owner, which distinguishes it from another process with the same pid.
    life: bytes
    slot: int
    sequence: int
    exchange: int
    nbytes: int

    def pack(self) -> bytes:
        """Return the descriptor as bytes."""
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
    """Write a slot's header, and return the packed descriptor."""
    packed = _DESCRIPTOR.pack(pid, fd, life, slot, sequence, exchange, nbytes)
    memory[8 * SEQUENCE : DESCRIPTOR_BYTES] = packed[8 * SEQUENCE :]
    return packed


def unpack_descriptor(raw: bytes) -> Descriptor:
    """Unpack a descriptor from the beginning of ``raw``."""
    return Descriptor(*_DESCRIPTOR.unpack_from(raw))


def content_of(raw: bytes) -> tuple[int, int]:
    """Return exchange and length in bytes of a packed descriptor."""
    exchange, nbytes = _CONTENT.unpack_from(raw, 8 * EXCHANGE)
    return exchange, nbytes


def map_slot(pid: int, fd: int) -> mmap.mmap:
    """Map the memory behind a process's file descriptor, read-only.

    Raises
    ------
    NoSharedMemoryError
        When the process is gone, or the file is not this user's private memory (mode 0600).
    """
    try:
        own = os.open(f"/proc/{pid}/fd/{fd}", _OPEN_FLAGS)
    except OSError as fault:
        raise NoSharedMemoryError(
            f"the memory of process {pid} cannot be opened: {fault}",
            is_gone=fault.errno in (errno.ENOENT, errno.ESRCH),
            is_other=fault.errno not in _LOCAL_LIMITS,
        ) from None
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, own)
        try:
            status = os.fstat(own)
            if status.st_uid != os.geteuid() or status.st_mode & 0o177777 != 0o100600:
                raise NoSharedMemoryError(
                    f"the memory of process {pid} belongs to user {status.st_uid}, mode "
                    f"{status.st_mode & 0o7777:o}, wanted user {os.geteuid()}, mode 600",
                    is_other=True,
                )
            return mmap.mmap(own, status.st_size, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as fault:
            is_empty = isinstance(fault, ValueError)
            raise NoSharedMemoryError(
                f"the memory of process {pid}: {fault}", is_other=is_empty
            ) from None


def fault_of(memory: mmap.mmap, descriptor: bytes) -> str | None:
    """Return how a slot's content differs from a packed descriptor; None if it matches."""
    _, nbytes = _CONTENT.unpack_from(descriptor, 8 * EXCHANGE)
    if len(memory) < HEAD_BYTES + nbytes:
        return f"a slot of {len(memory)} bytes, wanted {HEAD_BYTES} + {nbytes}"
    # The header has the layout of the descriptor, so that one comparison suffices.
    if memory[:DESCRIPTOR_BYTES] == MAGIC + descriptor[8:]:
        return None
    found, expected = unpack_descriptor(memory[:HEAD_BYTES]), unpack_descriptor(descriptor)
    owner = "its owner's" if found.life == expected.life else "another life's"
    got, want = (
        f"slot {d.slot}, sequence {d.sequence}, exchange {d.exchange}, {d.nbytes} bytes"
        for d in (found, expected)
    )
    return f"{owner} {got}, wanted {want}"


def check_offer(offer: Mapping[str, Any]) -> None:
    """Check that the memory of the peer with this offer can be read here.

    Raises
    ------
    NoSharedMemoryError
        When the peer is on another host, in another container, of another user, or gone.
    """
    memory = map_slot(int(offer["pid"]), int(offer["fd"]))
    expected = Descriptor(0, 0, bytes.fromhex(offer["life"]), 0, 0, 0, 0)
    mismatch = fault_of(memory, expected.pack())
    if mismatch is not None:
        raise NoSharedMemoryError(f"process {offer['pid']} here is not the peer: {mismatch}")
