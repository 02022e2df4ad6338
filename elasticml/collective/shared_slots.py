"""Vectors in memory that the host's other processes read in place: slots, and when one is reused.

A slot is a nameless file in memory (``memfd_create``, mode 0600) that a peer opens through
``/proc/<pid>/fd``: there is no name in ``/dev/shm`` that a killed process could leave behind, nor
that file system's limit. The kernel frees it with the last process that maps it.

Nobody counts by hand. Whoever holds the array of a slot, or a view of it, holds the slot; a link
holds the arrays that it has lent until its peer gives them back, and the peer gives one back when
it has dropped the last view of it. A slot that nobody holds is written to again. A peer that goes
without giving back may still read, or only be stopped: what it had is never written to again.
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

#: A shorter payload goes through the link itself: that is as fast, and holds no slot.
SHARED_BYTES_MIN: Final = 64 * 1024
#: What one process may have in slots, and how many. What goes beyond travels through the links.
POOL_BYTES_MAX: Final = 1024**3
SLOTS_MAX: Final = 64
_ALL_SEALS: Final = (
    fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    if hasattr(fcntl, "F_SEAL_SEAL")
    else 0
)


class Lease(Protocol):
    """What makes an array lendable."""

    def describe(self, exchange: int) -> bytes | None:
        """Say where the array lies, packed; None where it was lent as another exchange's."""
        ...

    def spoil(self) -> None:
        """Take note of a reader that went without giving the array back."""
        ...

    def dropped(self) -> None:
        """Take note that nobody here has a view of the array; from any thread, at any time."""
        ...


@dataclass(slots=True, eq=False)
class Slot:
    """One piece of shared memory of this process."""

    number: int
    fd: int
    memory: mmap.mmap
    #: The head.
    words: NDArray[np.uint64]
    #: Counts the vectors that have lain here.
    sequence: int = 0
    #: A reader went without a word; nobody writes here any more.
    is_spoilt: bool = False

    @property
    def capacity(self) -> int:
        """Bytes of the longest vector that fits."""
        return len(self.memory) - HEAD_BYTES


