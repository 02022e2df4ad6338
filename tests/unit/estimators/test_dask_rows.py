"""A model of Dask collections has the value, gradient and gap that its rows in memory give."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from distributed import Client

from elasticml.algorithms.linear.linear_objective import LinearObjective
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.algorithms.linear.softmax_objective import SoftmaxObjective, balanced
from elasticml.algorithms.parallel import Serial
from elasticml.estimators.dask_rows import DaskRows

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 5))
Z = X @ RNG.normal(size=5)
S = RNG.integers(0, 3, 90).astype(float)
TARGETS = {
    "logistic": np.where(Z > 0.5, 1.0, -1.0),
    "squared_hinge": np.where(Z > 0.5, 1.0, -1.0),
    "squared": Z + 1.0,
    "poisson": RNG.poisson(np.exp(Z.clip(-3.0, 2.0))).astype(float),
}
L2 = 0.05


@pytest.fixture(scope="module")
def client():
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as one:
        yield one


def rows_of(y, weights, client):
    parts = [None if one is None else da.from_array(one, chunks=40) for one in (y, weights)]
    return DaskRows(da.from_array(X, chunks=(40, 5)), *parts, client)


@pytest.mark.parametrize("loss", TARGETS)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weights", [None, S])
@pytest.mark.parametrize("fixed", [None, 2])
def test_one_model_is_certified_as_in_memory(client, loss, intercept, weights, fixed):
    y, w = TARGETS[loss], 0.2 * np.arange(1.0, 6.0 + intercept)
    rows = rows_of(y, weights, client)
    w[2] = 1.0
    found = rows.point(rows.numbers(rows.labels()), w, loss, L2, intercept, fixed)
    scaling = 1.0 if intercept else None
    here = LinearObjective(
        RowBlocks(X, Serial()), y, weights,
        loss=loss, l2=L2, intercept_scaling=scaling, is_free=True, fixed=fixed,
    ).at(w)  # fmt: skip
    np.testing.assert_allclose([found.value, found.gap], [here.value, here.gap], rtol=1e-10)
    np.testing.assert_allclose(found.gradient, here.gradient, atol=1e-12)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weights", [None, S])
def test_several_classes_are_certified_as_in_memory(client, intercept, weights):
    codes = np.digitize(Z, [-0.5, 0.7])
    w = 0.1 * np.sin(np.arange(3.0 * (5 + intercept)))
    rows = rows_of(codes.astype(float), weights, client)
    labels = rows.labels()
    targets = rows.codes(labels, np.ones(3))
    found = rows.point(targets, w, "logistic", L2, intercept, None, labels.weights)
    here = SoftmaxObjective(
        RowBlocks(X, Serial()), codes, weights, classes=3, l2=L2, intercept=intercept
    ).at(w)
    np.testing.assert_allclose(found.value, here.value, rtol=1e-12)
    np.testing.assert_allclose(found.gradient, here.gradient, atol=1e-12)

    # The dual objective of the model's balanced distributions.
    W = w.reshape(3, -1)
    z = X @ W[:, :5].T + (W[:, 5] if intercept else 0.0)
    q = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    s = np.ones(90) if weights is None else weights
    q = balanced(q, s, labels.weights) if intercept else q
    image = (s[:, None] * (q - np.eye(3)[codes])).T @ X / s.sum()
    dual = -float(s @ (q * np.log(q)).sum(axis=1)) / s.sum() - 0.5 / L2 * (image**2).sum()
    np.testing.assert_allclose(found.gap, here.value - dual, rtol=1e-9)
