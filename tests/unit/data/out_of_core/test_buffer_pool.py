"""The buffer pool of decompressed bodies stays within its memory limit for any body sizes."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elasticml.data.chunks.chunk import Chunk, dense_chunk
from elasticml.data.dataset_stats import summarise
from elasticml.data.out_of_core.buffer_pool import BufferPool
from elasticml.data.out_of_core.store import OutOfCoreStore, plan_residency, stream_chunks
from elasticml.data.storage.block_file import write_block
from elasticml.ids import ChunkId
from tests.unit.data.chunks.test_compressed_body import compressed_chunk

MIB = 2**20
_PASSES = """
import json, sys
from pathlib import Path
from elasticml.data.storage.block_file import map_block
from elasticml.data.out_of_core.mapped_memory import resident_bytes
from elasticml.data.out_of_core.store import OutOfCoreStore
path, allowed = Path(sys.argv[1]), int(sys.argv[2])
chunks, _ = map_block(path)
chunks[0].load()
base = resident_bytes()
store, peak = OutOfCoreStore(base + allowed, path.parent), 0
chunks = store.settle(chunks)
for number in range(3):
    store.set_importance({chunk.id: hash((number, k)) % 97 for k, chunk in enumerate(chunks)})
    store.plan(chunks)
    for k, chunk in enumerate(store.stream_chunks(chunks)):
        chunk.values
        if k % 20 == 0:
            peak = max(peak, resident_bytes() - base)
print(json.dumps([peak, store.pool.held_bytes]))
"""


def numbers_chunk(k: int, rows: int) -> Chunk:
    rng = np.random.default_rng(k)
    values = rng.integers(0, 9, (rows, 64)).astype(float)
    return dense_chunk(ChunkId("s", 0, k), np.ones(rows), values)


@pytest.mark.parametrize(("least", "most"), [(40, 40), (130, 130)])
def test_passes_over_compressed_bodies_stay_within_the_memory_limit(
    tmp_path: Path, least: int, most: int
) -> None:
    """Within a tenth, for small bodies and for ones of odd sizes.

    In a separate process, which allocates nothing else.
    """
    rng, chunks, nbytes = np.random.default_rng(0), [], 0
    while nbytes < 80 * MIB:
        chunks.append(numbers_chunk(len(chunks), int(rng.integers(least, most + 1))))
        nbytes += chunks[-1].nbytes
    path = tmp_path / "a.chunks"
    write_block(path, (chunks, summarise(0, chunks, chunks[0].layout)), -3)
    del chunks
    done = subprocess.run(
        [sys.executable, "-c", _PASSES, str(path), str(40 * MIB)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peak, held = json.loads(done.stdout)
    assert peak <= 1.1 * 40 * MIB
    assert held >= 15 * MIB


def test_a_body_gets_the_smallest_sufficient_idle_buffer() -> None:
    pool = BufferPool(MIB)
    sizes = (40 << 12, 36 << 12, 38 << 12)
    some = [pool.take(size) for size in sizes]
    places = [np.frombuffer(body, np.uint8).ctypes.data for body in some]
    del some
    gc.collect()
    result = pool.take(37 << 12)
    assert np.frombuffer(result, np.uint8).ctypes.data == places[2]


def test_the_unused_rest_of_a_buffer_is_no_resident_memory() -> None:
    pool = BufferPool(MIB)
    first = pool.take(40 << 12)
    place = np.frombuffer(first, np.uint8).ctypes.data
    del first
    gc.collect()
    second = pool.take(32 << 12)
    assert pool.held_bytes == pool.size_of(32 << 12) == 32 << 12
    del second
    gc.collect()
    third = pool.take(40 << 12)
    assert np.frombuffer(third, np.uint8).ctypes.data == place
    assert pool.held_bytes == 40 << 12


def test_bodies_decompressed_in_memory_count_once_and_stay(tmp_path: Path) -> None:
    """A member that goes out of core keeps its computed arrays in place."""
    chunks = [compressed_chunk(numbers_chunk(k, 40)) for k in range(8)]
    size = BufferPool.size_of(chunks[0].nbytes)
    for chunk in chunks[:5]:
        chunk.load()
    inside = 5 * chunks[0].nbytes
    out_of_core = OutOfCoreStore(0, tmp_path, lambda: 1000 + inside + out_of_core.pool.held_bytes)
    out_of_core.settle(chunks[5:])
    loaded = 8 * size + sum(chunk.stored.nbytes for chunk in chunks)
    window = out_of_core.batch_bytes * loaded // (8 * chunks[0].nbytes) + 1
    out_of_core.limit_bytes = 1000 + 8 * size + 6 * window
    plan_residency(chunks)
    assert len(out_of_core.resident) == 8
    list(stream_chunks(chunks))
    assert out_of_core.streamed_bytes == 0


def test_released_bodies_return_to_the_pool(
    tmp_path: Path,
) -> None:
    chunks = [compressed_chunk(numbers_chunk(k, 40)) for k in range(4)]
    for chunk in chunks[:2]:
        chunk.load()
    out_of_core = OutOfCoreStore(0, tmp_path, lambda: 0)
    out_of_core.settle(chunks[2:])
    out_of_core.plan(chunks)
    assert not any(chunk.is_loaded for chunk in chunks)
    out_of_core.limit_bytes = 2**30
    out_of_core.plan(chunks)
    assert len(list(out_of_core.stream_chunks(chunks))) == 4
    assert out_of_core.pool.held_bytes == 4 * BufferPool.size_of(chunks[0].nbytes)
