"""Compressed bodies: the same bytes at every access, and damage that is reported."""

from __future__ import annotations

import gc
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from elasticml.data.chunks.chunk import Chunk, csr_chunk, dense_chunk
from elasticml.data.chunks.compressed_body import pack, read_compressed
from elasticml.data.chunks.lazy_body import open_lazy_body
from elasticml.data.out_of_core.buffer_pool import BufferPool
from elasticml.data.out_of_core.mapped_memory import FileSlab
from elasticml.data.out_of_core.store import OutOfCoreStore, plan_residency, stream_chunks
from elasticml.data.readers.convert import convert
from elasticml.data.readers.converted import read_converted
from elasticml.data.source import load_all
from elasticml.data.synthetic.sparse import synthetic
from elasticml.errors import ConfigError, DataError
from elasticml.ids import ChunkId
from elasticml.runtime.chunks.chunk_links import prepare_to_send
from tests.unit.data.chunks.test_chunk import ID, example

KINDS = ("dense", "csr", "binary_csr", "sequence")


def compressed_chunk(chunk: Chunk, level: int = -3) -> Chunk:
    """Return the same chunk, compressed, in a file."""
    whole = pack(chunk.body, level)
    place = FileSlab(len(whole), Path(tempfile.gettempdir())).take(len(whole))
    place[:] = whole
    made = Chunk.from_lazy_body(
        chunk.id, open_lazy_body(place.toreadonly(), str(chunk.id), "a file")
    )
    made.is_mapped = True
    return made


def chunk_worth_shuffling(k: int, rows: int = 2000, dtype: str = "float64") -> Chunk:
    """Make a chunk whose values compress better with their bytes reordered."""
    rng = np.random.default_rng(k)
    indptr = np.arange(rows + 1) * 6
    indices = np.sort(rng.choice(500, (rows, 6)), axis=1).ravel()
    values = 1.0 + rng.random(6 * rows)
    labels = np.where(np.arange(rows) % 2, 1.0, -1.0)
    id = ChunkId("smooth", 0, k)
    return csr_chunk(id, labels, indptr, indices, values, 500, dtype=dtype)


def chunks_in_folder(tmp_path: Path, rows: int = 3000, level: int | None = -3) -> list[Chunk]:
    """Return the chunks of a compressed conversion."""
    source = synthetic("rcv1", rows, seed=1, dtype="float32")
    place = tmp_path / f"made{level}"
    return load_all(convert(source, place, chunk_bytes=2**17, level=level))


@pytest.mark.parametrize("level", [-7, -3, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_body_survives_compression(kind: str, weighted: bool, dtype: str, level: int) -> None:
    chunk = example(kind, dtype, weighted)
    made = compressed_chunk(chunk, level)
    assert (made.n_rows, made.nbytes, made.n_stored) == (3, chunk.nbytes, chunk.n_stored)
    assert bytes(made.body) == bytes(chunk.body)
    assert made.content_id == chunk.content_id
    assert not any(view.flags.writeable for view in (made.values, made.indices, made.labels))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_bytes_of_numbers_are_reordered_where_that_saves_space(dtype: str) -> None:
    chunk = chunk_worth_shuffling(0, dtype=dtype)
    rng = np.random.default_rng(0)
    rows = rng.random((20, 8))[rng.integers(0, 20, 500)]
    alike = dense_chunk(ID, np.ones(500), rows, dtype=dtype)
    for each, is_shuffled in ((chunk, True), (alike, False)):
        result = read_compressed(memoryview(pack(each.body)), "x")
        assert result.is_shuffled == is_shuffled
        assert bytes(compressed_chunk(each).body) == bytes(each.body)
    assert compressed_chunk(chunk).stored.nbytes < 0.8 * chunk.nbytes


def test_an_empty_chunk_is_compressed_like_any_other() -> None:
    chunk = csr_chunk(ID, [], [0], [], [], 5)
    assert bytes(compressed_chunk(chunk).body) == bytes(chunk.body)


def test_labels_are_read_without_decompressing_the_rest() -> None:
    chunk, made = example("csr", weighted=True), compressed_chunk(example("csr", weighted=True))
    assert made.labels.tolist() == chunk.labels.tolist()
    assert made.weights is not None
    assert made.weights.tolist() == [0.5, 1.0, 2.0]
    assert not made.is_loaded
    assert made.values.tolist() == chunk.values.tolist()
    assert made.is_loaded


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.7, 0.98])
def test_a_flipped_bit_is_reported_with_the_file(tmp_path: Path, share: float) -> None:
    chunks = chunks_in_folder(tmp_path, rows=400)
    path = tmp_path / "made-3" / "000000.chunks"
    content = bytearray(path.read_bytes())
    bodies = sum(chunk.stored.nbytes for chunk in chunks)
    content[len(content) - bodies + int(share * bodies)] ^= 16
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"000000\.chunks is damaged: ") as raised:
        look_at(load_all(read_converted(str(tmp_path / "made-3"))))
    assert "\n" not in str(raised.value)


