"""Slots of shared memory: write access, announcements, refusals."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from elasticml.collective.shared_memory import (
    NoSharedMemoryError,
    SlotPool,
    check_offer,
    map_slot,
    slot_mismatch,
    unpack_descriptor,
)

N = 1_000
NBYTES = 8 * N


def make_pool(**changes) -> SlotPool:
    return SlotPool(**{"bytes_min": 8, "n_links": 1, **changes})


def announced(pool: SlotPool, array: np.ndarray, exchange: int = 1):
    lease = pool.lease_of(memoryview(array))
    assert lease is not None
    raw = lease.describe(exchange)
    return None if raw is None else unpack_descriptor(raw)


def test_vector_announced_for_one_exchange_is_not_announced_for_another():
    pool = make_pool()
    vector = pool.take(NBYTES)
    assert announced(pool, vector, 7).exchange == 7
    assert announced(pool, vector, 7).exchange == 7
    assert announced(pool, vector, 8) is None


def test_slot_of_another_process_with_the_same_number_is_distinguished():
    mine, other = make_pool(), make_pool()
    vector, foreign = mine.take(NBYTES), other.take(NBYTES)
    place, theirs = announced(mine, vector), announced(other, foreign)
    assert (place.slot, place.sequence) == (theirs.slot, theirs.sequence)
    assert "another life's" in slot_mismatch(map_slot(theirs.pid, theirs.fd), place.pack())


def test_pool_stays_within_its_limit():
    pool = make_pool(slots_max=2)
    held = [pool.take(NBYTES) for _ in range(3)]
    assert [array is None for array in held] == [False, False, True]
    pool = make_pool(bytes_max=3 * NBYTES)
    held = [pool.take(NBYTES), pool.take(2 * NBYTES)]
    assert [array is None for array in held] == [False, True]


def test_idle_slots_of_another_size_are_freed_for_a_new_one():
    pool = make_pool(slots_max=2)
    held = [pool.take(NBYTES) for _ in range(2)]
    held.clear()
    held = [pool.take(10 * NBYTES) for _ in range(2)]
    assert [array.nbytes for array in held] == [10 * NBYTES] * 2


def test_memory_is_freed_with_the_last_link():
    pool = make_pool()
    pool.link_opened()
    held, dropped = pool.take(NBYTES), pool.take(NBYTES)
    place, idle = announced(pool, held), announced(pool, dropped)
    del dropped
    pool.link_closed()
    assert os.path.exists(f"/proc/self/fd/{idle.fd}")
    pool.link_closed()
    assert not os.path.exists(f"/proc/self/fd/{idle.fd}")
    assert os.path.exists(f"/proc/self/fd/{place.fd}")
    assert pool.take(NBYTES) is None
    del held
    assert not os.path.exists(f"/proc/self/fd/{place.fd}")


def test_slots_are_unnamed_files_of_this_user_alone():
    before = set(os.listdir("/dev/shm"))
    pool = make_pool()
    place = announced(pool, pool.take(NBYTES))
    assert set(os.listdir("/dev/shm")) == before
    facts = os.stat(f"/proc/self/fd/{place.fd}")
    assert (facts.st_mode & 0o7777, facts.st_uid) == (0o600, os.geteuid())
    with pytest.raises(PermissionError):
        os.ftruncate(place.fd, 0)


@pytest.mark.parametrize("become", ["/dev/null", "socket", "empty"])
def test_number_that_now_is_another_file_is_reported_as_such(become, tmp_path):
    pool = make_pool()
    vector = pool.take(NBYTES)
    place = announced(pool, vector)
    if become == "socket":
        with socket.socket() as other:
            os.dup2(other.fileno(), place.fd)
    else:
        path = tmp_path / "empty" if become == "empty" else become
        with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as other:
            os.dup2(other.fileno(), place.fd)
    with pytest.raises(NoSharedMemoryError) as caught:
        map_slot(place.pid, place.fd)
    assert (caught.value.is_gone, caught.value.is_other) == (False, True)


def test_offer_is_accepted_only_by_processes_that_can_open_it():
    pool = make_pool()
    offer = pool.offer()
    check_offer(offer)
    with pytest.raises(NoSharedMemoryError, match="is not the peer"):
        check_offer({**offer, "life": bytes(16).hex()})
    pool.close()
    with pytest.raises(NoSharedMemoryError, match=r"process \d+"):
        check_offer(offer)


def test_without_system_memory_vectors_go_through_the_link():
    # A limit on file length makes the reservation of pages fail, as full memory does.
    script = (
        "import resource\n"
        "from elasticml.collective.shared_memory import SlotPool\n"
        "pool = SlotPool(n_links=1)\n"
        "assert pool.take(1 << 20) is not None\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"
        "assert pool.take(1 << 22) is None\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
