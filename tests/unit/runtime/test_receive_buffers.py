"""Bodies that arrive together share a buffer, and free it one by one."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from elasticml.runtime.chunks.chunk_store import SLAB_BYTES_MIN, ReceiveBuffers

MIB = 2**20


def resident_mib() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096 / MIB


def fill(body: memoryview, number: int) -> memoryview:
    np.frombuffer(body, np.uint8)[:] = number
    return body


@pytest.mark.parametrize("sizes", [[100, 7, 64], [SLAB_BYTES_MIN - 100, 1000, 77]])
def test_bodies_are_aligned_disjoint_and_of_the_requested_length(sizes: list[int]) -> None:
    slab = ReceiveBuffers(sizes)
    bodies = [fill(slab.take(size), k) for k, size in enumerate(sizes)]
    assert [body.nbytes for body in bodies] == sizes
    assert [np.frombuffer(body, np.uint8).ctypes.data % 64 for body in bodies] == [0, 0, 0]
    assert [set(bytes(body)) for body in bodies] == [{0}, {1}, {2}]


def test_an_unreferenced_body_frees_its_memory_while_others_stay() -> None:
    slab = ReceiveBuffers([32 * MIB, 32 * MIB])
    kept, dropped = fill(slab.take(32 * MIB), 1), fill(slab.take(32 * MIB), 2)
    view = np.frombuffer(dropped.toreadonly(), np.uint8)[5:].view()
    before = resident_mib()
    del dropped
    while_seen = resident_mib()
    del view
    gc.collect()
    assert before - while_seen < 16
    assert before - resident_mib() > 16
    assert set(np.frombuffer(kept, np.uint8)[:: MIB // 2]) == {1}
