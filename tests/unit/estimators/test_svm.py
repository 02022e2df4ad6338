"""LinearSVC: scikit-learn's contract and LIBLINEAR's models, certified by a duality gap."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import elasticml as em
from elasticml.algorithms.cocoa.local_pass import PassOptions
from elasticml.estimators import solver, svm

#: Make the local solver use threads for any amount of work.
FEW_VALUES = {**PassOptions.__init__.__kwdefaults__, "values_per_thread": 0}


@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix])
def test_float32_rows_are_taken_as_they_are_and_give_the_model_of_float64_ones(make):
    X, y = make_classification(300, 12, random_state=0)
    X = X.astype(np.float32)
    held = make(X)
    before = held.copy()
    settings = {"loss": "hinge", "C": 0.1, "tol": 1e-9, "max_iter": 20_000}
    single = em.LinearSVC(**settings, random_state=0).fit(held, y)
    double = em.LinearSVC(**settings, random_state=0).fit(make(X.astype(np.float64)), y)
    assert single.coef_.dtype == np.float64
    np.testing.assert_allclose(single.coef_, double.coef_, atol=1e-4)
    assert single.dual_gap_ <= 1e-9 * 0.1 * 300
    assert abs(held - before).max() == 0.0


@pytest.mark.parametrize("dual", [True, False])
def test_classes_fitted_in_parallel_have_the_same_bits(dual, monkeypatch):
    monkeypatch.setattr(svm, "MODEL_VALUES_MIN", 0)
    X, y = make_classification(200, 9, n_informative=6, n_classes=5, random_state=3)
    settings = {"dual": dual, "tol": 1e-3, "random_state": 0}
    alone = em.LinearSVC(**settings).fit(X, y)
    beside = em.LinearSVC(**settings, n_jobs=3).fit(X, y)
    assert np.array_equal(alone.coef_, beside.coef_)
    assert np.array_equal(alone.dual_gap_, beside.dual_gap_)


@pytest.mark.parametrize(
    ("loss", "dual"), [("hinge", True), ("squared_hinge", True), ("squared_hinge", False)]
)
def test_any_number_of_threads_reaches_the_same_model(loss, dual, monkeypatch):
    # Even so few values are worth a thread here, so that rows are split over three.
    monkeypatch.setattr(PassOptions.__init__, "__kwdefaults__", FEW_VALUES)
    monkeypatch.setattr(svm, "STEP_VALUES_MIN", 0)
    monkeypatch.setattr(solver, "STEP_VALUES_MIN", 0)
    monkeypatch.setattr(svm, "PRODUCT_VALUES_MIN", 0)
    X, y = make_classification(400, 12, random_state=0)
    settings = {"loss": loss, "dual": dual, "C": 0.1, "tol": 1e-12, "max_iter": 20_000}
    alone, beside = (em.LinearSVC(**settings, n_jobs=n).fit(X, y) for n in (1, 3))
    np.testing.assert_allclose(alone.coef_, beside.coef_, atol=1e-6)
    assert not np.array_equal(alone.coef_, beside.coef_)
    assert beside.dual_gap_ <= 1e-12 * 0.1 * 400


@pytest.mark.parametrize("loss", ["squared_hinge", "hinge"])
@pytest.mark.parametrize("classes", [2, 3])
def test_few_rows_use_one_thread_whatever_n_jobs(loss, classes, monkeypatch):
    # If a second thread were started, it would take its share.
    monkeypatch.setattr(PassOptions.__init__, "__kwdefaults__", FEW_VALUES)
    X, y = make_classification(400, 12, n_informative=6, n_classes=classes, random_state=0)
    alone, beside = (em.LinearSVC(loss=loss, random_state=0, n_jobs=n).fit(X, y) for n in (1, 3))
    assert np.array_equal(alone.coef_, beside.coef_)


def test_it_works_in_a_pipeline_and_a_grid_and_survives_pickling():
    X, y = make_classification(200, 8, random_state=2)
    pipeline = make_pipeline(StandardScaler(), em.LinearSVC())
    grid = GridSearchCV(pipeline, {"linearsvc__C": [0.01, 1.0]}, cv=3, n_jobs=1).fit(X, y)
    again = pickle.loads(pickle.dumps(grid.best_estimator_))
    assert np.array_equal(again.predict(X), grid.predict(X))
    assert grid.best_score_ > 0.8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"C": 0.0}, "'C' parameter of LinearSVC must be a float in the range"),
        ({"loss": "hinge", "dual": False}, "dual=False with loss='hinge'"),
        ({"penalty": "l1", "loss": "hinge"}, "penalty='l1' with loss='hinge'"),
        ({"penalty": "l1", "dual": True}, "penalty='l1' with .* dual=True"),
        ({"tol": 0.0}, "'tol' parameter"),
        ({"n_jobs": 0}, "n_jobs=0 has no meaning"),
    ],
)
def test_a_wrong_setting_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        em.LinearSVC(**settings).fit(np.eye(4), [0, 1, 0, 1])


def test_rows_without_any_weight_are_refused():
    with pytest.raises(ValueError, match=r"at least one non-zero|wanted some above 0"):
        em.LinearSVC().fit(np.eye(4), [0, 1, 0, 1], sample_weight=np.zeros(4))
