"""Columns far from zero compared to their spread: the same models and gaps as when centred."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import logsumexp

import elasticml as em
from elasticml.algorithms.linear.column_matrix import ColumnMatrix
from elasticml.algorithms.linear.coordinate_descent_kernels import Penalty

RNG = np.random.default_rng(0)
N = 80
#: Multiples of a power of two, which a column represents exactly after any shift.
X = np.round(RNG.normal(size=(N, 5)) * 2.0**10) / 2.0**10
Y = 3.0 * X[:, 0] + X[:, 1] + RNG.normal(size=N)
S = RNG.uniform(0.5, 2.0, N)
OFFSETS = np.array([2.0**30, 0.0, 2.0**24, 0.0, -(2.0**30)])


@pytest.mark.parametrize("weights", [None, S])
def test_sparse_columns_far_from_zero_have_the_products_of_centred_ones(weights):
    near = ColumnMatrix(X, Y, weights, centred=True)
    far = ColumnMatrix(sp.csc_array(X + OFFSETS), Y, weights, centred=True)
    every = np.arange(5)
    np.testing.assert_allclose(far.norms, near.norms, rtol=1e-8)
    np.testing.assert_allclose(
        far.products(every, every), near.products(every, every), rtol=1e-8, atol=1e-6
    )
    np.testing.assert_allclose(far.linear, near.linear, rtol=1e-8)
    np.testing.assert_allclose(far.offsets, near.offsets + OFFSETS, rtol=1e-15, atol=1e-12)
    np.testing.assert_allclose(
        far.combination(every, Y[:5]), near.combination(every, Y[:5]), atol=1e-6
    )
    r = near.y.copy()
    w, other, moved = np.zeros(5), np.zeros(5), near.y.copy()
    near.sweep(every, w, r, Penalty(a1=1.0, a2=0.0), 3)
    far.sweep(every, other, moved, Penalty(a1=1.0, a2=0.0), 3)
    np.testing.assert_allclose(other, w, atol=1e-8)
    np.testing.assert_allclose(moved, r, atol=1e-6)


@pytest.mark.parametrize("value", [0.1, 1e7 + 0.1])
def test_constant_sparse_columns_stay_constant_and_rows_without_an_entry_count(value):
    A = np.full((2000, 2), value)
    A[7, 1] = 0.0
    matrix = ColumnMatrix(sp.csc_array(A), np.arange(2000.0), None, centred=True)
    assert matrix.norms[0] == 0.0
    np.testing.assert_allclose(matrix.norms[1], value**2 * (1.0 - 1.0 / 2000), rtol=1e-9)
    np.testing.assert_allclose(matrix.offsets, A.mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("share", [1e-7, 1e-3])
def test_a_row_without_an_entry_is_shifted_with_its_column(share):
    # The row has hardly any weight: the column hardly varies, and yet that row is far off.
    weights = np.ones(40)
    weights[3] = share
    A = np.arange(40.0)[:, None] % 2.0 * 1e-4 + 1.0
    A[3] = 0.0
    far, near = (
        ColumnMatrix(one, np.arange(40.0), weights, centred=True) for one in (sp.csc_array(A), A)
    )
    np.testing.assert_allclose(far.norms, near.norms, rtol=1e-8)
    np.testing.assert_allclose(far.linear, near.linear, rtol=1e-8)


@pytest.mark.parametrize("d", [2, 5])
def test_the_gap_of_a_lasso_far_from_zero_is_correct(d):
    settings = {"alpha": 0.05, "tol": 1e-9}
    best = em.Lasso(**settings).fit(X[:, :d], Y)
    model = em.Lasso(**settings).fit(sp.csr_array(X[:, :d] + OFFSETS[:d]), Y)

    def objective(w):
        left = Y - X[:, :d] @ w
        return 0.5 * np.mean((left - left.mean()) ** 2) + 0.05 * np.abs(w).sum()

    assert objective(model.coef_) - objective(best.coef_) <= model.dual_gap_ + 1e-9
    np.testing.assert_allclose(model.coef_, best.coef_, atol=1e-4)


CLASSES = {"two": (Y > 0.0).astype(int), "three": np.digitize(Y, [-1.0, 1.0])}


@pytest.mark.parametrize("labels", CLASSES)
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_classifiers_find_the_same_coefficients_far_from_zero(labels, make):
    y = CLASSES[labels]
    settings = {"l1_ratio": 0.9, "tol": 1e-8, "max_iter": 300}
    best = em.LogisticRegression(**settings).fit(X, y)
    model = em.LogisticRegression(**settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(make(X + OFFSETS), y, sample_weight=np.ones(N))
    np.testing.assert_allclose(model.coef_, best.coef_, atol=1e-3)

    def objective(w, b):
        z = X @ w.T + b
        if z.shape[1] == 1:
            z = np.hstack([np.zeros((N, 1)), z])
        losses = logsumexp(z, axis=1) - z[np.arange(N), y]
        return 0.9 * np.abs(w).sum() + 0.05 * (w**2).sum() + losses.sum()

    # Intercepts for the raw columns are that far from zero, too.
    own = objective(model.coef_, model.intercept_ + model.coef_ @ OFFSETS)
    left = own - objective(best.coef_, best.intercept_)
    assert left <= model.dual_gap_ + 1e-5
    model.set_params(warm_start=True).fit(make(X + OFFSETS), y)
    assert model.n_iter_[0] <= 1
