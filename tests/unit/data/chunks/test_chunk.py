"""A chunk's body survives writing, sending and repeated reading."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.data.chunks.body import content_id
from elasticml.data.chunks.chunk import (
    Chunk,
    Layout,
    binary_csr_chunk,
    csr_chunk,
    dense_chunk,
    sequence_chunk,
)
from elasticml.errors import DataError
from elasticml.ids import ChunkId

ID = ChunkId("0123456789abcdef", 2, 3)
SEQUENCES = Layout(kind="sequence", n_columns=60, alphabet="ACGT", length=5, ngrams=(1, 2))


def example(kind: str, dtype: str = "float64", weighted: bool = False) -> Chunk:
    labels = np.array([1.0, -1.0, 2.5])
    weights = np.array([0.5, 1.0, 2.0]) if weighted else None
    indptr, indices = [0, 2, 2, 4], [0, 3, 1, 4]
    if kind == "dense":
        return dense_chunk(ID, labels, np.arange(12.0).reshape(3, 4), weights, dtype=dtype)
    if kind == "csr":
        return csr_chunk(ID, labels, indptr, indices, [1, 2, 3, 4], 5, weights, dtype=dtype)
    if kind == "binary_csr":
        return binary_csr_chunk(ID, labels, indptr, indices, 5, weights, dtype=dtype)
    return sequence_chunk(ID, labels, np.arange(15, dtype=np.uint8).reshape(3, 5), SEQUENCES)


@pytest.mark.parametrize("kind", ["dense", "csr", "binary_csr", "sequence"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_body_read_back_gives_the_same_views(kind: str, weighted: bool) -> None:
    chunk = example(kind, "float32", weighted)
    again = Chunk.from_body(ID, bytes(chunk.body))
    assert (again.layout, again.n_rows, again.nbytes) == (chunk.layout, 3, chunk.body.nbytes)
    assert again.content_id == chunk.content_id == content_id(chunk.body)
    for name in ("labels", "indptr", "indices", "values", "codes"):
        np.testing.assert_array_equal(getattr(again, name), getattr(chunk, name))
    if chunk.weights is None:
        assert again.weights is None
    else:
        np.testing.assert_array_equal(again.weights, chunk.weights)


@pytest.mark.parametrize("kind", ["dense", "csr", "binary_csr", "sequence"])
def test_views_are_read_only_and_start_on_64_bytes(kind: str) -> None:
    chunk = example(kind)
    for name in ("labels", "indptr", "indices", "values", "codes"):
        view = getattr(chunk, name)
        assert not view.flags.writeable
        assert view.size == 0 or view.ctypes.data % 64 == 0


def test_an_unaligned_buffer_is_copied_once() -> None:
    chunk = example("csr")
    shifted = memoryview(b"x" + bytes(chunk.body))[1:]
    np.testing.assert_array_equal(Chunk.from_body(ID, shifted).values, chunk.values)


def test_equal_contents_have_equal_ids_wherever_they_are_read() -> None:
    other = csr_chunk(
        ChunkId("f" * 16, 0, 0), [1, -1, 2.5], [0, 2, 2, 4], [0, 3, 1, 4], [1, 2, 3, 4], 5
    )
    assert other.content_id == example("csr").content_id
    assert other.content_id != example("binary_csr").content_id


@pytest.mark.parametrize("kind", ["dense", "csr", "binary_csr", "sequence"])
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
        binary_csr_chunk(ID, [1, 2, 3], indptr, indices, 5)


def test_layout_survives_json() -> None:
    assert Layout.from_json(SEQUENCES.to_json()) == SEQUENCES
