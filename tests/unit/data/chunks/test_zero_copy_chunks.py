"""Zero-copy chunks: views of the caller's arrays with the same rows as copies."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.data.chunks.products import make_adjoint, make_forward
from elasticml.data.chunks.zero_copy_chunks import view_rows, with_labels


def rows(kind, dtype=np.float32):
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((57, 9)) * (rng.random((57, 9)) < 0.4)).astype(dtype)
    X[3] = 0.0
    if kind == "dense":
        return X
    X = sp.csr_array(X) if kind == "csr" else sp.csr_array((X != 0).astype(dtype))
    X.indices = X.indices.astype(np.int32)
    return X


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["dense", "csr", "binary_csr"])
def test_products_are_those_of_the_rows(kind, dtype):
    X = rows(kind, dtype)
    chunks = view_rows(X, "here", 1000)
    assert len(chunks) > 3
    assert {chunk.layout.kind for chunk in chunks} == {kind}
    assert sum(chunk.n_rows for chunk in chunks) == 57
    w, c = np.arange(9.0), np.linspace(-1.0, 1.0, 57)
    forward, adjoint = make_forward(chunks[0].layout, w), make_adjoint(chunks[0].layout, 9)
    margins, image, at = np.empty(57), np.zeros(9), 0
    for chunk in chunks:
        part = slice(at, at + chunk.n_rows)
        forward(chunk, margins[part])
        adjoint.add(chunk, np.ascontiguousarray(c[part]))
        at += chunk.n_rows
    adjoint.result(image)
    np.testing.assert_allclose(margins, X @ w, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(image, X.T @ c, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_no_value_is_copied_and_none_can_be_written(kind):
    X = rows(kind)
    held = X if kind == "dense" else X.data
    chunks = view_rows(X, "here", 1000)
    assert all(np.shares_memory(chunk.values, held) for chunk in chunks)
    assert not any(chunk.values.flags.writeable for chunk in chunks)
    if kind == "csr":
        filled = [chunk for chunk in chunks if chunk.indices.size]
        assert all(np.shares_memory(chunk.indices, X.indices) for chunk in filled)
    again = with_labels(chunks[0], np.ones(chunks[0].n_rows), None)
    assert np.shares_memory(again.values, held)


def test_repeated_and_unsorted_columns_are_fixed_in_a_copy():
    X = sp.csr_array(
        (np.array([1.0, 2.0, 3.0]), np.array([4, 1, 4]), np.array([0, 3, 3])), shape=(2, 5)
    )
    before = X.indices.copy()
    (chunk,) = view_rows(X, "here", 10**6)
    assert chunk.indices.tolist() == [1, 4]
    assert chunk.values.tolist() == [2.0, 4.0]
    assert chunk.indptr.tolist() == [0, 2, 2]
    np.testing.assert_array_equal(X.indices, before)


def test_new_labels_belong_to_the_relabelled_chunk_alone():
    (chunk,) = view_rows(rows("csr"), "here", 10**6)
    chunk.state["alpha"] = np.ones(57)
    labels, weights = np.resize([1.0, -1.0], 57), np.arange(57.0)
    other = with_labels(chunk, labels, weights)
    np.testing.assert_array_equal(other.labels, labels)
    np.testing.assert_array_equal(other.weights, weights)
    assert other.state == {}
    assert not chunk.labels.any()
    assert chunk.weights is None
    assert other.id == chunk.id
