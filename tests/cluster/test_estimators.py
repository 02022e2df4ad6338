"""Estimators as jobs on real workers, of arrays and of collections, are those of this process."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Generator
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV

import elasticml as em

pytestmark = pytest.mark.cluster

X, Y = make_classification(400, 8, random_state=0)
SPARSE = sp.csr_array(sp.random(400, 300, 0.05, random_state=1))
TARGET = X @ np.arange(-3.0, 5.0) + 5.0
OF_SPARSE = SPARSE[:, :6].sum(axis=1) * 3.0 + 0.1 * np.random.default_rng(4).normal(size=400) + 4.0
THREE = np.digitize(X[:, 0], [-0.5, 0.5])
WORDS = np.array(["low", "mid", "high"])[THREE]
COUNTS = np.random.default_rng(1).poisson(np.exp(0.3 * X[:, 0])).astype(float)
WEIGHTS = np.linspace(0.0, 2.0, 400)
L1 = {"C": 0.05, "tol": 1e-10}


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    with em.LocalCluster(2) as cluster, Client(cluster) as client:
        yield client


#: Estimator, rows, targets, weights, and how near the coefficients are.
CASES: dict[str, tuple[Any, Any, Any, Any, float]] = {
    "hinge": (em.LinearSVC(loss="hinge", C=0.05, tol=1e-8, max_iter=4000), X, Y, None, 1e-3),
    "logistic": (
        em.LogisticRegression(C=0.5, tol=1e-10, class_weight="balanced"),
        X,
        Y,
        WEIGHTS,
        1e-4,
    ),
    "ridge": (em.Ridge(3.0, tol=1e-12), X + 100.0, TARGET, None, 1e-5),
    "nonnegative ridge": (em.Ridge(3.0, positive=True, tol=1e-12), X, TARGET, WEIGHTS, 1e-5),
    "lasso": (em.Lasso(0.01, tol=1e-9), SPARSE, OF_SPARSE, WEIGHTS, 1e-3),
    "targets": (em.Lasso(0.1, tol=1e-10), X, np.stack([TARGET, X[:, 0]], 1), None, 1e-4),
    "sparse logistic": (
        em.LogisticRegression(**L1, l1_ratio=0.4, class_weight="balanced", max_iter=1000),
        X,
        Y,
        WEIGHTS,
        1e-4,
    ),
    "poisson": (em.PoissonRegressor(alpha=0.05, tol=1e-12), X, COUNTS, WEIGHTS, 1e-6),
    "words": (
        em.LogisticRegression(C=0.5, tol=1e-12, class_weight={"high": 2.0, "low": 1.0, "mid": 0.5}),
        X,
        WORDS,
        WEIGHTS,
        1e-4,
    ),
    "one of three without weight": (em.LinearSVC("l1", **L1), X, THREE, THREE != 1.0, 1e-4),
}

#: The tolerances times the objectives of zero; balanced classes and their sums differ in rounding.
GAPS = {
    "hinge": 1e-8 * 0.05 * 400,
    "logistic": 1e-6,
    "ridge": 2e-12 * 400 * TARGET.var(),
    "nonnegative ridge": 2e-12 * WEIGHTS @ (TARGET - TARGET.mean()) ** 2,
    "lasso": 2e-9 * OF_SPARSE.var(),
    "sparse logistic": 1.1e-10 * np.log(2.0) * 0.05 * WEIGHTS.sum(),
    "poisson": 1e-10,
    "words": 1.1e-12 * np.log(3.0) * 0.5 * 4.0 * WEIGHTS.sum(),
}


def collections(rows: Any, y: Any, weights: Any) -> tuple[Any, ...]:
    """Return collections of partitions that differ, of an unknown number of rows where sparse."""
    size = 77
    if sp.issparse(rows):
        size = 100
        rows = da.from_array(rows.toarray(), chunks=(size, -1)).map_blocks(sp.csr_array)
        rows._chunks = ((np.nan,) * 4, rows.chunks[1])
    else:
        rows = da.from_array(rows, chunks=(100, 3))
    lazy = None if weights is None else da.from_array(weights, chunks=size)
    return rows, da.from_array(y, chunks=size), lazy


@pytest.mark.parametrize("name", CASES)
def test_an_estimator_as_a_job_is_the_one_of_this_process(client: Client, name: str) -> None:
    model, rows, y, weights, near = CASES[name]
    weights = None if weights is None else weights.astype(float)
    here = clone(model).fit(rows, y, weights)
    where = client.scheduler.address if name == "logistic" else client
    ways = [(rows, y, weights)]
    ways += [] if name == "targets" else [collections(rows, y, weights)]
    for given in ways:
        there = clone(model).set_params(client=where).fit(*given)
        assert (here.solver_path_, there.solver_path_) == ("in-process", "job")
        np.testing.assert_allclose(there.coef_, here.coef_, atol=near)
        if name == "words":  # softmax does not change if all intercepts grow alike
            proba = [model.predict_proba(rows) for model in (here, there)]
            np.testing.assert_allclose(*proba, atol=1e-5)
        else:
            intercept_near = 1e-3 if name == "ridge" else near
            np.testing.assert_allclose(there.intercept_, here.intercept_, atol=intercept_near)
        if "l1" in repr(model) or model.__class__.__name__ in ("Lasso", "ElasticNet"):
            np.testing.assert_array_equal(there.coef_ != 0.0, here.coef_ != 0.0)
        assert np.min(there.dual_gap_) >= 0.0
        assert np.max(there.dual_gap_) <= GAPS.get(name, np.inf)
        if name in ("logistic", "words", "one of three without weight"):
            np.testing.assert_array_equal(there.predict(rows), here.predict(rows))


def test_a_model_of_a_collection_predicts_and_scores_collections(client: Client) -> None:
    rows, labels, lazy = collections(X, Y.astype(float), WEIGHTS)
    model = em.LogisticRegression(C=0.5, tol=1e-6, fit_intercept=False).fit(rows, labels, lazy)
    predicted = model.predict(rows)
    assert isinstance(predicted, da.Array)
    assert predicted.dtype == float
    np.testing.assert_array_equal(predicted.compute(), model.predict(X))
    np.testing.assert_array_equal(model.predict_proba(rows).compute(), model.predict_proba(X))
    assert model.score(rows, labels, lazy) == pytest.approx(model.score(X, Y, WEIGHTS))
    counts = da.from_array(COUNTS, chunks=77)
    model = em.PoissonRegressor(alpha=0.2).fit(rows, counts, lazy)
    expected = model.score(X, COUNTS, WEIGHTS)
    assert model.score(rows, counts, lazy) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match="wanted counts, at least 0"):
        model.fit(rows, -counts)


@pytest.mark.parametrize(
    "model",
    [em.Lasso(0.1, tol=1e-10), em.LogisticRegression(C=0.05, l1_ratio=1.0, tol=1e-8)],
)
def test_a_fit_starts_from_the_last_one(client: Client, model: Any) -> None:
    model = clone(model).set_params(warm_start=True, client=client)
    y = Y if isinstance(model, em.LogisticRegression) else TARGET
    cold = np.max(model.fit(X, y).n_iter_)
    # The last fit's best lower bound is no longer known: another round may be needed.
    assert np.max(model.fit(X, y).n_iter_) <= 1 < cold


@pytest.mark.parametrize("targets", [np.full(400, 7.0), np.stack([TARGET, np.full(400, 7.0)], 1)])
def test_constant_targets_have_no_gap_to_wait_for(client: Client, targets: Any) -> None:
    model = em.Ridge(3.0, tol=1e-8, client=client).fit(X, targets)
    last = np.atleast_2d(model.coef_)[-1]
    np.testing.assert_allclose(last, 0.0, atol=1e-9)
    assert np.atleast_1d(model.intercept_)[-1] == pytest.approx(7.0)


def test_a_ridge_on_times_is_certified_as_in_this_process(client: Client) -> None:
    late = np.column_stack([X[:, :2], 1.7e9 + 1e5 * X[:, 2]])
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        there = em.Ridge(1.0, tol=1e-6, client=client).fit(late, TARGET)
    here = em.Ridge(1.0, tol=1e-6).fit(late, TARGET)
    assert there.n_iter_ < 50
    np.testing.assert_allclose(there.predict(late), here.predict(late), atol=0.02)


def test_a_lasso_that_runs_out_of_rounds_warns(client: Client) -> None:
    with pytest.warns(ConvergenceWarning, match="the duality gap is"):
        em.Lasso(1e-3, tol=1e-14, max_iter=1, client=client).fit(X, X @ np.arange(8.0) + Y)


def test_a_logistic_regression_without_a_penalty_has_no_certificate(client: Client) -> None:
    settings = {"C": np.inf, "l1_ratio": 0.5, "tol": 1e-8}
    here = em.LogisticRegression(**settings).fit(X, Y)
    there = em.LogisticRegression(**settings, client=client).fit(X, Y)
    assert (there.solver_path_, np.isnan(there.dual_gap_)) == ("job", True)
    # Columns of these data are linearly dependent: many models have the same margins.
    margins = [model.decision_function(X) for model in (here, there)]
    np.testing.assert_allclose(margins[1], margins[0], atol=1e-2)


def test_a_search_over_jobs_uses_the_client_itself(client: Client) -> None:
    grid = GridSearchCV(em.LinearSVC(client=client), {"C": [0.01, 0.1]}, cv=2).fit(X, Y)
    assert grid.best_estimator_.client is client
    assert grid.best_estimator_.solver_path_ == "job"
    sent = pickle.loads(pickle.dumps(grid.best_estimator_))
    assert sent.client == client.scheduler.address
    assert np.array_equal(sent.predict(X), grid.predict(X))


def test_k_means_of_arrays_and_of_a_dask_collection(client: Client) -> None:
    rows, blobs = make_blobs(1200, 3, centers=4, cluster_std=0.3, random_state=0)
    for given in (rows, da.from_array(rows, chunks=(400, 3))):
        model = em.KMeans(4, random_state=0, client=client).fit(given)
        assert (model.solver_path_, model.n_iter_) == ("job", 5)
        assert adjusted_rand_score(blobs, np.asarray(model.labels_)) == 1.0
        assert model.inertia_ == pytest.approx(-model.score(rows))
        assert np.array_equal(np.asarray(model.predict(given)), np.asarray(model.labels_))
