"""Estimators as elastic jobs on real workers give the same results as in this process."""

from __future__ import annotations

import pickle
from collections.abc import Generator

import dask.array
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client
from sklearn.datasets import make_blobs, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV

import elasticml as em

pytestmark = pytest.mark.cluster

X, Y = make_classification(400, 8, random_state=0)


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    with em.LocalCluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def test_a_support_vector_machine(client: Client):
    settings = {"loss": "hinge", "C": 0.05, "tol": 1e-8, "max_iter": 4000}
    here = em.LinearSVC(**settings).fit(X, Y)
    there = em.LinearSVC(**settings, client=client).fit(X, Y)
    assert (here.solver_path_, there.solver_path_) == ("in-process", "job")
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-3)
    assert there.dual_gap_ <= 1e-8 * 0.05 * 400


def test_a_logistic_regression_by_address(client: Client):
    weights = np.linspace(0.5, 2.0, 400)
    settings = {"C": 0.5, "tol": 1e-10, "class_weight": "balanced"}
    here = em.LogisticRegression(**settings).fit(X, Y, sample_weight=weights)
    address = client.scheduler.address
    there = em.LogisticRegression(**settings, client=address).fit(X, Y, sample_weight=weights)
    assert there.solver_path_ == "job"
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-4)
    np.testing.assert_allclose(there.intercept_, here.intercept_, atol=1e-4)
    assert 0.0 <= there.dual_gap_ <= 1e-6


def test_a_ridge(client: Client):
    y = X @ np.arange(8.0) + 5.0
    here = em.Ridge(3.0).fit(X + 100.0, y)
    there = em.Ridge(3.0, tol=1e-12, client=client).fit(X + 100.0, y)
    assert (there.solver_path_, there.solver_) == ("job", "newton")
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-5)
    assert there.intercept_ == pytest.approx(here.intercept_, abs=1e-3)
    assert there.dual_gap_ <= 2e-12 * ((y - y.mean()) ** 2).sum()


@pytest.mark.parametrize("positive", [False, True])
def test_a_lasso_and_an_elastic_net_of_sparse_weighted_rows(client: Client, positive: bool):
    rng = np.random.default_rng(4)
    rows = sp.csr_array(sp.random(120, 300, 0.1, random_state=1))
    y = rows[:, :6].sum(axis=1) * 3.0 + 0.1 * rng.normal(size=120) + 4.0
    weights = rng.uniform(0.0, 2.0, 120)
    for make, settings in ((em.Lasso, {}), (em.ElasticNet, {"l1_ratio": 0.7})):
        settings = {"alpha": 0.01, "tol": 1e-9, "positive": positive, **settings}
        here = make(**settings).fit(rows, y, weights)
        there = make(**settings, client=client).fit(rows, y, weights)
        assert (here.solver_path_, there.solver_path_) == ("in-process", "job")
        np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-3)
        np.testing.assert_array_equal(there.coef_ != 0.0, here.coef_ != 0.0)
        assert there.intercept_ == pytest.approx(here.intercept_, abs=1e-3)
        assert 0.0 <= there.dual_gap_ <= 1e-9 * np.var(y) * 2.0


def test_several_targets_of_a_lasso_and_a_start_from_the_last_fit(client: Client):
    y = np.stack([X @ np.arange(8.0), X[:, 0] - X[:, 3]], axis=1)
    model = em.Lasso(0.1, tol=1e-10, warm_start=True, client=client).fit(X, y)
    here = em.Lasso(0.1, tol=1e-10).fit(X, y)
    np.testing.assert_allclose(model.coef_, here.coef_, atol=1e-4)
    cold = model.n_iter_
    # The last fit's best lower bound is no longer known: another round may be needed.
    assert max(model.fit(X, y).n_iter_) <= 1 < min(cold)


def test_a_lasso_that_runs_out_of_rounds_warns(client: Client):
    with pytest.warns(ConvergenceWarning, match="the duality gap is"):
        em.Lasso(1e-3, tol=1e-14, max_iter=1, client=client).fit(X, X @ np.arange(8.0) + Y)


@pytest.mark.parametrize("ratio", [1.0, 0.4])
def test_a_sparse_logistic_regression(client: Client, ratio: float):
    weights = np.linspace(0.0, 2.0, 400)
    settings = {"C": 0.05, "l1_ratio": ratio, "tol": 1e-10, "class_weight": "balanced"}
    here = em.LogisticRegression(**settings, max_iter=1000).fit(X, Y, weights)
    there = em.LogisticRegression(**settings, max_iter=1000, client=client).fit(X, Y, weights)
    assert (here.solver_path_, there.solver_path_) == ("in-process", "job")
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-4)
    np.testing.assert_allclose(there.intercept_, here.intercept_, atol=1e-4)
    np.testing.assert_array_equal(there.coef_ != 0.0, here.coef_ != 0.0)
    assert np.count_nonzero(there.coef_) > 0
    assert 0.0 <= there.dual_gap_ <= 1e-10 * np.log(2.0) * 0.05 * weights.sum() * 1.1
    np.testing.assert_array_equal(there.predict(X), here.predict(X))


