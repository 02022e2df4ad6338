"""Column statistics: equal for sparse columns and for the same columns stored dense."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.primal_cocoa.column_blocks import measure
from elasticml.data.chunks.chunk import csr_chunk
from elasticml.ids import ChunkId

RNG = np.random.default_rng(11)
N = 50
ROOT = np.sqrt(RNG.uniform(0.5, 2.0, N))


def columns(X, root):
    """Make a sparse chunk of the weighted columns of X (n, d)."""
    rows = sp.csr_array((X * root[:, None]).T)
    return csr_chunk(
        ChunkId("X", 0, 0), np.arange(X.shape[1], dtype=float),
        rows.indptr, rows.indices, rows.data, N,
    )  # fmt: skip


@pytest.mark.parametrize("root", [np.ones(N), ROOT], ids=["plain", "weighted"])
def test_squares_of_sparse_columns_are_those_of_centred_columns(root):
    X = RNG.normal(size=(N, 6))
    X[:, 1] += 1e8
    X[:, 2] += 1e9
    X[:, 3] = np.where(RNG.random(N) < 0.2, X[:, 3] + 5.0, 0.0)
    X[:, 4] += 1e6
    X[7, 4] = 0.0
    total = float(root @ root)
    norms, means = measure(columns(X, root), root, total, centred=True)
    away = X - (root * root) @ X / total
    away -= (root * root) @ away / total
    np.testing.assert_allclose(norms, ((root[:, None] * away) ** 2).sum(axis=0), rtol=1e-6)
    np.testing.assert_allclose(means, (root * root) @ X / total, rtol=1e-13)


@pytest.mark.parametrize("root", [np.ones(N), ROOT], ids=["plain", "weighted"])
def test_constant_sparse_columns_have_a_square_of_zero(root):
    X = np.column_stack([np.full(N, 0.1), np.full(N, 1e9), np.zeros(N)])
    norms, _ = measure(columns(X, root), root, float(root @ root), centred=True)
    assert not norms.any()


def test_a_sparse_column_that_lacks_one_light_example_has_that_examples_square():
    root = np.ones(N)
    root[3] = 1e-9
    X = np.full((N, 1), 1e3)
    X[3] = 0.0
    norms, _ = measure(columns(X, root), root, float(root @ root), centred=True)
    assert norms[0] == pytest.approx(1e-12, rel=1e-6)
