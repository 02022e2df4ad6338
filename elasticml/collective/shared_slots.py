"""Vectors in shared memory that other processes of the host read in place: slots and their reuse.

A slot is an anonymous file in memory (``memfd_create``, mode 0600) that a peer opens through
``/proc/<pid>/fd``. It has no name in ``/dev/shm`` that a killed process could leave behind, and is
not subject to that file system's limit. The kernel frees it when the last process unmaps it.

There is no explicit reference count. A slot is in use as long as something holds its array or a
view of it. A link holds each array that it has lent until the peer returns it; the peer returns it
when its last view is dropped. A slot that is not in use is written again. A peer that disconnects
without returning a slot may still be reading it, or may only be stopped: that slot is never written
again.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.collective.slot_descriptors import (
    HEAD_BYTES,
    LIFE,
    MAGIC,
    SEQUENCE,
    SLOT,
    NoSharedMemoryError,
    commit,
)

Vector = NDArray[np.float64]

#: Shorter payloads are sent through the link: that is as fast and needs no slot.
SHARED_BYTES_MIN: Final = 64 * 1024
#: Limits of a process's slots, in bytes and number. Further vectors are sent through the links.
POOL_BYTES_MAX: Final = 1024**3
SLOTS_MAX: Final = 64
_ALL_SEALS: Final = (
    fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    if hasattr(fcntl, "F_SEAL_SEAL")
    else 0
)


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
            self.descriptor = commit(
                slot.memory,
                pool.pid,
                slot.fd,
                pool.life,
                slot.number,
                slot.sequence,
                exchange,
                self.nbytes,
            )
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

    def take(self, nbytes: int) -> Vector | None:
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
        array: Vector = np.frombuffer(slot.memory, np.float64, nbytes // 8, HEAD_BYTES)
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
    fd = os.memfd_create("elasticml", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
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
