"""Vectors in shared memory: slots, the descriptors that locate them, and when slots are reused.

A slot is an anonymous file in memory (``memfd_create``, mode 0600) that a peer opens through
``/proc/<pid>/fd``. It has no name in ``/dev/shm`` that a killed process could leave behind, and is
not subject to that file system's limit. The kernel frees it when the last process unmaps it.

A descriptor travels in place of the vector. It names the slot by process and file descriptor and
repeats what the slot's header must contain. A reader that comes too late, or finds another file
behind the number, sees that it is not the vector.

There is no explicit reference count. A slot is in use as long as someone holds its array or a view
of it. A link holds each array that it has lent until the peer returns it; the peer returns it when
its last view is dropped. A slot that is not in use is written again. A peer that disconnects
without returning a slot may still be reading it, or may only be stopped: that slot is never written
again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
import struct
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.arrays import F64

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
#: A reused file descriptor may be a pipe without a writer, a terminal or a device: opening the path
#: alone neither blocks nor has an effect on any of them.
_PATH_FLAGS: Final = getattr(os, "O_PATH", 0) | os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC
#: Name of our memory files, and where their links in ``/proc`` lead.
_MEMORY_NAME: Final = "elasticml"
_LINK_NAME: Final = f"/memfd:{_MEMORY_NAME} (deleted)"
_ALL_SEALS: Final = (
    fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    if hasattr(fcntl, "F_SEAL_SEAL")
    else 0
)
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


class Descriptor(NamedTuple):
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
        return _DESCRIPTOR.pack(*self)


def commit(memory: mmap.mmap, descriptor: Descriptor) -> bytes:
    """Write a slot's header, and return the packed descriptor."""
    packed = descriptor.pack()
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
    """Map a slot of another process, read-only, by the numbers that a peer gives.

    The numbers may lead to any file of this user. It is opened as a path first, which has no effect
    on the file, and for reading only if it is a sealed memory file that elasticml has created.

    Raises
    ------
    NoSharedMemoryError
        When the process is gone, or the file is not such a file of this user (mode 0600).
    """
    try:
        path = os.open(f"/proc/{pid}/fd/{fd}", _PATH_FLAGS)
    except OSError as fault:
        raise NoSharedMemoryError(
            f"the memory of process {pid} cannot be opened: {fault}",
            is_gone=fault.errno in (errno.ENOENT, errno.ESRCH),
            is_other=fault.errno not in _LOCAL_LIMITS,
        ) from None
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, path)
        try:
            status, link = os.fstat(path), f"/proc/self/fd/{path}"
            if status.st_uid != os.geteuid() or status.st_mode & 0o177777 != 0o100600:
                raise NoSharedMemoryError(
                    f"the memory of process {pid} belongs to user {status.st_uid}, mode "
                    f"{status.st_mode & 0o7777:o}, wanted user {os.geteuid()}, mode 600",
                    is_other=True,
                )
            if os.readlink(link) != _LINK_NAME:
                raise NoSharedMemoryError(
                    f"file {fd} of process {pid} is not memory of elasticml", is_other=True
                )
            own = os.open(link, _OPEN_FLAGS)
            stack.callback(os.close, own)
            if fcntl.fcntl(own, fcntl.F_GET_SEALS) != _ALL_SEALS or status.st_size < HEAD_BYTES:
                raise NoSharedMemoryError(
                    f"the memory of process {pid} is not sealed, or shorter than a slot's header",
                    is_other=True,
                )
            return mmap.mmap(own, status.st_size, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError) as fault:
            raise NoSharedMemoryError(
                f"the memory of process {pid}: {fault}",
                is_other=isinstance(fault, ValueError) or fault.errno not in _LOCAL_LIMITS,
            ) from None


def slot_mismatch(memory: mmap.mmap, descriptor: bytes) -> str | None:
    """Return how a slot's content differs from a packed descriptor; None if it matches."""
    _, nbytes = _CONTENT.unpack_from(descriptor, 8 * EXCHANGE)
    if len(memory) < HEAD_BYTES + nbytes:
        return f"a slot of {len(memory)} bytes, wanted {HEAD_BYTES} + {nbytes}"
    # The header has the layout of the descriptor, so that one comparison suffices.
    if memory[:DESCRIPTOR_BYTES] == MAGIC + descriptor[8:]:
        return None
    actual, expected = unpack_descriptor(memory[:HEAD_BYTES]), unpack_descriptor(descriptor)
    owner = "its owner's" if actual.life == expected.life else "another life's"
    got, want = (
        f"slot {d.slot}, sequence {d.sequence}, exchange {d.exchange}, {d.nbytes} bytes"
        for d in (actual, expected)
    )
    return f"{owner} {got}, wanted {want}"


