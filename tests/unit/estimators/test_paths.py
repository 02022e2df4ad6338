"""Regularisation paths: scikit-learn's models along them, and its choice among them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn
from sklearn import linear_model as theirs
from sklearn.exceptions import ConvergenceWarning

import elasticml as em
from tests.unit.estimators.contract import tall, wide


@pytest.mark.parametrize("data", [wide, tall], ids=["wide", "tall"])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.6])
def test_a_path_has_scikit_learns_models(data, l1_ratio):
    X, y = data()
    settings = {"l1_ratio": l1_ratio, "eps": 1e-2, "tol": 1e-13, "max_iter": 100_000}
    count = {"alphas" if sklearn.__version__ >= "1.9" else "n_alphas": 15}
    known, expected, _ = theirs.enet_path(X, y, **count, **settings)
    for make in (np.asarray, sp.csc_matrix):
        alphas, coefs, gaps = em.enet_path(make(X), y, alphas=15, **settings)
        np.testing.assert_allclose(alphas, known, rtol=1e-12)
        np.testing.assert_allclose(coefs, expected, atol=1e-5)
        assert np.array_equal(coefs != 0.0, expected != 0.0)
        assert np.all(gaps <= 1e-13 * np.mean(y * y))
        assert not coefs[:, 0].any()


def test_a_path_over_more_columns_than_cached_products(monkeypatch):
    X, y = wide()
    expected = em.lasso_path(X, y, alphas=20, eps=1e-2, tol=1e-12, max_iter=100_000)[1]
    monkeypatch.setattr("elasticml.algorithms.linear.elastic_net.PRODUCTS_MAX", 60)
    some = em.lasso_path(X, y, alphas=20, eps=1e-2, tol=1e-12, max_iter=100_000)[1]
    monkeypatch.setattr("elasticml.algorithms.linear.elastic_net.PRODUCTS_MAX", 0)
    none = em.lasso_path(X, y, alphas=20, eps=1e-2, tol=1e-12, max_iter=100_000)[1]
    sparse = em.lasso_path(sp.csc_array(X), y, alphas=20, eps=1e-2, tol=1e-12, max_iter=10**5)[1]
    for coefs in (some, none, sparse):
        np.testing.assert_allclose(coefs, expected, atol=1e-5)


@pytest.mark.parametrize(("data", "weighted"), [(wide, True), (tall, False)], ids=["wide", "tall"])
def test_cross_validation_chooses_what_scikit_learns_does(data, weighted):
    X, y = data()
    rng = np.random.default_rng(2)
    weights = rng.integers(1, 4, len(y)).astype(float) if weighted else None
    settings = {"l1_ratio": [0.5, 1.0], "alphas": 8, "eps": 5e-2, "cv": 3}
    settings |= {"tol": 1e-13, "max_iter": 100_000}
    known = theirs.ElasticNetCV(**settings).fit(X, y, sample_weight=weights)
    for make in (np.asarray, sp.csr_matrix):
        result = em.ElasticNetCV(**settings, n_jobs=2).fit(make(X), y, sample_weight=weights)
        assert (result.alpha_, result.l1_ratio_) == (pytest.approx(known.alpha_), known.l1_ratio_)
        np.testing.assert_allclose(result.alphas_, known.alphas_, rtol=1e-10)
        np.testing.assert_allclose(result.mse_path_, known.mse_path_, rtol=1e-5)
        np.testing.assert_allclose(result.coef_, known.coef_, atol=1e-5)
        assert result.intercept_ == pytest.approx(known.intercept_, abs=1e-4)


def test_a_path_that_ends_too_early_says_so():
    X, y = tall()
    with pytest.warns(ConvergenceWarning, match="duality gap"):
        em.lasso_path(X, y, alphas=[1e-3], tol=1e-14, max_iter=2)


def test_a_ridge_path_needs_given_penalties():
    X, y = tall()
    with pytest.raises(ValueError, match="l1_ratio=0 has no grid"):
        em.enet_path(X, y, l1_ratio=0.0)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"l1_ratio": 1.5}, "l1_ratio"),
        ({"alphas": [1.0, -1.0]}, "alphas"),
        ({"alphas": [np.nan]}, "alphas: got .nan., wanted a list of finite numbers not below 0"),
        ({"alphas": []}, "alphas: got .., wanted a list"),
        ({"alphas": [[1.0, 2.0]]}, "alphas: got .*, wanted a list"),
        ({"alphas": [np.inf]}, "alphas: got .inf., wanted a list of finite numbers"),
        ({"alphas": 0}, "The 'alphas' parameter .* Got 0"),
        ({"alphas": 3.5}, "The 'alphas' parameter .* Got 3.5"),
        ({"eps": 0.0}, "The 'eps' parameter .* Got 0.0"),
        ({"max_iter": 0}, "The 'max_iter' parameter .* Got 0"),
        ({"tol": -1.0}, "The 'tol' parameter .* Got -1.0"),
    ],
)
def test_parameters_of_a_path_are_checked(settings, what):
    with pytest.raises(ValueError, match=what):
        em.enet_path(*tall(), **settings)
    with pytest.raises(ValueError, match=what):
        em.ElasticNetCV(**settings).fit(*tall())


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"l1_ratio": []}, "l1_ratio: got .., wanted a list of finite numbers from 0 to 1"),
        ({"l1_ratio": [0.5, 2.0]}, "l1_ratio: got .0.5, 2.0., wanted a list"),
        ({"cv": []}, "cv has no splits"),
        ({"cv": [(range(5), range(5, 9)), ([], [0, 1])]}, "split 1 of cv has no training rows"),
        ({"cv": [([0, 1], [])]}, "split 0 of cv has no test rows"),
    ],
)
def test_what_cannot_be_cross_validated_is_refused_beforehand(settings, what):
    with pytest.raises(ValueError, match=what):
        em.ElasticNetCV(**settings).fit(*tall())


def test_a_fold_without_weight_is_refused():
    X, y = tall()
    weights = np.ones(len(y))
    weights[: len(y) // 2] = 0.0
    with pytest.raises(ValueError, match="split 0 of cv has no test rows of a weight above 0"):
        em.LassoCV(cv=2).fit(X, y, sample_weight=weights)


def test_targets_of_a_path_are_checked():
    X, y = tall()
    with pytest.raises(ValueError, match="inconsistent"):
        em.lasso_path(X, y[:-1])
    y[3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        em.lasso_path(X, y)
