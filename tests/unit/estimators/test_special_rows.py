"""Rows, targets and starts on which an estimator once failed, or might."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn import linear_model as theirs
from sklearn.datasets import load_iris, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss

import elasticml as em
from tests.own_penalties import Rounded
from tests.unit.estimators.contract import counts, objective, tall, wide, wine

LAYOUTS = pytest.mark.parametrize("make", [np.asarray, sp.csc_array])


CLASSES = {
    "two classes": lambda: make_classification(300, 12, random_state=0),
    "three classes": wine,
}
OF_CLASSES = pytest.mark.parametrize("name", CLASSES)

# --- columns --------------------------------------------------------------------------------------


def test_columns_of_very_unequal_size_are_no_obstacle():
    X, y = make_classification(400, 6, n_informative=4, random_state=3)
    ours = em.LogisticRegression(tol=1e-10).fit(X * [1e-3, 1.0, 1e4, 1.0, 1e2, 1e-2], y)
    assert ours.dual_gap_ <= 1e-10 * 400 * math.log(2.0)
    assert ours.n_iter_[0] < 30
    # Normal equations had a condition of 1e22, of which scipy warned.
    sizes = np.array([1e-4, 1.0, 1e4, 1e7])
    rows = np.random.default_rng(0).standard_normal((200, 4)) * sizes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = em.Ridge(alpha=1e-9).fit(rows, rows @ (1.0 / sizes))
    np.testing.assert_allclose(model.coef_ * sizes, 1.0, rtol=1e-2)


def test_sparse_columns_that_hardly_vary_next_to_their_mean_have_the_model_of_dense_ones():
    X, y = tall()
    X = np.column_stack([np.where(X > 2.0, X, 0.0), 1e7 + y])
    sparse, dense = (em.Ridge(0.1).fit(make(X), y).coef_ for make in (sp.csr_array, np.asarray))
    np.testing.assert_allclose(sparse, dense, atol=1e-7)


@pytest.mark.parametrize(
    "model",
    [em.Lasso(1e-3, max_iter=10_000), em.LogisticRegression(C=0.5, l1_ratio=1.0, tol=1e-10)],
    ids=["lasso", "logistic"],
)
@LAYOUTS
def test_zero_and_constant_columns_have_zero_coefficients(model, make):
    X, y = CLASSES["two classes"]()
    model.fit(make(np.hstack([np.zeros((300, 1)), np.full((300, 1), 7.0), X])), y)
    assert not model.coef_.ravel()[:2].any()
    assert model.coef_.ravel()[2:].any()


@LAYOUTS
def test_a_column_that_has_become_zero_loses_its_coefficient(make):
    X = np.linalg.qr(np.random.default_rng(0).standard_normal((150, 5)))[0]
    y = X @ np.arange(1.0, 6.0)
    model = em.Lasso(1e-3, tol=1e-10, fit_intercept=False, warm_start=True).fit(make(X), y)
    assert model.coef_[2] != 0.0
    X[:, 2] = 0.0
    assert model.fit(make(X), X @ np.arange(1.0, 6.0)).coef_[2] == 0.0


def test_the_gap_is_that_of_the_model_after_columns_were_dropped():
    X = np.linalg.qr(np.random.default_rng(0).standard_normal((150, 120)))[0]
    model = em.Lasso(1 / 150, warm_start=True, tol=1e-6, fit_intercept=False)
    model.fit(X, 5.0 * X[:, 0] + 1.02 * X[:, 1])
    assert model.coef_[1] > 0.0
    assert model.fit(X, 5.0 * X[:, 0]).dual_gap_ <= 1e-6 / 6.0
    assert model.coef_[1] == 0.0


@pytest.mark.parametrize("make", [sp.csc_array, sp.csr_array])
def test_repeated_entries_of_sparse_rows_are_added_up(make):
    X, y = tall()
    parts = make(X)
    arrays = np.repeat(0.5 * parts.data, 2), np.repeat(parts.indices, 2), 2 * parts.indptr
    repeated = make(arrays, shape=X.shape)
    models = [em.Lasso(0.1, tol=1e-12).fit(rows, y).coef_ for rows in (X, repeated)]
    np.testing.assert_allclose(*models, atol=1e-7)
    distances = [em.KMeans(3, random_state=0).fit_transform(rows) for rows in (X, repeated)]
    np.testing.assert_allclose(*distances, atol=1e-7)
    assert repeated.nnz == 2 * X.size


@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize(
    "model",
    [em.Lasso(0.1), em.Ridge(), em.LinearSVC("l1"), em.LogisticRegression(l1_ratio=1.0)],
    ids=["lasso", "ridge", "svm", "logistic"],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values_whose_squares_overflow_get_no_certificate(model, make):
    X, y = tall()
    with pytest.raises(ValueError, match="squares of column 0 of X add up to more than float64"):
        model.fit(make(X * 1e200), y > y.mean())
    if hasattr(model, "alpha"):
        with pytest.raises(ValueError, match="squares of y add up to more than float64"):
            model.fit(make(X), y * 1e200)


@pytest.mark.parametrize("intercept", [False, True])
def test_many_sparse_columns_give_the_result_of_dense_ones(intercept):
    rng = np.random.default_rng(2)
    X = sp.random(400, 600, 0.05, "csr", random_state=rng, data_rvs=rng.standard_normal)
    y = X @ (rng.standard_normal(600) * (rng.random(600) < 0.1)) > 0.1
    model = em.LogisticRegression(
        C=3.0, l1_ratio=1.0, tol=1e-9, fit_intercept=intercept, max_iter=500
    )
    sparse = model.fit(X, y).coef_
    assert model.dual_gap_ <= 1e-9 * 3.0 * 400 * math.log(2.0)
    dense = model.fit(X.toarray(), y).coef_
    assert np.array_equal(sparse != 0.0, dense != 0.0)
    np.testing.assert_allclose(sparse, dense, atol=1e-4)


@LAYOUTS
def test_many_coefficients_are_taken_in_blocks(make, monkeypatch):
    X, y = wine()
    settings = {"C": 0.5, "l1_ratio": 1.0, "tol": 1e-11, "max_iter": 2000}
    whole = em.LogisticRegression(**settings).fit(make(X), y)
    monkeypatch.setattr("elasticml.algorithms.linear.sparse_classifier.BLOCK_MAX", 9)
    blocks = em.LogisticRegression(**settings).fit(make(X), y)
    assert blocks.n_iter_[0] > whole.n_iter_[0]
    np.testing.assert_allclose(blocks.coef_, whole.coef_, atol=1e-6)


@LAYOUTS
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("penalty", [{}, {"penalty": Rounded}])
def test_columns_beyond_a_gram_matrix_are_swept(make, intercept, penalty, monkeypatch):
    X, y = wine()
    settings = {"C": 0.5, "l1_ratio": 0.5, "tol": 1e-9, "max_iter": 2000, **penalty}
    model = em.LogisticRegression(fit_intercept=intercept, **settings)
    whole = model.fit(make(X), y == 1).coef_
    monkeypatch.setattr("elasticml.algorithms.linear.sparse_classifier.BLOCK_MAX", 3)
    np.testing.assert_allclose(model.fit(make(X), y == 1).coef_, whole, atol=1e-4)


@pytest.mark.filterwarnings("error")
def test_separable_classes_without_a_penalty_end_where_only_rounding_is_left():
    X = np.random.default_rng(0).standard_normal((1000, 5))
    y = np.argmax(X @ np.random.default_rng(1).standard_normal((5, 3)), axis=1)
    model = em.LogisticRegression(C=np.inf).fit(X, y)
    assert model.score(X, y) == 1.0
    assert model.n_iter_[0] < 100


# --- rows and weights -----------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_class_of_no_weight_does_not_prevent_a_certificate(ratio):
    X, y = load_iris(return_X_y=True)
    settings, has_weight = {"l1_ratio": ratio, "C": 0.5}, y != 1

    def value(model):
        w = model.coef_.ravel()
        some = y[has_weight], model.predict_proba(X[has_weight])
        losses = log_loss(*some, normalize=False, labels=[0, 1, 2])
        return ratio * np.abs(w).sum() + 0.5 * (1.0 - ratio) * (w @ w) + 0.5 * losses

    best = em.LogisticRegression(**settings, tol=1e-7).fit(X, y, has_weight)
    assert best.dual_gap_ <= 1e-7 * 0.5 * 100 * math.log(3.0)
    assert set(best.predict(X)) == {0, 2}
    for steps in (1, 2, 4):
        rough = em.LogisticRegression(**settings, tol=1e-12, max_iter=steps)
        with pytest.warns(ConvergenceWarning):
            rough.fit(X, y, has_weight)
        assert value(rough) - value(best) <= rough.dual_gap_ + 1e-9


def test_counts_far_from_one_are_reached_and_negative_ones_refused():
    X, y = counts()
    model = em.PoissonRegressor(alpha=0.0, tol=1e-12).fit(X, 1e6 * y)
    assert np.mean(model.predict(X)) == pytest.approx(1e6 * y.mean(), rel=1e-6)
    with pytest.raises(ValueError, match="wanted counts, at least 0"):
        em.PoissonRegressor().fit(X, y - 1.0)


# --- penalties ------------------------------------------------------------------------------------


def test_without_a_penalty_there_is_no_certificate():
    X, y = tall()
    X = np.column_stack([X, X[:, 0]])
    ridge = em.Ridge(0.0).fit(X, y)
    best = np.linalg.lstsq(X - X.mean(axis=0), y - y.mean(), rcond=None)[0]
    np.testing.assert_allclose(ridge.coef_, best, atol=1e-6)
    X, y = make_classification(300, 5, n_redundant=0, flip_y=0.3, random_state=0)
    other = theirs.LogisticRegression(C=np.inf, tol=1e-12, solver="newton-cholesky").fit(X, y)
    models = [em.LogisticRegression(C=np.inf, tol=1e-12, l1_ratio=r).fit(X, y) for r in (0.0, 1.0)]
    np.testing.assert_allclose(models[0].coef_, other.coef_, atol=1e-6)
    assert np.array_equal(models[0].coef_, models[1].coef_)
    assert math.isnan(ridge.dual_gap_)
    assert math.isnan(models[0].dual_gap_)


@OF_CLASSES
def test_separable_rows_without_a_penalty_have_no_minimum(name):
    y = CLASSES[name]()[1]
    model = em.LogisticRegression(C=np.inf, max_iter=15)
    with pytest.warns(ConvergenceWarning, match="no finite minimiser"):
        model.fit(3.0 * np.eye(3)[y], y)
    assert np.abs(model.coef_).max() < 1e3


@OF_CLASSES
def test_separable_rows_and_hardly_any_penalty_end_certified(name):
    X, y = CLASSES[name]()
    X = np.hstack([X, 3.0 * np.eye(3)[y]])  # the label itself
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = em.LogisticRegression(C=1e5, l1_ratio=1.0, tol=1e-9).fit(X, y)
    assert model.dual_gap_ <= 1e-9 * 1e5 * len(y) * math.log(3.0)
    assert model.score(X, y) == 1.0


def test_positive_keeps_coefficients_from_being_negative():
    X, y = tall()
    ours = em.Ridge(2.0, positive=True, tol=1e-13).fit(X, y)
    other = theirs.Ridge(2.0, positive=True, tol=1e-12, max_iter=100_000).fit(X, y)
    assert np.all(ours.coef_ >= 0.0)
    np.testing.assert_allclose(ours.coef_, other.coef_, atol=1e-5)


# --- starts and ends ------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [wide, tall], ids=["wide", "tall"])
@LAYOUTS
def test_a_warm_start_outside_the_constraint_ends_within_it(data, make):
    X, y = data()
    y = y - 5.0 * X[:, 0]
    model = em.Lasso(0.05, tol=1e-8, warm_start=True).fit(make(X), y)
    assert model.coef_.min() < -0.5
    model.set_params(positive=True).fit(make(X), y)
    fresh = em.Lasso(0.05, tol=1e-8, positive=True).fit(make(X), y)
    assert model.coef_.min() == 0.0
    assert abs(objective(model, X, y) - objective(fresh, X, y)) <= 1e-8 * float(np.mean(y**2))


def test_a_warm_start_from_a_useless_model_is_not_worse_than_a_cold_one():
    r = np.random.default_rng(0)
    X = 30.0 * r.standard_normal((3000, 20))
    y = (X @ r.standard_normal(20) > 0.0).astype(int)
    cold = em.LogisticRegression(C=1e3, tol=1e-7).fit(X, y)
    model = em.LogisticRegression(C=1e6, tol=1e-7, warm_start=True).fit(X, 1 - y)
    model.set_params(C=1e3).fit(X, y)
    assert model.n_iter_[0] == cold.n_iter_[0]
    np.testing.assert_array_equal(model.coef_, cold.coef_)


@OF_CLASSES
@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix])
def test_a_distant_warm_start_ends_as_near_as_a_cold_one(name, make):
    # Far on the wrong side of the margins the loss is flat, and steps from there made no progress.
    X, y = CLASSES[name]()
    model = em.LogisticRegression(l1_ratio=1.0, warm_start=True, tol=1e-8, max_iter=50)
    cold = em.LogisticRegression(l1_ratio=1.0, tol=1e-8).fit(make(X), y)
    model.coef_ = 1e4 * np.random.default_rng(0).standard_normal(cold.coef_.shape)
    model.intercept_ = np.full(cold.intercept_.shape, -1e3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(make(X), y)
    np.testing.assert_allclose(model.coef_, cold.coef_, atol=1e-6)


def test_a_step_that_is_far_too_long_is_searched_to_its_end():
    r = np.random.default_rng(20)
    X = r.standard_cauchy((3000, 3)) ** 3
    z = (X / np.abs(X).max(axis=0)) @ r.standard_normal(3)
    weights = np.exp(6.0 * r.standard_normal(3000))
    model = em.LogisticRegression(C=1e8, fit_intercept=False, max_iter=200)
    model.fit(X, z > np.median(z), sample_weight=weights)
    assert model.dual_gap_ <= model.tol * model.C * weights.sum() * math.log(2.0)


def test_steps_that_gain_only_rounding_end_a_fit():
    r = np.random.default_rng(8)
    X = r.integers(-5, 6, (1500, 2)) * (r.random((1500, 2)) < 0.3)
    y = (X @ r.normal(size=2) + r.logistic(size=1500) > 0.0).astype(int)
    model = em.LogisticRegression(C=1e6, tol=1e-9, l1_ratio=1.0)
    model.fit(sp.csr_matrix(X.astype(float)), y)  # a warning would be an error
    assert model.n_iter_[0] < model.max_iter


def test_a_stalled_fit_is_not_converged():
    rng = np.random.default_rng(0)
    X = 0.01 * rng.standard_normal((300, 5))
    y = 100.0 * X @ np.arange(1.0, 6.0) + rng.standard_normal(300)
    with pytest.warns(ConvergenceWarning, match="duality gap"):
        em.Ridge(1e-6, solver="newton").fit(X + 1e6, y)
    with pytest.warns(ConvergenceWarning, match="duality gap"):
        em.LogisticRegression(C=1e6).fit(X + 1e6, y > 0.0)


# From a model of zeros, a first step lands where the exponential grows by e for each length.
@pytest.mark.parametrize("alpha", [1e-6, 1.0])
@pytest.mark.parametrize("level", [5.0, 10.0, "outlier"])
def test_large_counts_without_an_intercept_have_a_certified_model(level, alpha):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(400, 5))
    y = rng.poisson(np.exp(np.clip(A @ np.ones(5), -3.0, 3.0))).astype(float)
    if level == "outlier":
        A[0], y[0] = 50.0, 1e4
    else:
        y += np.exp(level)
    model = em.PoissonRegressor(alpha=alpha, fit_intercept=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model.fit(A, y)
    assert model.n_iter_ < 20
    assert 0.0 <= model.dual_gap_ <= 1e-3 * y.mean() * np.log(y.mean())


def test_targets_at_the_ends_of_the_range_give_finite_models():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(100, 3))
    y = A @ [1.0, 2.0, -1.0] + 3.0
    small = em.Ridge(solver="newton").fit(A, 1e-160 * y)
    np.testing.assert_allclose(1e160 * small.coef_, em.Ridge().fit(A, y).coef_, rtol=1e-3)
    counts = np.abs(np.round(y))
    counts[0] = 1e308
    model = em.PoissonRegressor().fit(A, counts)
    assert np.isfinite(model.coef_).all()
