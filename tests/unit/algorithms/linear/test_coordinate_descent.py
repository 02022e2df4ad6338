"""Coordinate descent on columns: cases that the estimators' tests do not reach."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.linear import gram
from elasticml.algorithms.linear.coordinate_descent_kernels import GramProblem, Penalty
from elasticml.algorithms.linear.gram_descent import descend
from elasticml.algorithms.linear.linear_objective import LinearObjective
from elasticml.algorithms.linear.newton import minimise
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.algorithms.parallel import Serial


def test_a_step_on_dependent_columns_leaves_the_warning_filters_alone(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 4))
    X = np.column_stack([X, X + 1e-9 * rng.standard_normal((50, 4))])
    y = X.sum(axis=1)
    G, linear, yy = X.T @ X, X.T @ y, float(y @ y)

    def run():
        return descend(
            GramProblem(G, linear, yy),
            Penalty(a1=0.1, a2=0.0),
            1e-12,
            200,
            np.zeros(8),
            1.0 * linear,
        )

    run()  # The compiler sets its own filters.
    entered, enter = [], warnings.catch_warnings.__enter__
    with monkeypatch.context() as patch:
        patch.setattr(
            warnings.catch_warnings, "__enter__", lambda own: entered.append(1) or enter(own)
        )
        gap = run()[1]
    assert not entered
    assert gap <= 1e-9


@pytest.mark.parametrize("n", [1, 63, 64, 1000])
def test_inner_products_by_dense_blocks_are_those_of_the_columns(monkeypatch, n: int) -> None:
    monkeypatch.setattr(gram, "BLOCK_BYTES", 1024)
    X = sp.random(n, 6, density=0.5, format="csc", random_state=n)
    X[:, [2]] = 0.0
    X.eliminate_zeros()
    arrays, dense = (X.indptr, X.indices, X.data, n), X.toarray()
    for one, other in (([0, 1, 2, 5], [0, 1, 2, 5]), ([3, 1], [5, 2, 3, 1]), ([4], [])):
        result = gram.products(*arrays, np.array(one, int), np.array(other, int))
        expected = dense[:, one].T @ dense[:, np.array(other, int)]
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-14)


def test_dense_blocks_are_used_for_full_columns_and_not_for_nearly_empty_ones() -> None:
    indptr, columns = np.array([0, 1000, 2000, 2010, 2020], np.int32), np.arange(4)
    assert gram.pays(indptr, 1000, columns[:2], columns[:2])
    assert not gram.pays(indptr, 1000, columns[2:], columns[2:])


def test_a_quadratic_function_takes_one_newton_step_of_the_requested_accuracy() -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 20)) * np.linspace(0.1, 10.0, 20)
    rows, y = RowBlocks(X, Serial()), rng.standard_normal(300)
    for expected in (1e-2, 1e-6, 1e-10):
        function = LinearObjective(
            rows, y, None, loss="squared", l2=0.1, intercept_scaling=None, is_free=False
        )
        result = minimise(function, np.zeros(20), gap=expected, steps=100)
        assert result.converged
        assert (result.steps, result.point.gap <= expected) == (1, True)
