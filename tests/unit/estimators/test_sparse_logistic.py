"""LogisticRegression with an L1 penalty: saga's models, certified by a duality gap."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits, load_wine, make_classification

import elasticml as em


def wine():
    X, y = load_wine(return_X_y=True)
    return (X - X.mean(axis=0)) / X.std(axis=0), y


DATA = {
    "two classes": lambda: make_classification(300, 12, random_state=0),
    "three classes": wine,
    "wide": lambda: make_classification(60, 200, n_informative=8, random_state=1),
}


@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix])
def test_many_coefficients_are_taken_in_blocks(make, monkeypatch):
    X, y = wine()
    settings = {"C": 0.5, "l1_ratio": 1.0, "tol": 1e-11, "max_iter": 2000}
    whole = em.LogisticRegression(**settings).fit(make(X), y)
    monkeypatch.setattr("elasticml.algorithms.linear.sparse_softmax.BLOCK_MAX", 9)
    blocks = em.LogisticRegression(**settings).fit(make(X), y)
    assert blocks.n_iter_[0] > whole.n_iter_[0]
    np.testing.assert_allclose(blocks.coef_, whole.coef_, atol=1e-6)


def test_ten_classes_of_sparse_rows_end_certified():
    X, y = load_digits(return_X_y=True)
    X = sp.csr_matrix(X / 16.0)
    model = em.LogisticRegression(C=0.2, l1_ratio=1.0, tol=1e-7).fit(X, y)
    assert model.dual_gap_ <= 1e-7 * 0.2 * len(y) * math.log(10.0)
    assert 0 < np.count_nonzero(model.coef_) < 0.5 * model.coef_.size


@pytest.mark.parametrize("name", ["two classes", "three classes"])
def test_a_large_penalty_leaves_only_the_class_shares(name):
    X, y = DATA[name]()
    model = em.LogisticRegression(C=1e-4, l1_ratio=1.0, tol=1e-10).fit(X, y)
    assert not model.coef_.any()
    shares = np.bincount(y) / len(y)
    np.testing.assert_allclose(model.predict_proba(X[:1])[0], shares, rtol=1e-6)


@pytest.mark.parametrize("name", ["two classes", "three classes"])
def test_separable_rows_and_hardly_any_penalty_end_certified(name):
    X, y = DATA[name]()
    X = np.hstack([X, 3.0 * np.eye(3)[y]])  # the label itself
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = em.LogisticRegression(C=1e5, l1_ratio=1.0, tol=1e-9).fit(X, y)
    assert model.dual_gap_ <= 1e-9 * 1e5 * len(y) * math.log(3.0)
    assert model.score(X, y) == 1.0


def test_zero_and_constant_columns_have_zero_coefficients():
    X, y = DATA["two classes"]()
    X = np.hstack([np.zeros((300, 1)), np.full((300, 1), 7.0), X])
    for make in (np.asarray, sp.csr_matrix):
        model = em.LogisticRegression(C=0.5, l1_ratio=1.0, tol=1e-10).fit(make(X), y)
        assert not model.coef_[0, :2].any()
        assert model.coef_[0, 2:].any()


@pytest.mark.parametrize("name", ["two classes", "three classes"])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix])
def test_a_distant_warm_start_ends_as_near_as_a_cold_one(name, make):
    # Far on the wrong side of the margins the loss is flat, and steps from there made no progress.
    X, y = DATA[name]()
    model = em.LogisticRegression(l1_ratio=1.0, warm_start=True, tol=1e-8, max_iter=50)
    cold = em.LogisticRegression(l1_ratio=1.0, tol=1e-8).fit(make(X), y)
    model.coef_ = 1e4 * np.random.default_rng(0).standard_normal(cold.coef_.shape)
    model.intercept_ = np.full(cold.intercept_.shape, -1e3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(make(X), y)
    np.testing.assert_allclose(model.coef_, cold.coef_, atol=1e-6)


@pytest.mark.parametrize("intercept", [False, True])
def test_many_sparse_columns_give_the_result_of_dense_ones(intercept):
    rng = np.random.default_rng(2)
    X = sp.random(400, 600, 0.05, "csr", random_state=rng, data_rvs=rng.standard_normal)
    y = X @ (rng.standard_normal(600) * (rng.random(600) < 0.1)) > 0.1
    settings = {"C": 3.0, "l1_ratio": 1.0, "tol": 1e-9, "fit_intercept": intercept}
    sparse = em.LogisticRegression(**settings, max_iter=500).fit(X, y)
    dense = em.LogisticRegression(**settings, max_iter=500).fit(X.toarray(), y)
    assert sparse.dual_gap_ <= 1e-9 * 3.0 * 400 * math.log(2.0)
    assert np.array_equal(np.flatnonzero(sparse.coef_), np.flatnonzero(dense.coef_))
    np.testing.assert_allclose(sparse.coef_, dense.coef_, atol=1e-4)


def test_without_a_penalty_the_ratio_has_no_effect():
    X, y = make_classification(300, 5, n_redundant=0, flip_y=0.3, random_state=0)
    ours = em.LogisticRegression(C=np.inf, l1_ratio=1.0, tol=1e-12).fit(X, y)
    other = em.LogisticRegression(C=np.inf, tol=1e-12).fit(X, y)
    assert np.array_equal(ours.coef_, other.coef_)


def test_a_wrong_ratio_is_named():
    with pytest.raises(ValueError, match="'l1_ratio' parameter of LogisticRegression"):
        em.LogisticRegression(l1_ratio=1.5).fit(np.eye(4), [0, 1, 0, 1])


@pytest.mark.parametrize("client", [5, ["tcp://nowhere:1"]])
@pytest.mark.parametrize("make", [em.LogisticRegression, em.LinearSVC, em.Lasso, em.Ridge])
def test_an_invalid_client_is_named(make, client):
    with pytest.raises(em.ConfigError, match=r"client: got .*, wanted a distributed.Client, a clu"):
        make(client=client).fit(np.eye(4), np.array([0, 1, 0, 1]))


def test_steps_that_gain_only_rounding_end_a_fit():
    r = np.random.default_rng(8)
    X = r.integers(-5, 6, (1500, 2)) * (r.random((1500, 2)) < 0.3)
    y = (X @ r.normal(size=2) + r.logistic(size=1500) > 0.0).astype(int)
    model = em.LogisticRegression(C=1e6, tol=1e-9, l1_ratio=1.0)
    model.fit(sp.csr_matrix(X.astype(float)), y)  # a warning would be an error
    assert model.n_iter_[0] < model.max_iter