def test_a_sparse_logistic_regression_starts_from_its_last_fit(client: Client):
    model = em.LogisticRegression(C=0.05, l1_ratio=1.0, tol=1e-8, warm_start=True, client=client)
    cold = model.fit(X, Y).n_iter_[0]
    assert model.fit(X, Y).n_iter_[0] <= 1 < cold


def test_a_support_vector_machine_with_an_l1_penalty(client: Client):
    settings = {"penalty": "l1", "C": 0.05, "tol": 1e-9, "intercept_scaling": 3.0}
    here = em.LinearSVC(**settings).fit(X, Y)
    there = em.LinearSVC(**settings, client=client).fit(X, Y)
    assert (here.solver_path_, there.solver_path_) == ("in-process", "job")
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-4)
    np.testing.assert_allclose(there.intercept_, here.intercept_, atol=1e-4)
    np.testing.assert_array_equal(there.coef_ != 0.0, here.coef_ != 0.0)
    assert 0.0 <= there.dual_gap_ <= 1e-9 * 0.05 * 400 * 1.1


@pytest.mark.parametrize("empty", [0, 1])
def test_a_class_without_weight_is_fitted_as_in_process(client: Client, empty: int):
    weights = np.where(empty == Y, 0.0, 1.5)
    makes = [
        lambda **where: em.LogisticRegression(C=0.5, l1_ratio=1.0, tol=1e-9, **where),
        lambda **where: em.LogisticRegression(
            C=0.5, l1_ratio=1.0, fit_intercept=False, class_weight={empty: 0.0}, tol=1e-9, **where
        ),
        lambda **where: em.LinearSVC("l1", C=0.05, tol=1e-9, **where),
        lambda **where: em.LinearSVC("l1", C=0.05, tol=1e-9, class_weight={empty: 0.0}, **where),
    ]
    for make, value in zip(makes, (weights, None, weights, None), strict=True):
        here, there = make().fit(X, Y, value), make(client=client).fit(X, Y, value)
        assert (here.solver_path_, there.solver_path_) == ("in-process", "job")
        np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-4)
        np.testing.assert_array_equal(there.predict(X), here.predict(X))


def test_one_of_three_classes_without_weight_is_fitted_as_in_process(client: Client):
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    settings = {"penalty": "l1", "C": 0.05, "tol": 1e-9}
    weights = np.where(y == 1, 0.0, 1.0)
    here = em.LinearSVC(**settings).fit(X, y, weights)
    there = em.LinearSVC(**settings, client=client).fit(X, y, weights)
    assert there.solver_path_ == "job"
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-4)
    np.testing.assert_allclose(there.intercept_, here.intercept_, atol=1e-4)
    np.testing.assert_array_equal(there.predict(X), here.predict(X))


def test_a_ridge_with_nonnegative_coefficients(client: Client):
    y = X @ np.arange(-3.0, 5.0) + 5.0
    weights = np.linspace(0.5, 2.0, 400)
    here = em.Ridge(3.0, positive=True, tol=1e-12).fit(X, y, weights)
    there = em.Ridge(3.0, positive=True, tol=1e-12, client=client).fit(X, y, weights)
    assert (there.solver_path_, there.solver_) == ("job", "coordinate descent")
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-5)
    assert there.intercept_ == pytest.approx(here.intercept_, abs=1e-5)
    assert 0.0 <= there.dual_gap_ <= 2e-12 * (weights * (y - y.mean()) ** 2).sum()


def test_a_logistic_regression_without_a_penalty_has_no_certificate(client: Client):
    settings = {"C": np.inf, "l1_ratio": 0.5, "tol": 1e-8}
    here = em.LogisticRegression(**settings).fit(X, Y)
    there = em.LogisticRegression(**settings, client=client).fit(X, Y)
    assert (there.solver_path_, np.isnan(there.dual_gap_)) == ("job", True)
    # Columns of these data are linearly dependent: many models have the same margins.
    margins = [model.decision_function(X) for model in (here, there)]
    np.testing.assert_allclose(margins[1], margins[0], atol=1e-2)


def test_a_search_over_jobs_uses_the_client_itself(client: Client):
    grid = GridSearchCV(em.LinearSVC(client=client), {"C": [0.01, 0.1]}, cv=2).fit(X, Y)
    assert grid.best_estimator_.client is client
    assert grid.best_estimator_.solver_path_ == "job"
    sent = pickle.loads(pickle.dumps(grid.best_estimator_))
    assert sent.client == client.scheduler.address
    assert np.array_equal(sent.predict(X), grid.predict(X))


def test_k_means_of_arrays_and_of_a_dask_collection(client: Client):
    rows, blobs = make_blobs(1200, 3, centers=4, cluster_std=0.3, random_state=0)
    for given in (rows, dask.array.from_array(rows, chunks=(400, 3))):
        model = em.KMeans(4, random_state=0, client=client, max_iter=2).fit(given)
        assert (model.solver_path_, model.n_iter_) == ("job", 2)
        assert adjusted_rand_score(blobs, np.asarray(model.labels_)) == 1.0
        assert model.inertia_ == pytest.approx(-model.score(rows))
        assert np.array_equal(np.asarray(model.predict(given)), np.asarray(model.labels_))
