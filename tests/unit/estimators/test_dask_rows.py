"""Targets of Dask collections are those of rows in memory, and Dask leaves models as they are."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

import elasticml as em
from elasticml.estimators.dask_rows import DaskRows
from elasticml.estimators.rows import ArrayRows, Targets

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 5))
Z = X @ RNG.normal(size=5)
S = RNG.integers(0, 3, 90).astype(float)
S[80:] = 0.0  # of a whole partition


@pytest.fixture(scope="module")
def client():
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as one:
        yield one


def rows_of(y, weights, client):
    parts = [None if one is None else da.from_array(one, chunks=40) for one in (y, weights)]
    return DaskRows(da.from_array(X, chunks=(40, 5)), *parts, client)


@pytest.mark.parametrize("weights", [None, S])
def test_targets_have_the_sums_of_those_in_memory(client, weights):
    codes = np.digitize(Z, [-0.5, 0.7])
    there, here = rows_of(codes.astype(float), weights, client), ArrayRows(X, codes, weights)
    of_class = np.array([1.0, 2.0, 0.5])
    for one, other in (
        (there.codes(of_class), here.codes(of_class)),
        (there.against_rest(2, 1.0, 3.0), here.against_rest(2, 1.0, 3.0)),
        (there.numbers()[0], here.numbers()[0]),
    ):
        assert isinstance(one, Targets)
        for field in ("total", "mean", "square", "variance", "y_log_y", "least"):
            assert getattr(one, field) == pytest.approx(getattr(other, field))
        for name in ("y", "weights"):
            parts, whole = getattr(one, name), getattr(other, name)
            assert (parts is None) == (whole is None)
            if parts is not None:
                whole_there = np.concatenate([part.compute() for part in parts])
                np.testing.assert_array_equal(whole_there, whole)
    np.testing.assert_array_equal(there.labels.values, here.labels.values)
    np.testing.assert_array_equal(there.labels.weights, here.labels.weights)


def test_a_model_beside_a_collection_is_returned_as_it_is():
    model = em.Lasso(0.1).fit(X, Z)
    found, total = dask.compute({"model": model}, da.ones(4).sum())
    assert found["model"] is model
    assert total == 4.0
