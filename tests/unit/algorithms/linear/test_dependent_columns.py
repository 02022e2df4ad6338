"""Steps on linearly dependent columns: models must not depend on rounding."""

from __future__ import annotations

import numpy as np
import pytest

import elasticml
from elasticml.algorithms.linear.coordinate_descent_kernels import GramProblem, Penalty
from elasticml.algorithms.linear.gram_descent import SWEEPS, descend, descent_direction


def perturbed(G, seed):
    """Perturb inner products by rounding, like another order of rows or another CPU."""
    noise = np.random.default_rng(seed).standard_normal(G.shape)
    return G * (1.0 + 4.0 * np.finfo(float).eps * (noise + noise.T))


# Found by scikit-learn's check of weights against repeated rows: the models differed by about 1e-9
# with one OpenBLAS kernel, and passed with another. With more columns than rows the first step, on
# equations made solvable by 1e-11 on their diagonal, amplified rounding to 1e-6.
def test_rounding_of_inner_products_stays_rounding_of_the_model():
    rng = np.random.default_rng(42)
    X, y = rng.random((15, 30)), rng.integers(0, 3, 15).astype(float)
    X, y = X - X.mean(axis=0), y - y.mean()
    G, linear, yy = X.T @ X, X.T @ y, float(y @ y)
    penalty = Penalty(a1=1e-3 * np.abs(linear).max(), a2=0.0)

    def model(G, gap):
        w, q = np.zeros(30), linear.copy()
        steps = descend(GramProblem(G, linear, yy), penalty, gap * yy, 2000, w, q)[0]
        assert steps > SWEEPS  # A step on the equations was taken.
        return w

    for gap in (1e-3, 1e-5, 1e-9):
        expected = model(G, gap)
        for seed in range(3):
            np.testing.assert_allclose(model(perturbed(G, seed), gap), expected, atol=1e-10)


def test_a_step_reaches_the_minimum_of_a_quadratic_function():
    rng = np.random.default_rng(0)
    X, gradient = rng.standard_normal((30, 10)), rng.standard_normal(10)
    expected = -np.linalg.solve(X.T @ X, gradient)
    np.testing.assert_allclose(descent_direction(X.T @ X, gradient), expected, rtol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_scales_of_columns_do_not_make_them_dependent(scale):
    rng = np.random.default_rng(1)
    X, gradient = rng.standard_normal((30, 10)), rng.standard_normal(10)
    scales = np.where(np.arange(10) < 5, scale, 1.0)
    expected = descent_direction(X.T @ X, gradient) / scales
    result = descent_direction((X * scales).T @ (X * scales), gradient * scales)
    np.testing.assert_allclose(result, expected, rtol=1e-9)


def test_a_gradient_without_curvature_is_followed():
    rng = np.random.default_rng(2)
    X, gradient = rng.standard_normal((4, 9)), rng.standard_normal(9)
    X /= np.linalg.norm(X, axis=0)
    result = descent_direction(X.T @ X, gradient)
    np.testing.assert_allclose(X @ result, 0.0, atol=1e-12)
    expected = -(gradient - np.linalg.pinv(X) @ (X @ gradient))
    np.testing.assert_allclose(result, expected, atol=1e-12)


def test_of_many_minima_the_nearest_is_chosen():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((20, 4))
    X = np.concatenate([X, X], axis=1)
    X /= np.linalg.norm(X, axis=0)
    gradient = X.T @ rng.standard_normal(20)
    expected = -np.linalg.pinv(X.T @ X, rcond=1e-10) @ gradient
    np.testing.assert_allclose(descent_direction(X.T @ X, gradient), expected, atol=1e-12)


def dependent_columns():
    """Make columns that are sums of others, in one order of rows and in three more."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 6))
    X = np.concatenate([X, X[:, :3], X[:, :1] + X[:, 1:2]], axis=1)
    y = X @ rng.random(10) + 0.1 * rng.standard_normal(50)
    return X, y, [np.random.default_rng(seed).permutation(50) for seed in range(4)]


# At the optimum the gradient is rounding, and so is its part along flat directions. It was followed
# until the curvature of rounding ended it: coefficients of 1e16 in one order of four.
def test_rounding_is_not_followed_along_flat_directions():
    X, y, orders = dependent_columns()
    for positive in (False, True):
        results = []
        for rows in orders:
            A, b = X[rows], y[rows]
            w, q = np.zeros(10), A.T @ b
            penalty = Penalty(a1=0.0, a2=0.0, positive=positive)
            descend(GramProblem(A.T @ A, A.T @ b, float(b @ b)), penalty, 0.0, 3000, w, q)
            results.append(w)
        assert np.abs(results).max() < 10.0
        np.testing.assert_allclose(
            X @ np.transpose(results), (X @ results[0])[:, None] + np.zeros(4)
        )


@pytest.mark.filterwarnings("ignore:alpha=0")
def test_a_lasso_without_penalty_is_as_small_in_every_order_of_rows():
    X, y, orders = dependent_columns()
    models = [elasticml.Lasso(alpha=0.0).fit(X[rows], y[rows]) for rows in orders]
    np.testing.assert_allclose([m.coef_ for m in models], [models[0].coef_] * 4, atol=1e-6)


def test_three_classes_have_the_same_model_in_every_order_of_rows():
    X, y, orders = dependent_columns()
    labels = np.digitize(y, np.quantile(y, [0.3, 0.6]))
    results = [
        elasticml.LogisticRegression(l1_ratio=1.0, tol=1e-8).fit(X[rows], labels[rows]).coef_
        for rows in orders
    ]
    np.testing.assert_allclose(results, [results[0]] * 4, atol=1e-5)
