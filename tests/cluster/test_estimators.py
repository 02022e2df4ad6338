"""Estimators as elastic jobs on real workers find what they find in this process."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pytest
from distributed import Client
from sklearn.datasets import make_classification

import elasticml as em

pytestmark = pytest.mark.cluster

X, Y = make_classification(400, 8, random_state=0)


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    with em.LocalCluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def test_a_support_vector_machine(client: Client):
    given = {"loss": "hinge", "C": 0.05, "tol": 1e-8, "max_iter": 4000}
    here = em.LinearSVC(**given).fit(X, Y)
    there = em.LinearSVC(**given, client=client).fit(X, Y)
    assert (here.solver_path_, there.solver_path_) == ("in-process", "job")
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-3)
    assert there.dual_gap_ <= 1e-8 * 0.05 * 400


def test_a_logistic_regression_by_address(client: Client):
    weights = np.linspace(0.5, 2.0, 400)
    given = {"C": 0.5, "tol": 1e-10, "class_weight": "balanced"}
    here = em.LogisticRegression(**given).fit(X, Y, sample_weight=weights)
    address = client.scheduler.address
    there = em.LogisticRegression(**given, client=address).fit(X, Y, sample_weight=weights)
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
