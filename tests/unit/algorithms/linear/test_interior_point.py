"""The interior point method for the hinge loss, against a linear-quadratic program's optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml import LinearSVC
from elasticml.algorithms.linear.dual_descent import DualDescent, memory_rows
from elasticml.algorithms.linear.interior_point import InteriorPoint, passes_of
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.algorithms.parallel import Serial


def rows(n: int = 200, d: int = 30, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows whose classes overlap, which are hard for coordinate descent at large C."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.7)
    return X, np.where(X[:, 0] + rng.standard_normal(n) > 0.0, 1.0, -1.0)


def objective(X, y, s, strength, constant, w):
    A = X if constant is None else np.hstack([X, np.full((len(X), 1), constant)])
    return float(s @ np.maximum(1.0 - y * (A @ w), 0.0)) + 0.5 * strength * float(w @ w)


@pytest.mark.parametrize("strength", [10.0, 1.0, 0.01, 1e-4])
@pytest.mark.parametrize("constant", [None, 2.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("layout", [np.asarray, sp.csr_matrix])
def test_its_gap_is_certified_and_small(strength, constant, weighted, layout):
    X, y = rows()
    s = np.random.default_rng(1).random(len(y)) + 0.1 if weighted else np.ones(len(y))
    method = InteriorPoint(
        RowBlocks(layout(X), Serial()), y, s if weighted else None,
        strength=strength, constant=constant,
    )  # fmt: skip
    fit = method.solve(1e-9 * len(y), np.zeros(X.shape[1] + (constant is not None)))
    assert fit.gap <= 1e-9 * len(y)
    value = objective(X, y, s, strength, constant, fit.w)

    # A lower bound from other code: the dual of coordinate descent's best variables.
    other = DualDescent(
        memory_rows(X), X.shape[1], y, s if weighted else None,
        loss="hinge", strength=strength, constant=constant, seed=3,
    ).solve(1e-6 * len(y), 20_000)  # fmt: skip
    least = objective(X, y, s, strength, constant, other.w) - other.gap
    assert least <= value + 1e-12 * value
    assert value - fit.gap <= objective(X, y, s, strength, constant, other.w)


def test_coordinate_descent_hands_over_where_many_passes_would_follow():
    X, y = rows()
    fit = LinearSVC(loss="hinge", C=100.0, fit_intercept=False, tol=1e-8).fit(X, y)
    assert fit.method_ == "interior point"
    assert fit.dual_gap_ <= 1e-8 * 100.0 * len(y)
    easy = LinearSVC(loss="hinge", C=0.01, fit_intercept=False, tol=1e-3).fit(X, y)
    assert easy.method_ == "dual"


@pytest.mark.parametrize("layout", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_layouts_and_intercepts_have_the_same_minimum(layout, dtype):
    X, y = rows()
    X = X.astype(dtype)
    fit = LinearSVC(loss="hinge", C=100.0, intercept_scaling=2.0, tol=1e-9).fit(layout(X), y)
    assert fit.method_ == "interior point"
    w = np.append(fit.coef_[0], fit.intercept_ / 2.0)
    value = 100.0 * objective(X.astype(float), y, np.ones(len(y)), 0.01, 2.0, w)
    X64 = X.astype(np.float64)
    reference = LinearSVC(loss="hinge", C=100.0, intercept_scaling=2.0, tol=1e-9).fit(X64, y)
    assert value <= reference.dual_gap_ + fit.dual_gap_ + 100.0 * objective(
        X64, y, np.ones(len(y)), 0.01, 2.0,
        np.append(reference.coef_[0], reference.intercept_ / 2.0),
    )  # fmt: skip


def test_a_stuck_method_leaves_the_fit_to_coordinate_descent(monkeypatch):
    from elasticml.algorithms.linear import interior_point

    X, y = rows()
    monkeypatch.setattr(interior_point, "STEPS_MAX", 1)
    fit = LinearSVC(loss="hinge", C=10.0, fit_intercept=False, tol=1e-5, max_iter=10**6).fit(X, y)
    assert fit.method_ == "dual"
    assert fit.dual_gap_ <= 1e-5 * 10.0 * len(y)


def test_it_is_not_considered_for_wide_rows_or_weights_of_zero():
    assert passes_of(np.ones((20, 30))) == math.inf
    assert passes_of(sp.csr_matrix((10_000, 2_000))) == math.inf
    X, y = rows()
    weights = np.ones(len(y))
    weights[:50] = 0.0
    fit = LinearSVC(loss="hinge", C=10.0, fit_intercept=False, tol=1e-4, max_iter=10**6)
    assert fit.fit(X, y, weights).method_ == "dual"


def test_an_estimator_names_every_method_that_a_class_was_fitted_by():
    """Of three classes two overlap, and the third has a column of its own."""
    X, y = rows(400, 20)
    X[:, 5] = 0.0
    far = np.tile(2.0 * (np.arange(20) == 5), (100, 1))
    classes = np.concatenate([np.where(y > 0.0, 0, 1), np.full(100, 2)])
    fit = LinearSVC(loss="hinge", C=1e3, tol=1e-5, max_iter=10**6, random_state=0)
    fit.fit(np.vstack([X, far]), classes)
    assert fit.method_ == "dual and interior point"
