"""Normal equations of sparse rows equal those of the same rows as dense columns."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import elasticml as em
from elasticml.algorithms.linear import normal_equations
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.algorithms.parallel import Serial


def equations(X, y, weights, *, centred):
    return normal_equations.equations(RowBlocks(X, Serial()), y, weights, centred=centred)


def rows(density, n=400, d=60):
    """Return rows with unsorted and repeated entries, and their targets."""
    rng = np.random.default_rng(3)
    one = sp.random(n, d, density, "csr", rng=rng)
    lengths = 2 * np.diff(one.indptr)
    X = sp.csr_matrix((n, d))
    X.indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ends = [slice(a, b) for a, b in zip(one.indptr, one.indptr[1:], strict=False)]
    X.indices = np.concatenate([np.tile(one.indices[k][::-1], 2) for k in ends])
    X.data = rng.standard_normal(X.indices.size)
    return X, rng.standard_normal(n) + 2.0


@pytest.mark.parametrize("density", [0.02, 0.5], ids=["pairs", "blocks"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("centred", [False, True])
def test_sparse_rows_have_the_equations_of_dense_columns(density, weighted, centred):
    X, y = rows(density)
    s = np.random.default_rng(4).integers(0, 3, len(y)).astype(float) if weighted else None
    result = equations(X, y, s, centred=centred)
    each = np.ones(len(y)) if s is None else s
    A, b = X.toarray(), y
    if centred:
        A, b = A - np.average(A, axis=0, weights=each), y - np.average(y, weights=each)
    np.testing.assert_allclose(result.G, (A.T * each) @ A, atol=1e-10)
    np.testing.assert_allclose(result.linear, (A.T * each) @ b, atol=1e-10)


def test_columns_that_hardly_vary_next_to_their_mean_use_another_method():
    X, y = rows(0.3)
    X = sp.csr_matrix(sp.hstack([X, sp.csr_matrix(1e7 + y[:, None])]))
    assert equations(X, y, None, centred=True) is None
    assert equations(X, y, None, centred=False) is not None
    # The other method solves them.
    ours = em.Ridge(0.1).fit(X, y)
    dense = em.Ridge(0.1).fit(X.toarray(), y)
    np.testing.assert_allclose(ours.coef_, dense.coef_, atol=1e-7)


def test_data_without_sums_of_squares_have_no_equations():
    X, y = rows(0.1)
    assert equations(X.tocsc(), y, None, centred=False) is None
    assert equations(X.toarray(), y, None, centred=False) is None
    assert equations(1e200 * X, y, None, centred=False) is None
    assert equations(X, 1e200 * y, None, centred=True) is None