@dataclass(slots=True, eq=False)
class OwnLease:
    """A vector in a slot of this process's own."""

    pool: SlotPool
    slot: Slot
    nbytes: int
    exchange: int | None = None
    descriptor: bytes = b""

    def describe(self, exchange: int) -> bytes | None:
        """Commit the vector, at the first time, as this exchange's; see ``Lease``."""
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
    """The slots of one process, and the arrays here that can be lent: its own, and loans.

    Arrays may be taken and dropped in any thread. The lock is for those who take: an array may be
    dropped in the midst of any line, by the garbage collector in the very thread that holds the
    lock. What dropping does, each step of it at once, must therefore be expected everywhere.
    """

    bytes_max: int = POOL_BYTES_MAX
    slots_max: int = SLOTS_MAX
    #: Shorter vectors are not worth a slot.
    bytes_min: int = SHARED_BYTES_MIN
    life: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    #: By which peers find the slots.
    pid: int = field(default_factory=os.getpid)
    #: Why nothing is shared (any more); empty while it is.
    closed_because: str = ""
    #: Open links over which vectors are lent; without any, no slot is kept.
    n_links: int = 0
    #: Slots that nobody holds; those of dropped arrays come here by themselves.
    idle: deque[Slot] = field(default_factory=deque)
    _slots: dict[int, Slot] = field(default_factory=dict)
    _n_made: int = 0
    _leases: dict[int, tuple[weakref.ref[Any], Lease]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _probe: Slot | None = None

    def take(self, nbytes: int) -> Vector | None:
        """Return a vector of ``nbytes`` in shared memory, its values undefined.

        None where no peer could read it, where it would be too short or too much, or the system
        has no memory left: the caller makes an array of its own, which travels through the links.
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
            # Whoever should still look here finds nothing that is whole.
            slot.words[SEQUENCE] = 0
            slot.sequence += 1
        array: Vector = np.frombuffer(slot.memory, np.float64, nbytes // 8, HEAD_BYTES)
        self.enter(array, OwnLease(self, slot, nbytes))
        return array

    def enter(self, array: NDArray[Any], lease: Lease) -> None:
        """Make an array lendable for as long as anybody here has a view of it."""

        def drop(ref: weakref.ref[Any], key: int = id(array), lease: Lease = lease) -> None:
            known = self._leases.get(key)
            if known is not None and known[0] is ref:
                del self._leases[key]
            lease.dropped()

        self._leases[id(array)] = (weakref.ref(array, drop), lease)

    def lease_of(self, payload: memoryview | None) -> Lease | None:
        """Find the lease of the array that a payload is; None where it is no shared one."""
        if payload is None or payload.nbytes < self.bytes_min:
            return None
        ref, lease = self._leases.get(id(payload.obj), (None, None))
        array: Any = None if ref is None else ref()
        if array is None or array.nbytes != payload.nbytes or array is not payload.obj:
            return None
        return lease

    def offer(self) -> dict[str, Any]:
        """Say how a peer may find out whether it reads the memory of this process.

        Raises
        ------
        NoSharedMemoryError
            When this process has none to share.
        """
        if self.closed_because:
            raise NoSharedMemoryError(self.closed_because)
        with self._lock:
            if self._probe is None:
                try:
                    self._probe = _make_slot(0, self.life, 8)
                except (OSError, AttributeError) as fault:
                    self.closed_because = f"this system gives out no shared memory: {fault}"
                    raise NoSharedMemoryError(self.closed_because) from None
        return {"pid": self.pid, "fd": self._probe.fd, "life": self.life.hex()}

    def link_opened(self) -> None:
        """Count a link over which vectors can be lent."""
        self.n_links += 1

    def link_closed(self) -> None:
        """Give idle memory back to the system with the last link."""
        self.n_links -= 1
        if self.n_links == 0:
            self.discard_idle()

    def discard_idle(self) -> None:
        """Give the memory of all slots that nobody holds back to the system; from any thread."""
        with contextlib.suppress(IndexError):
            while True:
                self._discard(self.idle.pop())

    def stop(self, reason: str) -> None:
        """Share nothing new from now on; what is lent can still be opened."""
        self.closed_because = self.closed_because or reason

    def close(self) -> None:
        """Share nothing any more; what others have mapped stays until they are done."""
        self.stop("this process shares no memory any more")
        with self._lock:
            self.idle.clear()
            for slot in list(self._slots.values()):
                self._discard(slot)
            if self._probe is not None:
                os.close(self._probe.fd)
            self._probe = None

    def _idle_slot(self, nbytes: int) -> Slot | None:
        """Find a slot that fits, tightly enough, among those that nobody holds."""
        try:
            for _ in range(len(self.idle)):
                slot = self.idle.pop()  # the newest, which the processor's cache still has
                if slot.is_spoilt:
                    self._discard(slot)
                elif nbytes <= slot.capacity <= nbytes + nbytes // 4 + mmap.PAGESIZE:
                    return slot
                else:
                    self.idle.appendleft(slot)
        except IndexError:  # all discarded meanwhile
            pass
        return None

    def _new_slot(self, nbytes: int) -> Slot | None:
        """Make another slot, in place of idle ones of other sizes where there are too many."""
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
    """Make a slot whose pages are there: a page that is missing later is a SIGBUS, not an error."""
    fd = os.memfd_create("elasticml", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        size = -(-(HEAD_BYTES + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        os.fchmod(fd, 0o600)
        os.posix_fallocate(fd, 0, size)
        # Nobody can cut off what others have mapped.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _ALL_SEALS)
        memory = mmap.mmap(fd, size)
    except BaseException:
        os.close(fd)
        raise
    words = np.frombuffer(memory, np.uint64, HEAD_BYTES // 8)
    words[0], words[SLOT] = int.from_bytes(MAGIC, "little"), number
    words[LIFE : LIFE + 2] = np.frombuffer(life, np.uint64)
    return Slot(number, fd, memory, words)
