"""The pool of buffers reuses them when nothing refers to them, and counts their memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from elasticml.data.chunks.body import aligned_buffer
from elasticml.data.out_of_core.buffer_pool import BufferPool


@pytest.mark.parametrize("size", [1000, 70_000])
def test_a_buffer_is_reused_when_nothing_refers_to_it(size: int) -> None:
    pool = BufferPool(2**20, aligned_buffer)
    first = pool.take(size)
    kept = np.frombuffer(first, np.uint8)[10:]
    del first
    second = pool.take(size)
    held = pool.held_bytes
    del kept, second
    gc.collect()
    some = [pool.take(size) for _ in range(2)]
    assert (pool.held_bytes, len(some)) == (held, 2)


def test_buffers_of_other_sizes_are_freed() -> None:
    pool = BufferPool(0, aligned_buffer)
    for k in (1, 2, 4):
        pool.take(k << 20)
        gc.collect()
    assert pool.held_bytes == 4 << 20
    pool.trim(0)
    assert pool.held_bytes == 0
