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
from elasticml.estimators.rows import ArrayRows, Problem, Targets

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 5))
Z = X @ RNG.normal(size=5)
S = RNG.integers(0, 3, 90).astype(float)
TARGETS = {"logistic": np.where(Z > 0.5, 1.0, -1.0), "squared": Z + 1.0}
L2 = 0.05


@pytest.fixture(scope="module")
def client():
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as one:
        yield one


def rows_of(y, weights, client):
    parts = [None if one is None else da.from_array(one, chunks=40) for one in (y, weights)]
    return DaskRows(da.from_array(X, chunks=(40, 5)), *parts, client)


def problem(loss, intercept, fixed=None, classes=2):
    return Problem(
        loss=loss, l2=L2, intercept=1.0 if intercept else None, fixed=fixed, classes=classes,
        gap=0.0, rounds=1, method="newton",
    )  # fmt: skip


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weights", [None, S])
@pytest.mark.parametrize("fixed", [None, 2])
@pytest.mark.parametrize("loss", TARGETS)
def test_one_model_is_certified_as_in_memory(client, loss, intercept, weights, fixed):
    y, w = TARGETS[loss], 0.2 * np.arange(1.0, 6.0 + intercept)
    rows = rows_of(y, weights, client)
    w[2] = 1.0
    targets = rows.numbers()[0] if loss == "squared" else rows.against_rest(1, 1.0, 1.0)
    found = rows.point_of(problem(loss, intercept, fixed), targets)(w)
    scaling = 1.0 if intercept else None
    here = LinearObjective(
        RowBlocks(X, Serial()), y, weights,
        loss=loss, l2=L2, intercept_scaling=scaling, is_free=True, fixed=fixed,
    ).at(w)  # fmt: skip
    np.testing.assert_allclose(found.value, here.value, rtol=1e-10)
    np.testing.assert_allclose(found.gradient, here.gradient, atol=1e-12)
    if loss == "squared" or not intercept:
        np.testing.assert_allclose(found.gap, here.gap, rtol=1e-10)
        return
    np.testing.assert_allclose(found.gap, gap_of(np.stack([0.0 * w, w]), y > 0.0, weights, fixed))


def gap_of(W, codes, weights, fixed=None):
    """Return the gap of a model with intercepts and its balanced distributions."""
    codes, own = np.asarray(codes, int), slice(len(W) == 2, None)
    z = X @ W[:, :5].T + W[:, 5]
    s = np.ones(90) if weights is None else weights
    q = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    losses = -np.log(q[np.arange(90), codes])
    q = balanced(q, s, np.bincount(codes, s))
    image = (s[:, None] * (q - np.eye(len(W))[codes])).T @ X / s.sum()
    entropy = -float(s @ (q * np.log(q)).sum(axis=1)) / s.sum()
    w, image = np.array(W[own, :5]), image[own]
    if fixed is not None:
        entropy += image[0, fixed]
        w[:, fixed] = image[:, fixed] = 0.0
    primal = np.average(losses, weights=s) + 0.5 * L2 * (w**2).sum()
    return primal - entropy + 0.5 / L2 * (image**2).sum()


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weights", [None, S])
def test_several_classes_are_certified_as_in_memory(client, intercept, weights):
    codes = np.digitize(Z, [-0.5, 0.7])
    w = 0.1 * np.sin(np.arange(3.0 * (5 + intercept)))
    rows = rows_of(codes.astype(float), weights, client)
    of_three = problem("logistic", intercept, classes=3)
    found = rows.point_of(of_three, rows.codes(np.ones(3)))(w)
    here = SoftmaxObjective(
        RowBlocks(X, Serial()), codes, weights, classes=3, l2=L2, intercept=intercept
    ).at(w)
    np.testing.assert_allclose(found.value, here.value, rtol=1e-12)
    np.testing.assert_allclose(found.gradient, here.gradient, atol=1e-12)
    if intercept:
        np.testing.assert_allclose(found.gap, gap_of(w.reshape(3, -1), codes, weights), rtol=1e-9)


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
