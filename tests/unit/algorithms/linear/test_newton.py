"""Newton's method for smooth objectives: derivatives, certificates, and few steps."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.linear.design import Design
from elasticml.algorithms.linear.linear_objective import LinearObjective
from elasticml.algorithms.linear.newton import EARLY_PRODUCTS, minimise
from elasticml.algorithms.linear.problem import Problem
from elasticml.algorithms.linear.softmax_objective import SoftmaxObjective
from elasticml.algorithms.parallel import Serial

SEARCHED = ["squared_hinge", "logistic"]
of = partial(Problem, gap=0.0, rounds=0, method="newton")


def separable(n_rows=1500, categories=5, features=20):
    """One-hot rows of related features, which a linear model separates."""
    rng = np.random.default_rng(1)
    shared = rng.random((n_rows, 1))
    codes = ((0.6 * shared + 0.4 * rng.random((n_rows, features))) ** 2 * categories).astype(int)
    columns = codes + categories * np.arange(features)
    indptr = features * np.arange(n_rows + 1)
    shape = (n_rows, categories * features)
    X = sp.csr_matrix((np.ones(codes.size), columns.ravel(), indptr), shape=shape)
    margins = X @ rng.standard_normal(shape[1])
    return X, np.where(margins > np.median(margins), 1.0, -1.0)


def unequal():
    """Columns whose sizes fall from 1 to 1e-11."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((800, 12)) * (rng.random((800, 12)) < 0.5) * 10.0 ** -np.arange(12.0)
    return X, np.where(X[:, 0] + X[:, 1] * 10 + rng.standard_normal(800) > 0.3, 1.0, -1.0)


def objective(l2, data=separable, *, weights=None, loss="squared_hinge", is_free=False, **of_data):
    X, y = data(**of_data)
    if weights is not None:
        weights = weights(len(y))
    problem = of(loss=loss, l2=l2, intercept=1.5, is_free=is_free)
    return LinearObjective(Design(X, Serial()), y, weights, problem)


def of_classes(*, intercept=True, is_sparse=False):
    """Three classes, and columns of sizes from 1e-3 to 1e6."""
    rng, sizes = np.random.default_rng(3), np.array([1e-3, 1.0, 1.0, 1e3, 1e6])
    X = (rng.standard_normal((900, 5)) + np.array([0.0, 0.0, 1.0, 2.0, 3.0])) * sizes
    margins = (X / sizes) @ rng.standard_normal((5, 3))
    codes = (margins + rng.gumbel(size=margins.shape)).argmax(axis=1)
    rows = Design(sp.csr_matrix(X) if is_sparse else X, Serial())
    constant = 1.0 if intercept else None
    problem = of(loss="logistic", l2=1e-3, classes=3, intercept=constant)
    return SoftmaxObjective(rows, codes, None, problem)


def some_weights(n):
    return np.random.default_rng(2).integers(0, 3, n).astype(float)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("is_sparse", [True, False])
def test_large_columns_are_certified_in_few_steps(intercept, is_sparse):
    """A gradient of 1e-12 in a column of 1e6 left a gap of thousands: hundreds of products."""
    function = of_classes(intercept=intercept, is_sparse=is_sparse)
    found = minimise(function, function.zero(), gap=1e-8, steps=15)
    assert found.converged
    assert 0.0 <= found.gap <= 1e-8


@pytest.mark.parametrize("l2", [1e-4, 1e-6])
@pytest.mark.parametrize("products", [0.0, np.inf], ids=["factored", "conjugate gradients"])
def test_few_steps_suffice_on_separable_rows(monkeypatch, l2, products):
    """A trust region does not end within 2,000 steps at the smaller penalty."""
    function = objective(l2)
    monkeypatch.setattr(function, "_hessian_products", lambda slopes: products)
    fit = minimise(function, function.zero(), gap=1e-9, steps=200)
    assert fit.converged
    assert fit.gap <= 1e-9


@pytest.mark.parametrize("loss", SEARCHED)
@pytest.mark.parametrize("is_free", [False, True])
def test_factors_and_scaled_coordinates_find_the_same_minimum(monkeypatch, loss, is_free):
    function = objective(1e-6, unequal, loss=loss, is_free=is_free)

    def indefinite(w):
        return -np.eye(w.size)

    values = []
    for products, hessian in ((np.inf, None), (0.0, function.hessian), (0.0, indefinite)):
        monkeypatch.setattr(function, "_hessian_products", lambda slopes, cost=products: cost)
        monkeypatch.setattr(function, "hessian", hessian)
        fit = minimise(function, function.zero(), gap=1e-10, steps=300)
        assert fit.converged
        assert fit.gap <= 1e-10
        values.append(function.at(fit.w).value)
    np.testing.assert_allclose(values, values[0], atol=2e-9)


@pytest.mark.parametrize("is_free", [False, True])
def test_factors_before_the_first_step_lead_to_the_same_minimum(monkeypatch, is_free):
    function = objective(1e-6, loss="logistic", is_free=is_free, n_rows=4000, categories=2)
    assert function.at(function.zero()).hessian_products < EARLY_PRODUCTS
    factored = minimise(function, function.zero(), gap=1e-9, steps=100)
    monkeypatch.setattr(function, "_hessian_products", lambda slopes: np.inf)
    plain = minimise(function, function.zero(), gap=1e-9, steps=100)
    assert plain.converged
    assert factored.converged
    assert factored.steps <= plain.steps
    assert abs(function.at(plain.w).value - function.at(factored.w).value) <= 2e-9


@pytest.mark.parametrize("loss", SEARCHED)
@pytest.mark.parametrize("is_free", [False, True])
def test_a_step_certifies_its_end(loss, is_free):
    """The bound is below the minimum, and better than that of the gradient there."""
    function = objective(1e-4, weights=some_weights, loss=loss, is_free=is_free)
    least = minimise(function, function.zero(), gap=1e-10, steps=200)
    assert least.converged
    value, rng = function.at(least.w).value, np.random.default_rng(4)
    for length in (0.1, 1.0, 10.0):
        for spread in (0.0, 0.01, 1.0):
            start = function.at(least.w + spread * rng.standard_normal(function.n_model))
            step = np.linalg.solve(function.hessian(start.w), -length * start.gradient)
            end = start.minimum_along(step + 0.01 * spread * rng.standard_normal(step.size), True)
            assert end.value - end.gap <= value + 1e-12
    function = objective(1e-7, loss=loss, is_free=is_free)
    least = minimise(function, function.zero(), gap=1e-9, steps=200)
    start = function.at(least.w + 0.03 * rng.standard_normal(function.n_model))
    step = np.linalg.solve(function.hessian(start.w), -start.gradient)
    end = start.minimum_along(step, True)
    assert end.gap < 0.1 * function.at(end.w).gap