def test_a_body_is_checked_when_it_is_sent_before_its_first_use(tmp_path: Path) -> None:
    out_of_core = OutOfCoreStore(2**20, tmp_path, lambda: 0)
    good, bad = out_of_core.settle([compressed_chunk(chunk_worth_shuffling(k)) for k in range(2)])
    lazy_body = bad.lazy_body
    assert lazy_body is not None
    lazy_body.expected ^= 1
    prepare_to_send(good)
    assert (good.is_verified, good.is_loaded) == (True, False)
    with pytest.raises(DataError, match="a file is damaged: chunk smooth/0/1: its checksum"):
        prepare_to_send(bad)


def test_a_truncated_file_is_reported(tmp_path: Path) -> None:
    chunks_in_folder(tmp_path)
    path = tmp_path / "made-3" / "000000.chunks"
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(DataError, match=r"000000\.chunks is damaged: it is cut short"):
        load_all(read_converted(str(tmp_path / "made-3")))


def look_at(chunks: list[Chunk]) -> None:
    for chunk in chunks:
        chunk.load()


def test_compressed_and_other_conversions_are_the_same_data(tmp_path: Path) -> None:
    small, large = chunks_in_folder(tmp_path), chunks_in_folder(tmp_path, level=None)
    assert [(c.id, c.content_id) for c in small] == [(c.id, c.content_id) for c in large]
    assert [bytes(c.body) for c in small] == [bytes(c.body) for c in large]
    sizes = [sum(c.stored.nbytes for c in chunks) for chunks in (small, large)]
    assert sizes[0] < 0.8 * sizes[1]


def test_an_invalid_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="level is 20, wanted a whole number from -7 to 19"):
        chunks_in_folder(tmp_path, level=20)


def test_views_stay_valid_when_the_body_is_released(tmp_path: Path) -> None:
    out_of_core = OutOfCoreStore(2**20, tmp_path, lambda: 0)
    chunks = out_of_core.settle([compressed_chunk(chunk_worth_shuffling(k)) for k in range(4)])
    kept, expected = chunks[0].values, chunk_worth_shuffling(0).values
    assert chunks[0].evict()
    for chunk in chunks[1:]:
        chunk.load()
    np.testing.assert_array_equal(kept, expected)
    np.testing.assert_array_equal(chunks[0].values, expected)


def test_a_pinned_body_stays() -> None:
    chunk = compressed_chunk(chunk_worth_shuffling(0))
    chunk.load(pin=True)
    chunk.load(pin=True)
    assert not chunk.evict()
    chunk.unpin()
    assert not chunk.evict()
    chunk.unpin()
    assert chunk.evict()
    assert not chunk.is_loaded


def test_concurrent_threads_see_the_same_body() -> None:
    chunk, result = compressed_chunk(chunk_worth_shuffling(0)), []
    gate = threading.Barrier(4)

    def look() -> None:
        gate.wait(60)
        result.append(chunk.values)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [values is chunk.values for values in result] == [True] * 4


