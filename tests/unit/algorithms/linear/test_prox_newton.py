"""Proximal Newton steps on sparse columns: the minimum of the loss's quadratic model."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.linear.coordinate_descent_kernels import Penalty
from elasticml.algorithms.linear.prox_newton import (
    SparseColumns,
    measure,
    solve_quadratic_model,
)
from elasticml.algorithms.linear.row_blocks import BorderedRows, RowBlocks
from elasticml.algorithms.linear.sparse_classifier import SparseClassifier
from elasticml.algorithms.parallel import Serial

N, D = 300, 160
#: Plain steps leave a thousand times as much.
TOLERATED = 1e-3


def problem(seed=0):
    """Return columns, some of their coefficients, and the derivatives of the loss there."""
    rng = np.random.default_rng(seed)
    X = sp.random(N, D, 0.1, "csc", random_state=rng, data_rvs=rng.standard_normal)
    X.sort_indices()
    features = np.sort(rng.permutation(D)[:120])
    w = np.where(rng.random(120) < 0.2, rng.standard_normal(120), 0.0)
    return X, features, w, rng.standard_normal(N), 0.05 + rng.random(N)


def stored(X, features):
    return SparseColumns(features, X.indptr.astype(np.int32), X.indices.astype(np.int32), X.data)


def step_of(columns, w, slopes, curvature, penalty, **settings):
    settings = {"intercept": False, "goal": 1e-3, "sweeps_max": 1000} | settings
    moments = measure(columns, curvature, slopes, slopes)
    return solve_quadratic_model(columns, moments, w, slopes, curvature, penalty, **settings)


def test_moments_are_those_of_the_columns():
    X, features, _, slopes, curvature = problem(1)
    dual, A = np.random.default_rng(2).standard_normal(N), X[:, features].toarray()
    moments = measure(stored(X, features), curvature, slopes, dual)
    expected = [(A * A).T @ curvature, A.T @ curvature, A.T @ slopes, A.T @ dual]
    np.testing.assert_allclose(moments, np.stack(expected, axis=1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("a2", [0.0, 0.7])
def test_a_fine_step_leaves_no_coordinate_to_improve(intercept, a2):
    X, features, w, slopes, curvature = problem()
    penalty = Penalty(a1=2.0, a2=a2)
    step = step_of(
        stored(X, features), w, slopes, curvature, penalty, intercept=intercept, goal=TOLERATED
    )
    new = step.w
    assert step.sweeps < 1000
    A = X[:, features].toarray()
    there = slopes + curvature * (A @ (new - w) + step.rise)
    gradient = A.T @ there + a2 * new
    assert 0 < np.count_nonzero(new) < new.size
    np.testing.assert_allclose(gradient[new != 0], -2.0 * np.sign(new[new != 0]), atol=TOLERATED)
    assert np.abs(gradient[new == 0]).max() <= 2.0 + TOLERATED
    np.testing.assert_allclose(step.slopes, there, atol=1e-12)
    if intercept:
        assert abs(there.sum()) <= 1e-9 * np.abs(slopes).sum()
    else:
        assert step.rise == 0.0


def test_a_step_leaves_at_most_its_goal_of_the_subgradient():
    X, features, w, slopes, curvature = problem(3)
    A = X[:, features].toarray()

    def correlations(new):
        gradient = A.T @ (slopes + curvature * (A @ (new - w)))
        at_zero = np.maximum(np.abs(gradient) - 2.0, 0.0)
        return np.where(new != 0, np.abs(gradient + 2.0 * np.sign(new)), at_zero).sum()

    goal = 0.1 * correlations(w)
    step = step_of(
        stored(X, features), w, slopes, curvature, Penalty(a1=2.0, a2=0.0), goal=goal
    )  # fmt: skip
    assert 1 < step.sweeps < 1000
    assert correlations(step.w) <= goal


def test_sweeps_that_did_not_suffice_are_reported():
    X, features, w, slopes, curvature = problem()
    step = step_of(
        stored(X, features), w, slopes, curvature, Penalty(a1=0.0, a2=0.0), sweeps_max=3
    )  # fmt: skip
    assert step.sweeps == 3


def test_the_given_model_is_not_modified():
    X, features, w, slopes, curvature = problem()
    before = [array.copy() for array in (w, slopes, curvature, X.data)]
    step_of(
        stored(X, features), w, slopes, curvature, Penalty(a1=1.0, a2=0.0), intercept=True
    )  # fmt: skip
    for one, other in zip(before, (w, slopes, curvature, X.data), strict=True):
        assert np.array_equal(one, other)


def test_a_column_that_equals_the_intercept_is_reported():
    X, features, w, slopes, curvature = problem()
    X = sp.hstack([X, sp.csc_matrix(np.full((N, 1), 3.0))], format="csc")
    features = np.append(features, D)
    value = (stored(X, features), np.append(w, 0.0), slopes, curvature, Penalty(a1=1.0, a2=0.0))
    assert step_of(*value, intercept=True) is None
    assert step_of(*value, intercept=False) is not None


# With strong curvature, rough steps alone took 1111 steps instead of 141.
def test_steps_become_finer_where_rough_ones_gain_little():
    rng = np.random.default_rng(1)
    X = sp.random(300, 2000, 0.02, "csr", random_state=rng, data_rvs=rng.standard_normal)
    w = rng.normal(size=2000) * (rng.random(2000) < 0.1)
    unit = X / (np.sqrt(X.multiply(X).sum(0)) + 1e-30)
    y = np.where(unit @ w + 0.05 * rng.logistic(size=300) > 0.0, 1.0, -1.0)
    solver = SparseClassifier(X.tocsc(), y, None, loss="squared_hinge", intercept=False)
    result = solver.solve(Penalty(a1=0.01, a2=0.0), 3e-4, 300)
    assert result.converged


# Where only the penalty acts, sweeps alone crawl: 33 and more than 40 steps.
@pytest.mark.parametrize("intercept", [False, True])
def test_indicators_of_letters_take_few_steps(intercept):
    rng = np.random.default_rng(0)
    letters = rng.integers(0, 4, (3000, 40))
    indices = (4 * np.arange(40) + letters).ravel()
    X = sp.csr_matrix((np.ones(indices.size), indices, 40 * np.arange(3001)), shape=(3000, 160))
    margins = X @ rng.normal(size=160)
    y = np.where(margins + rng.logistic(size=3000) > np.quantile(margins, 0.97), 1.0, -1.0)
    solver = SparseClassifier(X.tocsc(), y, None, loss="logistic", intercept=intercept)
    result = solver.solve(Penalty(a1=0.01, a2=0.0), 1e-6, 24)
    assert result.converged


def tall(noise):
    """Return rows of 12 indicators and labels of a linear model."""
    rng = np.random.default_rng(2)
    indices = (5 * np.arange(12) + rng.integers(0, 5, (4000, 12))).ravel()
    values = rng.exponential(size=indices.size) + 0.1
    X = sp.csr_matrix((values, indices, 12 * np.arange(4001)), shape=(4000, 60))
    margins = X @ rng.normal(size=60)
    y = np.where(margins + noise * rng.logistic(size=4000) > np.median(margins), 1.0, -1.0)
    return X, y, rng.exponential(size=4000) * (rng.random(4000) < 0.9)


def solver_of(X, y, weights, *, intercept, by_rows):
    rows = BorderedRows(RowBlocks(X, Serial()), None) if by_rows else None
    return SparseClassifier(
        X.tocsc(), y, weights, loss="logistic", intercept=intercept, rows=rows
    )  # fmt: skip


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("a2", [0.0, 0.3])
def test_steps_on_the_rows_gram_matrix_find_the_same_minimum(intercept, weighted, a2):
    X, y, weights = tall(1.0)
    penalty = Penalty(a1=0.5, a2=a2)
    one, other = (
        solver_of(X, y, weights if weighted else None, intercept=intercept, by_rows=by_rows).solve(
            penalty, 1e-7, 300
        )
        for by_rows in (True, False)
    )
    assert one.converged
    assert other.converged
    np.testing.assert_allclose(one.w, other.w, atol=1e-5)
    np.testing.assert_allclose(one.b, other.b, atol=1e-4)


# The model's own dual variables certify the same only after some more steps.
def test_a_low_threshold_is_certified_by_the_subproblem():
    X, y, _ = tall(0.3)
    steps = []
    for by_rows in (True, False):
        solver = solver_of(X, y, None, intercept=False, by_rows=by_rows)
        result = solver.solve(Penalty(a1=1e-3, a2=0.0), 0.01 * len(y), 300)
        assert result.converged
        steps.append(result.steps)
    assert steps[0] < steps[1]
