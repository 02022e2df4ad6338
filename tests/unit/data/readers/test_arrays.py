"""Arrays in memory and in .npz files become chunks, by rows or by columns."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import merge_summaries
from elasticml.data.readers import arrays
from elasticml.data.readers.arrays import chunks_in_memory, from_arrays
from elasticml.data.source import Source, load_all, source_from_spec
from elasticml.errors import ConfigError
from tests.unit.data.rows import labels, matrix

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 7))
y = RNG.choice([-1.0, 1.0], 300)
S = sp.random_array((300, 50), density=0.1, rng=RNG).tocsr()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("make", "values"),
    [
        (np.asarray, X),
        (np.asfortranarray, X),
        *[(kind, S) for kind in (sp.csr_matrix, sp.csc_array, sp.coo_matrix, sp.csr_array)],
    ],
)
def test_rows_come_back_in_order_whatever_their_form(monkeypatch, make, values, dtype) -> None:
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 4000)
    weights = np.arange(300.0)
    data = from_arrays(make(values), y, weights, dtype=dtype)
    assert len(data.blocks()) > 2
    assert sum(block.rows or 0 for block in data.blocks()) == 300
    chunks = load_all(data)
    wanted = values if values is X else S.toarray()
    np.testing.assert_array_equal(matrix(chunks, 7), wanted.astype(dtype))
    np.testing.assert_array_equal(np.concatenate([c.weights for c in chunks]), weights)
    assert labels(chunks) == y.tolist()


def test_numbers_of_every_kind_are_stored_as_they_are() -> None:
    (chunk,) = load_all(from_arrays([[1, 2], [3, 4]], [True, False]))
    assert (chunk.values.tolist(), chunk.labels.tolist()) == ([[1, 2], [3, 4]], [1, 0])
    (chunk,) = load_all(from_arrays([[1e308, 1e308], [1e308, -1.0]], [2**60, 5]))
    assert chunk.values[0].tolist() == [1e308, 1e308]  # the sum is infinite
    # Repeated entries are summed, and zeros dropped, in a copy.
    some = sp.csr_array(([1.0, 2.0, 0.0, 1.0], [1, 1, 0, 2], [0, 3, 4]), shape=(2, 3))
    (chunk,) = load_all(from_arrays(some, [1, 2]))
    assert matrix([chunk], 3).tolist() == [[0, 3, 0], [0, 0, 1]]
    assert some.nnz == 4
    ones = sp.csr_array(S, copy=True)
    ones.data[:] = 1
    assert {c.layout.kind for c in load_all(from_arrays(ones, y))} == {"binary_csr"}


def test_arrays_above_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "IN_MEMORY_BYTES_MAX", 1000)
    with pytest.raises(ConfigError, match="write them to a shared path"):
        from_arrays(X, y)


def test_bodies_sent_along_are_the_chunks_that_the_spec_names() -> None:
    data = from_arrays(X, y)
    sent, summaries = chunks_in_memory(data, 2000, 4)
    stand_in = source_from_spec(json.loads(json.dumps(data.spec())))
    chunks = [Chunk.from_body(one.id, bytes(one.body)) for one in sent]
    np.testing.assert_array_equal(matrix(chunks), X)
    assert merge_summaries(summaries).n_rows == 300
    assert stand_in.blocks() == data.blocks()
    assert stand_in.fingerprint() == data.fingerprint() == chunks[0].id.source
    with pytest.raises(ConfigError, match="write them to a shared path"):
        stand_in.read(0, None, 1)
    other = X.copy()
    other[3, 3] += 1e-9
    assert from_arrays(X.copy(), y).fingerprint() == data.fingerprint()
    assert from_arrays(other, y).fingerprint() != data.fingerprint()


def test_wider_columns_are_dropped_with_a_count() -> None:
    facts = merge_summaries([from_arrays(X[:, :5], y).read(0, None, 1)[1]])
    chunks, summary = from_arrays(X, y).with_stats(facts).read(0, 2**20, 1)
    np.testing.assert_array_equal(matrix(chunks), X[:, :5])
    assert summary.notes == ("600 values in columns beyond the 5 of the model were dropped",)
    narrowed = load_all(from_arrays(S, y).with_columns(20))
    np.testing.assert_array_equal(matrix(narrowed, 20), (S[:, :20]).toarray())
    wide, summary = from_arrays(X[:, :3], y).with_columns(5).read(0, 2**20, 1)
    assert (wide[0].layout.n_columns, summary.notes) == (3, ())


# --- by columns -----------------------------------------------------------------------------------

TARGETS = RNG.normal(size=7)
#: Seven examples of three features.
COLUMNS = RNG.normal(size=(7, 3))


def all_rows(source: Source) -> tuple[Any, Any]:
    chunks = load_all(source)
    return matrix(chunks), labels(chunks)


@pytest.mark.parametrize("make", [np.asarray, sp.csr_array, sp.csc_matrix])
def test_chunks_by_columns_hold_features_and_targets_and_the_roots_of_weights(make) -> None:
    rows, of = all_rows(from_arrays(make(COLUMNS), TARGETS, by="columns"))
    assert of == [0, 1, 2, -1]
    np.testing.assert_array_equal(rows, np.vstack([COLUMNS.T, TARGETS]))
    weights = np.array([0.0, 1.0, 4.0, 1.0, 0.25, 2.0, 1.0])
    rows, of = all_rows(from_arrays(make(COLUMNS), TARGETS, weights, by="columns"))
    root = np.sqrt(weights)
    assert of == [0, 1, 2, -1, -2]
    np.testing.assert_allclose(rows, np.vstack([COLUMNS.T * root, TARGETS, root]), rtol=1e-15)


def test_a_source_by_columns_is_known_without_its_arrays_and_keeps_all_examples() -> None:
    source = from_arrays(COLUMNS, TARGETS, by="columns")
    again = source_from_spec(source.spec())
    assert (again.blocks(), again.fingerprint()) == (source.blocks(), source.fingerprint())
    assert (source.blocks()[0].rows, source.blocks()[0].columns) == (4, 7)
    other = from_arrays(np.vstack([COLUMNS.T, TARGETS]), [0, 1, 2, -1])
    assert other.fingerprint() != source.fingerprint()
    assert all_rows(source.with_columns(3))[0].shape == (4, 7)