def test_a_pass_over_compressed_bodies_takes_a_few_batches_of_memory(tmp_path: Path) -> None:
    out_of_core = OutOfCoreStore(2**20, tmp_path, lambda: 0)
    chunks = out_of_core.settle([compressed_chunk(chunk_worth_shuffling(k)) for k in range(40)])
    out_of_core.batch_bytes = 2 * chunks[0].nbytes
    seen = []
    for _ in range(2):
        seen = [float(chunk.values.sum()) for chunk in stream_chunks(chunks)]
    assert seen == [float(chunk_worth_shuffling(k).values.sum()) for k in range(40)]
    assert not any(chunk.is_loaded for chunk in chunks)
    assert out_of_core.streamed_bytes == 2 * sum(chunk.nbytes for chunk in chunks)
    # The current batch, two read ahead, and one being released.
    assert out_of_core.pool.held_bytes <= 4 * 2 * 1.5 * chunks[0].nbytes


def test_a_body_in_use_is_not_released(tmp_path: Path) -> None:
    out_of_core = OutOfCoreStore(2**20, tmp_path, lambda: 0)
    chunks = out_of_core.settle([compressed_chunk(chunk_worth_shuffling(k)) for k in range(3)])
    for chunk in stream_chunks(chunks):
        out_of_core.release(chunks)
        assert chunk.is_loaded
    assert not any(chunk.is_loaded for chunk in chunks)


def test_decompressed_bodies_that_stay_count_as_bodies_and_not_as_other_memory(
    tmp_path: Path,
) -> None:
    out_of_core = OutOfCoreStore(2**20, tmp_path, lambda: 1000 + out_of_core.pool.held_bytes)
    chunks = out_of_core.settle([compressed_chunk(chunk_worth_shuffling(k)) for k in range(8)])
    size = BufferPool.size_of(chunks[0].nbytes)
    loaded = 8 * size + sum(chunk.stored.nbytes for chunk in chunks)
    window = 6 * -(-out_of_core.batch_bytes * loaded // (8 * chunks[0].nbytes))
    out_of_core.limit_bytes = 1000 + 3 * size + window
    for _ in range(3):
        plan_residency(chunks)
        assert len(out_of_core.resident) == 3
        list(stream_chunks(chunks))
    assert [chunk.is_loaded for chunk in chunks] == [
        chunk.id in out_of_core.resident for chunk in chunks
    ]


def test_bodies_touched_outside_a_pass_are_released_before_the_next(tmp_path: Path) -> None:
    out_of_core = OutOfCoreStore(0, tmp_path, lambda: 0)
    chunks = out_of_core.settle([compressed_chunk(chunk_worth_shuffling(k)) for k in range(3)])
    look_at(chunks)
    plan_residency(chunks)
    assert not any(chunk.is_loaded for chunk in chunks)


def test_without_streaming_bodies_are_decompressed_to_disk(tmp_path: Path) -> None:
    out_of_core = OutOfCoreStore(0, tmp_path, lambda: 0, streams=False)
    (settled,) = out_of_core.settle([compressed_chunk(chunk_worth_shuffling(0))])
    assert settled.is_mapped
    assert not settled.is_compressed
    assert out_of_core.maps(memoryview(settled.body))
    assert bytes(settled.body) == bytes(chunk_worth_shuffling(0).body)


def test_a_body_that_fails_in_a_pass_ends_it_and_nothing_stays_pinned(tmp_path: Path) -> None:
    out_of_core = OutOfCoreStore(2**20, tmp_path, lambda: 0)
    chunks = [compressed_chunk(chunk_worth_shuffling(k)) for k in range(4)]
    lazy_body = chunks[2].lazy_body
    assert lazy_body is not None
    lazy_body.expected ^= 1
    with pytest.raises(DataError, match="a file is damaged: chunk smooth/0/2: its checksum"):
        list(stream_chunks(out_of_core.settle(chunks)))
    assert all(chunk.lazy_body is not None and chunk.lazy_body.pins == 0 for chunk in chunks)


@pytest.mark.parametrize("size", [1000, 70_000])
def test_a_buffer_is_reused_when_nothing_refers_to_it(size: int) -> None:
    pool = BufferPool(2**20)
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
    pool = BufferPool(0)
    for k in (1, 2, 4):
        pool.take(k << 20)
        gc.collect()
    assert pool.held_bytes == 4 << 20
    pool.trim(0)
    assert pool.held_bytes == 0
