"""A chunk has the same rows wherever its body lies, and damage is found before it is used."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticml.data.chunks.body import LazyBody, content_id, read_header
from elasticml.data.chunks.checksums import checksum
from elasticml.data.chunks.chunk import Chunk, Layout, csr_chunk, dense_chunk, sequence_chunk
from elasticml.data.chunks.ngrams import sequence_layout
from elasticml.data.dataset_stats import summarise
from elasticml.data.out_of_core.mapped_memory import FileSlab
from elasticml.data.out_of_core.store import OutOfCoreStore, stream_chunks
from elasticml.data.storage.block_files import map_block, write_block
from elasticml.errors import DataError
from elasticml.ids import ChunkId
from elasticml.runtime.chunks.chunk_links import prepare_to_send
from tests.unit.data.rows import chunk_of

ID = ChunkId("0123456789abcdef", 2, 3)
KINDS = ("dense", "csr", "binary_csr", "sequence")
VIEWS = ("labels", "indptr", "indices", "values", "codes")
SEQUENCES = Layout(kind="sequence", n_columns=60, alphabet="ACGT", length=5, ngrams=(1, 2))


def example(kind: str, dtype: str = "float64", weighted: bool = False) -> Chunk:
    labels, weights = np.array([1.0, -1.0, 2.5]), np.array([0.5, 1.0, 2.0]) if weighted else None
    if kind == "sequence":
        return sequence_chunk(ID, labels, np.arange(15, dtype=np.uint8).reshape(3, 5), SEQUENCES)
    X = np.array([[1.0, 0, 0, 2, 0], [0, 0, 0, 0, 0], [0, 3, 0, 0, 4]])
    return chunk_of(kind, X, labels, weights, id=ID, dtype=dtype)


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


FORMS = {
    "made": lambda chunk: chunk,
    "sent": lambda chunk: Chunk.from_body(ID, bytes(chunk.body)),
    "not aligned": lambda chunk: Chunk.from_body(ID, memoryview(b"x" + bytes(chunk.body))[1:]),
    "in a file": mapped_chunk,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_is_the_same_wherever_its_body_lies(kind: str, weighted: bool, form: str) -> None:
    chunk = example(kind, "float32", weighted)
    made = FORMS[form](example(kind, "float32", weighted))
    assert (made.layout, made.n_rows, made.nbytes) == (chunk.layout, 3, chunk.body.nbytes)
    assert made.n_stored == chunk.n_stored
    assert made.content_id == chunk.content_id == content_id(chunk.body)
    assert bytes(made.body) == bytes(chunk.body)
    for name in VIEWS:
        view = getattr(made, name)
        np.testing.assert_array_equal(view, getattr(chunk, name))
        assert not view.flags.writeable
        assert form in ("sent", "not aligned") or not view.size or view.ctypes.data % 64 == 0
    assert (made.weights is None) == (not weighted or kind == "sequence")
    if made.weights is not None:
        assert made.weights.tolist() == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_body_is_a_data_error(kind: str) -> None:
    body = bytes(example(kind).body)
    for n in (0, 7, 255, 256, len(body) - 1):
        with pytest.raises(DataError, match="chunk 0123456789abcdef/2/3"):
            Chunk.from_body(ID, body[:n])


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [([0, 2, 1, 4], [0, 3, 1, 4]), ([0, 2, 2, 4], [0, 3, 1, 5]), ([0, 2, 2, 3], [0, 1, 2, 3])],
)
def test_rows_with_indices_out_of_range_are_refused(indptr: list[int], indices: list[int]) -> None:
    with pytest.raises(ValueError, match=r"row pointers|indices"):
        csr_chunk(ID, [1, 2, 3], indptr, indices, None, 5)


CODES = sequence_chunk(ID, np.ones(2), np.zeros((2, 4), "u1"), sequence_layout("ACG", 4, (1, 2)))


@pytest.mark.parametrize(
    ("chunk", "section", "at", "form", "good", "bad", "why"),
    [
        (example("csr"), "indices", 12, "<i", 4, 5, "a column index is not below 5"),
        (example("csr"), "indices", 0, "<i", 0, -1, "a column index is not below 5"),
        (example("binary_csr"), "indptr", 4, "<i", 2, 99, "row pointers do not ascend"),
        (example("binary_csr"), "indptr", 0, "<i", 0, 1, "row pointers do not ascend"),
        (CODES, "codes", 0, "<B", 8, 9, "a code of a sequence is out of range"),
    ],
)
def test_forged_rows_with_a_right_checksum_are_found_before_kernels_see_them(
    tmp_path, chunk, section, at, form, good, bad, why
) -> None:
    def forged(value: int) -> Any:
        body = bytearray(chunk.body)
        struct.pack_into(form, body, read_header(chunk.body, "it").offsets[section] + at, value)
        changed = Chunk(chunk.id, memoryview(bytes(body)))
        write_block(tmp_path / "a.chunks", ([changed], summarise(0, [chunk], chunk.layout)))
        return map_block(tmp_path / "a.chunks")[0][0]

    forged(good).load()
    with pytest.raises(DataError, match=why):
        forged(bad).load()


def test_labels_are_read_without_verifying_the_rest() -> None:
    chunk, made = example("csr", weighted=True), mapped_chunk(example("csr", weighted=True))
    assert made.labels.tolist() == chunk.labels.tolist()
    assert made.weights is not None
    assert made.weights.tolist() == [0.5, 1.0, 2.0]
    assert not made.is_loaded
    assert made.values.tolist() == chunk.values.tolist()
    assert made.is_loaded


def test_a_body_is_verified_when_it_is_sent_or_used_and_a_damaged_one_is_named(
    tmp_path: Path,
) -> None:
    out_of_core = OutOfCoreStore(2**20, tmp_path, lambda: 0)
    made = [mapped_chunk(random_chunk(k)) for k in range(4)]
    *chunks, bad = out_of_core.settle([*made, damaged_chunk(4)])
    prepare_to_send(chunks[3])
    assert [chunk.is_loaded for chunk in chunks] == [False, False, False, True]
    seen = [float(chunk.values.sum()) for chunk in stream_chunks(chunks)]
    assert seen == [float(random_chunk(k).values.sum()) for k in range(4)]
    assert all(chunk.is_loaded for chunk in chunks)
    for use in (prepare_to_send, lambda chunk: list(stream_chunks([*chunks[:2], chunk]))):
        with pytest.raises(DataError, match="a file is damaged: chunk random/0/4: its checksum"):
            use(bad)


# --- views of the caller's arrays -----------------------------------------------------------------
