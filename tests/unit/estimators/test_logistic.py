"""LogisticRegression: scikit-learn's contract and models, certified by a duality gap."""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits, load_iris, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression as Theirs
from sklearn.metrics import log_loss

import elasticml as em
from elasticml.estimators import base
from tests.unit.estimators.contract import objective

DATA = {
    "two classes": lambda: make_classification(300, 12, random_state=0),
    "three classes": lambda: load_iris(return_X_y=True),
}


def test_threads_do_not_change_the_model(monkeypatch):
    # Even so few values are worth a thread here.
    monkeypatch.setattr(base, "PRODUCT_VALUES_MIN", 0)
    X, y = load_digits(return_X_y=True)
    X = sp.csr_matrix(X / 16.0)
    one = em.LogisticRegression(C=0.1, tol=1e-14).fit(X, y)
    two = em.LogisticRegression(C=0.1, tol=1e-14, n_jobs=2).fit(X, y)
    np.testing.assert_allclose(two.coef_, one.coef_, atol=1e-6)
    assert not np.array_equal(two.coef_, one.coef_)


def test_few_rows_use_one_thread_whatever_n_jobs():
    X, y = load_digits(return_X_y=True)
    for labels in (y, y > 4):
        one, two = (em.LogisticRegression(C=0.1, n_jobs=n).fit(X / 16.0, labels) for n in (1, 2))
        assert np.array_equal(two.coef_, one.coef_)


