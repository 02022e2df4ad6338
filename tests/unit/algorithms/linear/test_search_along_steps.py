"""A squared hinge and a logistic loss are searched along their Newton steps, and certified."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.linear.linear_objective import LinearObjective
from elasticml.algorithms.linear.newton import minimise
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.algorithms.parallel import Serial


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


def objective(l2, weights=None, loss="squared_hinge", is_free=False, **separable_by):
    X, y = separable(**separable_by)
    rows = RowBlocks(X, Serial())
    return LinearObjective(
        rows, y, weights, loss=loss, l2=l2, intercept_scaling=1.0, is_free=is_free
    )


@pytest.mark.parametrize("l2", [1e-4, 1e-6])
@pytest.mark.parametrize("products", [0.0, np.inf], ids=["factored", "conjugate gradients"])
def test_few_steps_suffice_on_separable_rows(l2, products):
    """A trust region does not end within 2,000 steps at the smaller penalty."""
    function = objective(l2)
    fit = minimise(
        function,
        function.zero(),
        gap=1e-9,
        steps=200,
        hessian=function.hessian,
        hessian_products=products,
    )
    assert fit.converged
    assert fit.point.gap <= 1e-9


def test_the_end_of_a_search_has_no_slope_along_the_step_and_is_a_point_of_the_function():
    weights = np.random.default_rng(2).random(1500)
    function = objective(1e-5, weights)
    rng = np.random.default_rng(3)
    start = function.at(0.1 * rng.standard_normal(function.n_model))
    assert start.minimum_along is not None
    for length in (1e-3, 1.0, 1e3):
        step = -length * start.gradient
        end = start.minimum_along(step, False)
        assert end.value < start.value
        assert abs(end.gradient @ step) <= 0.06 * abs(start.gradient @ step)
        again = function.at(end.w)
        np.testing.assert_allclose(again.value, end.value, rtol=1e-12)
        np.testing.assert_allclose(again.gradient, end.gradient, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
@pytest.mark.parametrize("is_free", [False, True])
@pytest.mark.parametrize("length", [0.1, 1.0, 10.0])
def test_the_bound_at_the_end_of_a_step_is_below_the_minimum(loss, is_free, length):
    weights = np.random.default_rng(2).integers(0, 3, 1500).astype(float)
    function = objective(1e-4, weights, loss, is_free)
    least = minimise(function, function.zero(), gap=1e-10, steps=200)
    assert least.converged
    rng = np.random.default_rng(4)
    for spread in (0.0, 0.01, 1.0):
        start = function.at(least.point.w + spread * rng.standard_normal(function.n_model))
        step = np.linalg.solve(function.hessian(start.w), -length * start.gradient)
        end = start.minimum_along(step + 0.01 * spread * rng.standard_normal(step.size), True)
        assert end.value - end.gap <= least.point.value + 1e-12


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
@pytest.mark.parametrize("is_free", [False, True])
def test_a_newton_step_certifies_its_end_better_than_the_gradient_there(loss, is_free):
    function = objective(1e-7, None, loss, is_free)
    least = minimise(function, function.zero(), gap=1e-9, steps=200)
    rng = np.random.default_rng(5)
    start = function.at(least.point.w + 0.03 * rng.standard_normal(function.n_model))
    step = np.linalg.solve(function.hessian(start.w), -start.gradient)
    end = start.minimum_along(step, True)
    assert end.gap < 0.1 * function.at(end.w).gap


@pytest.mark.parametrize("is_free", [False, True])
def test_factors_of_a_sample_lead_to_the_same_minimum(is_free):
    function = objective(1e-6, None, "logistic", is_free, n_rows=4000, categories=2)
    rough = function.rough()
    assert rough is not None
    assert rough.products < function.hessian_products()
    options = {"gap": 1e-9, "steps": 100}
    plain = minimise(function, function.zero(), **options)
    factored = minimise(
        function,
        function.zero(),
        **options,
        hessian=function.hessian,
        hessian_products=function.hessian_products(),
        rough=rough,
    )
    assert plain.converged
    assert factored.converged
    assert factored.steps <= plain.steps
    assert abs(plain.point.value - factored.point.value) <= 2e-9