def check_offer(offer: object) -> None:
    """Check that the memory of the peer with this offer can be read here.

    Raises
    ------
    NoSharedMemoryError
        When the peer is on another host, in another container, of another user, or gone, or the
        offer is none.
    """
    match offer:
        case {"pid": int() as pid, "fd": int() as fd, "life": str() as life} if (
            pid > 0 and fd >= 0 and re.fullmatch("[0-9a-f]{32}", life)
        ):
            memory = map_slot(pid, fd)
        case _:
            raise NoSharedMemoryError("the offer is not one of elasticml", is_other=True)
    expected = Descriptor(0, 0, bytes.fromhex(life), 0, 0, 0, 0)
    mismatch = slot_mismatch(memory, expected.pack())
    if mismatch is not None:
        raise NoSharedMemoryError(f"process {pid} here is not the peer: {mismatch}")


#: Shorter payloads are sent through the link: that is as fast and needs no slot.
SHARED_BYTES_MIN: Final = 64 * 1024
#: Limits of a process's slots, in bytes and number. Further vectors are sent through the links.
POOL_BYTES_MAX: Final = 1024**3
SLOTS_MAX: Final = 64


class Lease(Protocol):
    """Makes an array lendable."""

    def describe(self, exchange: int) -> bytes | None:
        """Return the packed descriptor of the array; None if it was lent in another exchange."""
        ...

    def spoil(self) -> None:
        """Record that a reader disconnected without returning the array."""
        ...

    def dropped(self) -> None:
        """Record that the last view in this process is gone; from any thread, at any time."""
        ...


@dataclass(slots=True, eq=False)
class Slot:
    """One block of shared memory of this process."""

    number: int
    fd: int
    memory: mmap.mmap
    #: The header.
    words: NDArray[np.uint64]
    #: Counts the vectors written here.
    sequence: int = 0
    #: A reader disconnected without returning the slot; it must not be written again.
    is_spoilt: bool = False

    @property
    def capacity(self) -> int:
        """Bytes available for a vector."""
        return len(self.memory) - HEAD_BYTES


@dataclass(slots=True, eq=False)
class OwnLease:
    """The lease of a vector in a slot of this process."""

    pool: SlotPool
    slot: Slot
    nbytes: int
    exchange: int | None = None
    descriptor: bytes = b""

    def describe(self, exchange: int) -> bytes | None:
        """Commit the vector to its first exchange; see ``Lease``."""
        if self.exchange is None:
            slot, pool, self.exchange = self.slot, self.pool, exchange
            described = Descriptor(
                pool.pid, slot.fd, pool.life, slot.number, slot.sequence, exchange, self.nbytes
            )
            self.descriptor = commit(slot.memory, described)
        return self.descriptor if self.exchange == exchange else None

    def spoil(self) -> None:
        """See ``Lease``."""
        self.slot.is_spoilt = True

    def dropped(self) -> None:
        """See ``Lease``."""
        self.pool.idle.append(self.slot)
        if self.pool.n_links == 0:
            self.pool.discard_idle()


