"""Arrays in memory and in .npz files become chunks, complete and checked."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pandas
import pytest
import scipy.sparse as sp

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import merge_summaries
from elasticml.data.readers import arrays
from elasticml.data.readers.arrays import chunk_bodies, from_arrays
from elasticml.data.readers.npz import read_npz
from elasticml.data.source import load_all, source_from_spec
from elasticml.errors import ConfigError, DataError
from elasticml.ids import chunk_id
from tests.unit.data.rows import matrix

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 7))
y = RNG.choice([-1.0, 1.0], 300)
S = sp.random_array((300, 50), density=0.1, rng=RNG).tocsr()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_dense_rows_come_back_in_order(
    monkeypatch: pytest.MonkeyPatch, order: str, dtype: str
) -> None:
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 4000)
    weights = np.arange(300.0)
    data = from_arrays(np.asarray(X, order=order), y, weights, dtype=dtype)
    assert len(data.blocks()) > 2
    assert sum(block.rows or 0 for block in data.blocks()) == 300
    chunks = load_all(data)
    np.testing.assert_array_equal(matrix(chunks), X.astype(dtype))
    np.testing.assert_array_equal(np.concatenate([c.weights for c in chunks]), weights)
    np.testing.assert_array_equal(np.concatenate([c.labels for c in chunks]), y)


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csc_array, sp.coo_matrix, sp.csr_array])
def test_sparse_rows_come_back_whatever_their_format(
    monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 4000)
    chunks = load_all(from_arrays(kind(S), y))
    np.testing.assert_array_equal(matrix(chunks, 50), (S).toarray())


def test_repeated_and_zero_entries_are_summed_and_dropped_in_a_copy() -> None:
    options = sp.csr_array(([1.0, 2.0, 0.0, 1.0], [1, 1, 0, 2], [0, 3, 4]), shape=(2, 3))
    (chunk,) = load_all(from_arrays(options, [1, 2]))
    assert matrix([chunk], 3).tolist() == [[0, 3, 0], [0, 0, 1]]
    assert options.nnz == 4


def test_a_matrix_of_ones_is_stored_without_values() -> None:
    ones = sp.csr_array(S, copy=True)
    ones.data[:] = 1
    assert {c.layout.kind for c in load_all(from_arrays(ones, y))} == {"binary_csr"}


def test_integers_booleans_and_lists_are_accepted_as_numbers() -> None:
    (chunk,) = load_all(from_arrays([[1, 2], [3, 4]], [True, False]))
    assert chunk.values.tolist() == [[1, 2], [3, 4]]
    assert chunk.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("X", "y", "weights", "words"),
    [
        ([[1.0], [np.nan]], [1, 2], None, r"X, row 1, column 0: value is nan"),
        (sp.csr_array([[0, 1.0], [np.inf, 0]]), [1, 2], None, r"X, row 1, column 0: value is inf"),
        ([[1.0], [2.0]], [1, np.nan], None, r"y of row 1 is nan"),
        ([[1.0], [2.0]], [1, 2, 3], None, r"shape \(2, 1\) and y has 3 labels"),
        ([1.0, 2.0], [1, 2], None, r"wanted two dimensions"),
        (np.empty((0, 2)), [], None, r"at least one row"),
        ([["a"], ["b"]], [1, 2], None, r"X: column 0, row 0 holds 'a', wanted a number"),
        ([[1.0], [2.0]], [1, 2], [1, -1], r"weight of row 1 is -1\.0, wanted at least 0"),
        ([[1.0], [2.0]], [1, 2], [1], r"1 weights for 2 rows"),
    ],
)
def test_wrong_arrays_are_refused_with_the_position(
    X: object, y: object, weights: object, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        from_arrays(X, y, weights)


def test_huge_values_are_not_treated_as_infinite() -> None:
    (chunk,) = load_all(from_arrays([[1e308, 1e308], [1e308, -1.0]], [0, 1]))
    assert chunk.values[0].tolist() == [1e308, 1e308]


def test_arrays_above_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "IN_MEMORY_BYTES_MAX", 1000)
    with pytest.raises(ConfigError, match="write them to a shared path"):
        from_arrays(X, y)


def test_bodies_sent_along_are_the_chunks_that_the_spec_names() -> None:
    data = from_arrays(X, y)
    sent = chunk_bodies(data, 2000, 4)
    stand_in = source_from_spec(json.loads(json.dumps(data.spec())))
    chunks = [
        Chunk.from_body(chunk_id(name), bytes(body))
        for name, body in zip(sent.ids, sent.bodies, strict=True)
    ]
    np.testing.assert_array_equal(matrix(chunks), X)
    assert merge_summaries(sent.summaries).n_rows == 300
    assert stand_in.blocks() == data.blocks()
    assert stand_in.fingerprint() == data.fingerprint() == chunks[0].id.source
    with pytest.raises(ConfigError, match="write them to a shared path"):
        stand_in.read(0, None, 1)


def test_other_arrays_have_another_fingerprint() -> None:
    other = X.copy()
    other[3, 3] += 1e-9
    assert from_arrays(X, y).fingerprint() == from_arrays(X.copy(), y).fingerprint()
    assert from_arrays(X, y).fingerprint() != from_arrays(other, y).fingerprint()


def test_wider_columns_are_dropped_with_a_count() -> None:
    facts = merge_summaries([from_arrays(X[:, :5], y).read(0, None, 1)[1]])
    chunks, summary = from_arrays(X, y).with_stats(facts).read(0, 2**20, 1)
    np.testing.assert_array_equal(matrix(chunks), X[:, :5])
    assert summary.notes == ("600 values in columns beyond the 5 of the model were dropped",)
    narrowed = load_all(from_arrays(S, y).with_columns(20))
    np.testing.assert_array_equal(matrix(narrowed, 20), (S[:, :20]).toarray())
    wide, summary = from_arrays(X[:, :3], y).with_columns(5).read(0, 2**20, 1)
    assert (wide[0].layout.n_columns, summary.notes) == (3, ())


def test_npz_files_hold_dense_or_sparse_rows(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "dense.npz", X=X, y=y, sample_weight=np.ones(300))
    parts = {"data": S.data, "indices": S.indices, "indptr": S.indptr, "shape": S.shape}
    np.savez(tmp_path / "sparse.npz", y=y, **parts)
    one, two = (read_npz(str(tmp_path / f"{name}.npz")) for name in ("dense", "sparse"))
    np.testing.assert_array_equal(matrix(load_all(one)), X)
    np.testing.assert_array_equal(matrix(load_all(two), 50), (S).toarray())
    assert source_from_spec(one.spec()) == one


def test_wrong_npz_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"no zip file at all")
    with pytest.raises(DataError, match=r"a\.npz is not a readable \.npz file"):
        load_all(read_npz(str(tmp_path / "a.npz")))
    np.savez(tmp_path / "b.npz", X=X)
    with pytest.raises(DataError, match=r"b\.npz holds X; wanted y, and X or data"):
        load_all(read_npz(str(tmp_path / "b.npz")))


def test_text_in_arrays_names_its_column():
    frame = pandas.DataFrame({"age": [1, 2], "city": ["Bern", "Rome"]})
    text = "X: column {}, row 0 holds 'Bern', wanted a number; write the table to a file and read "
    with pytest.raises(DataError, match=text.format("'city'")):
        from_arrays(frame, [0, 1])
    with pytest.raises(DataError, match=text.format("1")):
        from_arrays(frame.to_numpy(), [0, 1])
    with pytest.raises(DataError, match="y of row 1 is 'yes', wanted a number; number the classes"):
        from_arrays(np.eye(2), np.array([0, "yes"], object))


@pytest.mark.parametrize(
    ("labels", "is_refused"),
    [([2**53, 2**53 + 1, 3], True), ([2**60, 2**61, 5], False), ([-(2**53), 2**53, 0], False)],
)
def test_integer_labels_that_are_one_number_in_float64_are_refused(labels, is_refused):
    refused = "y has the values 9007199254740992 and 9007199254740993, which are one number"
    with pytest.raises(DataError, match=refused) if is_refused else contextlib.nullcontext():
        from_arrays(np.eye(3), labels)
