"""Newton steps in coordinates of a factored Hessian: the same minimum, and fewer products."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.linear.linear_objective import LinearObjective
from elasticml.algorithms.linear.newton import minimise
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.algorithms.parallel import Serial


def problem(loss, *, is_sparse, is_free, weighted=False):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((800, 12)) * (rng.random((800, 12)) < 0.5) * 10.0 ** -np.arange(12.0)
    y = np.where(X[:, 0] + X[:, 1] * 10 + rng.standard_normal(800) > 0.3, 1.0, -1.0)
    weights = rng.random(800) if weighted else None
    rows = RowBlocks(sp.csr_matrix(X) if is_sparse else X, Serial())
    return LinearObjective(
        rows, y, weights, loss=loss, l2=1e-6, intercept_scaling=1.5, is_free=is_free
    )


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("is_free", [False, True])
def test_the_hessian_is_the_product_with_each_unit_vector(loss, is_sparse, is_free):
    function = problem(loss, is_sparse=is_sparse, is_free=is_free, weighted=True)
    w = np.random.default_rng(0).standard_normal(function.n_model)
    point = function.at(w)
    columns = np.stack([point.product(e) for e in np.eye(function.n_model)], axis=1)
    np.testing.assert_allclose(function.hessian(w), columns, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
@pytest.mark.parametrize("is_free", [False, True])
def test_it_finds_the_same_minimum_as_scaled_coordinates(loss, is_free):
    function = problem(loss, is_sparse=True, is_free=is_free)
    zero = np.zeros(function.n_model)
    plain = minimise(function, zero, gap=1e-10, steps=300)
    factored = minimise(function, zero, gap=1e-10, steps=300, hessian=function.hessian)
    assert factored.converged
    assert factored.point.gap <= 1e-10
    assert abs(plain.point.value - factored.point.value) <= 2e-9


def test_a_hessian_that_is_not_positive_definite_leaves_scaled_coordinates():
    function = problem("squared_hinge", is_sparse=False, is_free=True)
    zero = np.zeros(function.n_model)

    def indefinite(w):
        return -np.eye(w.size)

    fit = minimise(function, zero, gap=1e-8, steps=300, hessian=indefinite)
    assert fit.point.gap <= 1e-8
