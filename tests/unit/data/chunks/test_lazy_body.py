"""Bodies of files: verified at their first access, and damage that is reported."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from elasticml.data.chunks.checksums import checksum
from elasticml.data.chunks.chunk import Chunk, dense_chunk
from elasticml.data.chunks.lazy_body import LazyBody
from elasticml.data.out_of_core.mapped_memory import FileSlab
from elasticml.data.out_of_core.store import OutOfCoreStore, stream_chunks
from elasticml.errors import DataError
from elasticml.ids import ChunkId
from elasticml.runtime.chunks.chunk_links import prepare_to_send
from tests.unit.data.chunks.test_chunk import example


def mapped_chunk(chunk: Chunk) -> Chunk:
    """Return the same chunk in a file, not verified yet."""
    place = FileSlab(chunk.nbytes, Path(tempfile.gettempdir())).take(chunk.nbytes)
    place[:] = chunk.body
    made = Chunk.from_lazy_body(
        chunk.id, LazyBody(place.toreadonly(), checksum(chunk.body), str(chunk.id), "a file")
    )
    made.is_mapped = True
    return made


def random_chunk(k: int, rows: int = 2000) -> Chunk:
    """Make a chunk of random rows."""
    rng = np.random.default_rng(k)
    return dense_chunk(ChunkId("random", 0, k), np.ones(rows), rng.random((rows, 6)))


def damaged_chunk(k: int) -> Chunk:
    """Make a chunk in a file that has changed since its checksum was written."""
    chunk = mapped_chunk(random_chunk(k))
    assert chunk.lazy_body is not None
    chunk.lazy_body.expected ^= 1
    return chunk


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["dense", "csr", "binary_csr", "sequence"])
def test_a_body_in_a_file_is_the_same(kind: str, weighted: bool) -> None:
    chunk = example(kind, weighted=weighted)
    made = mapped_chunk(chunk)
    assert (made.n_rows, made.nbytes, made.n_stored) == (3, chunk.nbytes, chunk.n_stored)
    assert bytes(made.body) == bytes(chunk.body)
    assert made.content_id == chunk.content_id
    assert not any(view.flags.writeable for view in (made.values, made.indices, made.labels))


def test_labels_are_read_without_verifying_the_rest() -> None:
    chunk, made = example("csr", weighted=True), mapped_chunk(example("csr", weighted=True))
    assert made.labels.tolist() == chunk.labels.tolist()
    assert made.weights is not None
    assert made.weights.tolist() == [0.5, 1.0, 2.0]
    assert not made.is_loaded
    assert made.values.tolist() == chunk.values.tolist()
    assert made.is_loaded


def test_a_body_is_checked_when_it_is_sent_before_its_first_use(tmp_path: Path) -> None:
    out_of_core = OutOfCoreStore(2**20, tmp_path, lambda: 0)
    good, bad = out_of_core.settle([mapped_chunk(random_chunk(0)), damaged_chunk(1)])
    prepare_to_send(good)
    assert good.is_loaded
    with pytest.raises(DataError, match="a file is damaged: chunk random/0/1: its checksum"):
        prepare_to_send(bad)


def test_a_pass_verifies_bodies_and_one_that_is_damaged_ends_it(tmp_path: Path) -> None:
    out_of_core = OutOfCoreStore(2**20, tmp_path, lambda: 0)
    chunks = out_of_core.settle([mapped_chunk(random_chunk(k)) for k in range(4)])
    seen = [float(chunk.values.sum()) for chunk in stream_chunks(chunks)]
    assert seen == [float(random_chunk(k).values.sum()) for k in range(4)]
    assert all(chunk.is_loaded for chunk in chunks)
    with pytest.raises(DataError, match="a file is damaged: chunk random/0/2: its checksum"):
        list(stream_chunks(out_of_core.settle([*chunks[:2], damaged_chunk(2)])))