@dataclass(slots=True)
class SlotPool:
    """The slots of one process, and the lendable arrays in it: its own and borrowed ones.

    Arrays may be taken and dropped in any thread. The lock serializes only ``take``: the garbage
    collector may drop an array at any line, even in the thread that holds the lock. Each step of
    dropping is therefore atomic, and every other method must expect it between any two lines.
    """

    bytes_max: int = POOL_BYTES_MAX
    slots_max: int = SLOTS_MAX
    #: Shorter vectors get no slot.
    bytes_min: int = SHARED_BYTES_MIN
    life: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    #: Peers open the slots through this process id.
    pid: int = field(default_factory=os.getpid)
    #: Why sharing has stopped; empty while it has not.
    closed_because: str = ""
    #: Open links over which vectors are lent; without a link no slot is kept.
    n_links: int = 0
    #: Slots not in use; dropping an array adds its slot.
    idle: deque[Slot] = field(default_factory=deque)
    _slots: dict[int, Slot] = field(default_factory=dict)
    _n_made: int = 0
    _leases: dict[int, tuple[weakref.ref[Any], Lease]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _probe: Slot | None = None

    def take(self, nbytes: int) -> F64 | None:
        """Return an uninitialized vector of ``nbytes`` in shared memory.

        None if no peer could read it, the vector is too short, the pool is full, or the system is
        out of memory. The caller then allocates an ordinary array, which is sent through the links.
        """
        if self.n_links == 0 or self.closed_because or nbytes < self.bytes_min or nbytes % 8:
            return None
        with self._lock:
            slot = self._idle_slot(nbytes)
            if slot is None:
                try:
                    slot = self._new_slot(nbytes)
                except OSError:
                    return None
            if slot is None:
                return None
            # A stale reader of the slot finds it incomplete.
            slot.words[SEQUENCE] = 0
            slot.sequence += 1
        array: F64 = np.frombuffer(slot.memory, np.float64, nbytes // 8, HEAD_BYTES)
        self.enter(array, OwnLease(self, slot, nbytes))
        return array

    def enter(self, array: NDArray[Any], lease: Lease) -> None:
        """Make an array lendable as long as this process has a view of it."""

        def drop(ref: weakref.ref[Any], key: int = id(array), lease: Lease = lease) -> None:
            entry = self._leases.get(key)
            if entry is not None and entry[0] is ref:
                del self._leases[key]
            lease.dropped()

        self._leases[id(array)] = (weakref.ref(array, drop), lease)

    def lease_of(self, payload: memoryview | None) -> Lease | None:
        """Return the lease of a payload's array; None if it is not in shared memory."""
        if payload is None or payload.nbytes < self.bytes_min:
            return None
        ref, lease = self._leases.get(id(payload.obj), (None, None))
        array: Any = None if ref is None else ref()
        if array is None or array.nbytes != payload.nbytes or array is not payload.obj:
            return None
        return lease

    def offer(self) -> dict[str, Any]:
        """Return what a peer needs to test whether it can read the memory of this process.

        Raises
        ------
        NoSharedMemoryError
            When this process cannot share memory.
        """
        if self.closed_because:
            raise NoSharedMemoryError(self.closed_because)
        with self._lock:
            if self._probe is None:
                try:
                    self._probe = _make_slot(0, self.life, 8)
                except (OSError, AttributeError) as fault:
                    self.closed_because = f"this system provides no shared memory: {fault}"
                    raise NoSharedMemoryError(self.closed_because) from None
        return {"pid": self.pid, "fd": self._probe.fd, "life": self.life.hex()}

    def link_opened(self) -> None:
        """Count a link over which vectors can be lent."""
        self.n_links += 1

    def link_closed(self) -> None:
        """Count a closed link; the last one frees the idle slots."""
        self.n_links -= 1
        if self.n_links == 0:
            self.discard_idle()

    def discard_idle(self) -> None:
        """Free all slots that are not in use; from any thread."""
        with contextlib.suppress(IndexError):
            while True:
                self._discard(self.idle.pop())

    def stop(self, reason: str) -> None:
        """Lend nothing more; existing loans can still be opened."""
        self.closed_because = self.closed_because or reason

    def close(self) -> None:
        """Stop sharing and free all slots; other processes keep their mappings."""
        self.stop("this process no longer shares memory")
        with self._lock:
            self.idle.clear()
            for slot in list(self._slots.values()):
                self._discard(slot)
            if self._probe is not None:
                os.close(self._probe.fd)
            self._probe = None

    def _idle_slot(self, nbytes: int) -> Slot | None:
        """Take an idle slot of at least this size, but not much more."""
        try:
            for _ in range(len(self.idle)):
                slot = self.idle.pop()  # the newest, which is most likely still in the CPU cache
                if slot.is_spoilt:
                    self._discard(slot)
                elif nbytes <= slot.capacity <= nbytes + nbytes // 4 + mmap.PAGESIZE:
                    return slot
                else:
                    self.idle.appendleft(slot)
        except IndexError:  # all slots were discarded in the meantime
            pass
        return None

    def _new_slot(self, nbytes: int) -> Slot | None:
        """Create a slot, freeing idle slots of other sizes as needed; None if the pool is full."""
        with contextlib.suppress(IndexError):
            while self._is_full(nbytes):
                self._discard(self.idle.popleft())
        if self._is_full(nbytes):
            return None
        self._n_made += 1
        slot = self._slots[self._n_made] = _make_slot(self._n_made, self.life, nbytes)
        return slot

    def _is_full(self, nbytes: int) -> bool:
        used = sum(len(slot.memory) for slot in list(self._slots.values()))
        return len(self._slots) >= self.slots_max or used + nbytes + HEAD_BYTES > self.bytes_max

    def _discard(self, slot: Slot) -> None:
        if self._slots.pop(slot.number, None) is not None:
            os.close(slot.fd)


def _make_slot(number: int, life: bytes, nbytes: int) -> Slot:
    """Create a slot with all pages allocated: a page that cannot be had later is a SIGBUS."""
    fd = os.memfd_create(_MEMORY_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        size = -(-(HEAD_BYTES + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        os.fchmod(fd, 0o600)
        os.posix_fallocate(fd, 0, size)
        # Prevent truncation of memory that others have mapped.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _ALL_SEALS)
        memory = mmap.mmap(fd, size)
    except BaseException:
        os.close(fd)
        raise
    words = np.frombuffer(memory, np.uint64, HEAD_BYTES // 8)
    words[0], words[SLOT] = int.from_bytes(MAGIC, "little"), number
    words[LIFE : LIFE + 2] = np.frombuffer(life, np.uint64)
    return Slot(number, fd, memory, words)