@functools.cache
def many_rows(rows=110_000, each=75, columns=5_000):
    """8.25 million stored values, unit rows, labels of a planted model."""
    rng = np.random.default_rng(3)
    steps = rng.integers(1, 2 * (columns // (each + 1)), (rows, each))
    indices = (np.cumsum(steps, axis=1) % columns).astype(np.int32)
    values = rng.exponential(1.0, indices.shape).astype(np.float32)
    values /= np.linalg.norm(values, axis=1)[:, np.newaxis]
    indptr = np.arange(0, rows * each + 1, each)
    X = sp.csr_matrix((values.ravel(), indices.ravel(), indptr), shape=(rows, columns))
    X.sum_duplicates()
    margins = X @ rng.standard_normal(columns)
    return X, np.sign(margins + margins.std() * rng.standard_normal(rows))


def test_many_rows_are_fitted_by_dual_coordinate_ascent():
    X, y = many_rows()
    dual = em.LogisticRegression(fit_intercept=False, tol=1e-5).fit(X, y)
    newton = em.LogisticRegression(fit_intercept=False, tol=1e-9, warm_start=True).fit(X, y)
    two = em.LogisticRegression(fit_intercept=False, tol=1e-5, n_jobs=2).fit(X, y)
    again = em.LogisticRegression(fit_intercept=False, tol=1e-5, n_jobs=2).fit(X, y)
    assert [model.method_ for model in (dual, newton, two)] == ["dual", "newton", "dual"]
    least = objective(newton, X, y)
    for model in (dual, two):
        assert model.dual_gap_ <= 1e-5 * len(y) * math.log(2.0)
        assert -newton.dual_gap_ <= objective(model, X, y) - least <= model.dual_gap_
    assert np.array_equal(two.coef_, again.coef_)


def test_newton_steps_continue_where_passes_end():
    X, y = many_rows()
    model = em.LogisticRegression(fit_intercept=False, tol=1e-6, max_iter=3).fit(X, y)
    assert model.method_ == "newton"
    assert model.dual_gap_ <= 1e-6 * len(y) * math.log(2.0)


def test_an_intercept_or_a_weak_penalty_uses_newton_steps():
    X, y = many_rows()
    for settings in ({"fit_intercept": True}, {"fit_intercept": False, "C": 1000.0}):
        assert em.LogisticRegression(tol=1e-2, **settings).fit(X, y).method_ == "newton"


@pytest.mark.parametrize(
    ("columns", "C", "method"),
    [(20, 0.01, "newton"), (100, 0.01, "dual"), (100, 1.0, "newton"), (600, 1.0, "dual")],
)
def test_few_values_are_fitted_as_their_shape_and_the_penalty_say(columns, C, method):
    X = np.random.default_rng(0).standard_normal((500, columns))
    model = em.LogisticRegression(C=C, fit_intercept=False).fit(X, np.sign(X[:, 0]))
    assert model.method_ == method


def separable_rows():
    r = np.random.default_rng(0)
    X = 30.0 * r.standard_normal((3000, 20))
    return X, (X @ r.standard_normal(20) > 0.0).astype(int)


def test_a_warm_start_from_a_useless_model_is_not_worse_than_a_cold_one():
    X, y = separable_rows()
    cold = em.LogisticRegression(C=1e3, tol=1e-7).fit(X, y)
    model = em.LogisticRegression(C=1e6, tol=1e-7, warm_start=True).fit(X, 1 - y)
    model.set_params(C=1e3).fit(X, y)
    assert model.n_iter_[0] == cold.n_iter_[0]
    np.testing.assert_array_equal(model.coef_, cold.coef_)


@pytest.mark.parametrize("seed", range(4))
def test_few_rows_with_a_weight_are_fitted_as_if_they_were_all(seed):
    r = np.random.default_rng(seed)
    X = r.standard_normal((4000, 2))
    y = (X[:, 0] + r.standard_normal(4000) > 0.0).astype(int)
    some = r.choice(4000, 40, replace=False)
    weights = np.zeros(4000)
    weights[some] = 1.0
    model = em.LogisticRegression(tol=1e-12).fit(X, y, sample_weight=weights)
    alone = em.LogisticRegression(tol=1e-12).fit(X[some], y[some])
    np.testing.assert_allclose(model.coef_, alone.coef_, rtol=1e-5)


def test_a_step_that_is_far_too_long_is_searched_to_its_end():
    r = np.random.default_rng(20)
    X = r.standard_cauchy((3000, 3)) ** 3
    z = (X / np.abs(X).max(axis=0)) @ r.standard_normal(3)
    weights = np.exp(6.0 * r.standard_normal(3000))
    model = em.LogisticRegression(C=1e8, fit_intercept=False, max_iter=200)
    model.fit(X, z > np.median(z), sample_weight=weights)
    assert model.dual_gap_ <= model.tol * model.C * weights.sum() * math.log(2.0)


def test_without_a_penalty_there_is_no_certificate():
    X, y = make_classification(300, 5, n_redundant=0, flip_y=0.3, random_state=0)
    ours = em.LogisticRegression(C=np.inf, tol=1e-12).fit(X, y)
    theirs = Theirs(C=np.inf, tol=1e-12, solver="newton-cholesky").fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    assert math.isnan(ours.dual_gap_)


def test_without_a_penalty_a_warning_names_no_gap():
    X = np.random.default_rng(0).standard_normal((300, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        em.LogisticRegression(C=np.inf).fit(X, X[:, 0] + X[:, 1] ** 2 > 0.5)
    # The first column separates the classes: the longer the model, the better.
    with pytest.warns(ConvergenceWarning, match="no certificate") as caught:
        em.LogisticRegression(C=np.inf, max_iter=5).fit(X, X[:, 0] > 0.0)
    assert "gap" not in str(caught[0].message)


def test_columns_of_very_unequal_size_are_no_obstacle():
    X, y = make_classification(400, 6, n_informative=4, random_state=3)
    X *= np.array([1e-3, 1.0, 1e4, 1.0, 1e2, 1e-2])
    ours = em.LogisticRegression(tol=1e-10).fit(X, y)
    assert ours.dual_gap_ <= 1e-10 * 400 * math.log(2.0)
    assert ours.n_iter_[0] < 30


def test_zero_threads_are_refused():
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match="n_jobs=0 has no meaning"):
        em.LogisticRegression(n_jobs=0).fit(X, y)


def test_a_useless_client_is_warned_of():
    X, y = np.random.default_rng(0).standard_normal((30, 2)), np.tile([0, 1, 2], 10)
    with pytest.warns(UserWarning, match="L1 penalty and 3 classes is fitted in this"):
        # The client is not asked: nothing listens there.
        model = em.LogisticRegression(l1_ratio=0.5, client="tcp://127.0.0.1:1").fit(X, y)
    assert model.solver_path_ == "in-process"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        em.LogisticRegression(l1_ratio=0.5).fit(X, y)


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_a_class_of_no_weight_does_not_prevent_a_certificate(ratio):
    X, y = load_iris(return_X_y=True)
    settings, counts = {"l1_ratio": ratio, "C": 0.5}, y != 1

    def value(model):
        w = model.coef_.ravel()
        losses = log_loss(
            y[counts], model.predict_proba(X[counts]), normalize=False, labels=[0, 1, 2]
        )
        return ratio * np.abs(w).sum() + 0.5 * (1.0 - ratio) * (w @ w) + 0.5 * losses

    best = em.LogisticRegression(**settings, tol=1e-7).fit(X, y, counts)
    assert best.dual_gap_ <= 1e-7 * 0.5 * 100 * math.log(3.0)
    assert set(best.predict(X)) == {0, 2}
    for steps in (1, 2, 4):
        rough = em.LogisticRegression(**settings, tol=1e-12, max_iter=steps)
        with pytest.warns(ConvergenceWarning):
            rough.fit(X, y, counts)
        assert value(rough) - value(best) <= rough.dual_gap_ + 1e-9


@pytest.mark.parametrize("model", [em.LogisticRegression(), em.LinearSVC()], ids=["log", "svm"])
@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_weights_of_classes_are_checked(model, weight):
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match=f"class_weight: got {weight} for class .*1.*, wanted"):
        model.set_params(class_weight={1: weight}).fit(X, y)
    model.set_params(class_weight=None)
