"""Dual coordinate descent and the interior point method, against each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp

import elasticml as em
from elasticml.algorithms.linear import interior_point
from elasticml.algorithms.linear.design import Design
from elasticml.algorithms.linear.dual_descent import DualDescent, memory_rows
from elasticml.algorithms.linear.problem import Problem
from elasticml.algorithms.parallel import Serial


def rows(n: int = 200, d: int = 30, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows whose classes overlap, which are hard for coordinate descent at large C."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.7)
    return X, np.where(X[:, 0] + rng.standard_normal(n) > 0.0, 1.0, -1.0)


def bordered(X, constant):
    return X if constant is None else np.hstack([X, np.full((len(X), 1), constant)])


def objective(X, y, s, strength, constant, w):
    room = np.maximum(1.0 - y * (bordered(X, constant) @ w), 0.0)
    return float(s @ room) + 0.5 * strength * float(w @ w)


def problem(y, weights, *, loss="hinge", strength, constant=None):
    l2 = strength / float(len(y) if weights is None else weights.sum())
    of_all = {"is_free": False, "gap": 0.0, "rounds": 0, "method": "dual", "seed": 3}
    return Problem(loss=loss, l2=l2, intercept=constant, **of_all)


def descent(X, y, weights, **settings):
    return DualDescent(memory_rows(X), X.shape[1], y, weights, problem(y, weights, **settings))


@pytest.mark.parametrize("strength", [10.0, 1.0, 0.01])
@pytest.mark.parametrize("constant", [None, 2.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("layout", [np.asarray, sp.csr_matrix])
def test_the_interior_point_is_within_the_bounds_of_coordinate_descent(
    strength, constant, weighted, layout
):
    X, y = rows()
    s = np.random.default_rng(1).random(len(y)) + 0.1 if weighted else np.ones(len(y))
    settings = {"strength": strength, "constant": constant}
    weights = s if weighted else None
    method = interior_point.InteriorPoint(
        Design(layout(X), Serial()), y, weights, problem(y, weights, **settings)
    )
    fit = method.solve(1e-9 * len(y), np.zeros(bordered(X, constant).shape[1]))
    assert 0.0 <= fit.gap <= 1e-9 * len(y)
    other = descent(X, y, weights, **settings).solve(1e-6 * len(y), 20_000)
    value, high = (objective(X, y, s, strength, constant, f.w) for f in (fit, other))
    assert high - other.gap <= value * (1.0 + 1e-12)
    assert value - fit.gap <= high


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "logistic"])
def test_empty_rows_and_rows_without_weight_change_nothing(loss):
    X, y = rows(60, 8)
    s = np.ones(60)
    s[10:20] = 0.0
    X[20:25] = 0.0
    keep = np.r_[0:10, 25:60]
    fits = [
        descent(sp.csr_matrix(A), b, c, loss=loss, strength=1.0).solve(1e-9, 50_000)
        for A, b, c in ((X, y, s), (X[keep], y[keep], None))
    ]
    np.testing.assert_allclose(fits[0].w, fits[1].w, atol=1e-4)


# --- which of the two -----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_coordinate_descent_hands_over_where_many_passes_would_follow(layout, dtype):
    X, y = rows()
    X = X.astype(dtype)
    fit = em.LinearSVC(loss="hinge", C=100.0, intercept_scaling=2.0, tol=1e-8)
    fit.fit(layout(X), y)
    assert fit.method_ == "interior point"
    assert fit.dual_gap_ <= 1e-8 * 100.0 * len(y)
    easy = em.LinearSVC(loss="hinge", C=0.01, fit_intercept=False, tol=1e-3).fit(layout(X), y)
    assert easy.method_ == "dual"


def test_a_stuck_method_leaves_the_fit_to_coordinate_descent(monkeypatch):
    X, y = rows()
    monkeypatch.setattr(interior_point, "STEPS_MAX", 1)
    fit = em.LinearSVC(loss="hinge", C=10.0, fit_intercept=False, tol=1e-5, max_iter=10**6)
    assert fit.fit(X, y).method_ == "dual"
    assert fit.dual_gap_ <= 1e-5 * 10.0 * len(y)


@pytest.mark.parametrize("seed", range(4))
def test_the_interior_point_goes_on_from_far_while_the_gap_falls(seed):
    """The mean product of dual variables and multipliers hardly falls in the first ten steps."""
    X, _ = rows(2000, seed=seed)
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(len(X)) < 0.02, 1.0, -1.0)
    method = interior_point.InteriorPoint(
        Design(X, Serial()), y, None, problem(y, None, strength=0.01)
    )
    assert method.solve(1e-6 * len(y), 3.0 * rng.standard_normal(X.shape[1])).converged


@pytest.mark.parametrize("scale", [1e-4, 1e4])
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_the_interior_point_reaches_the_gap_whatever_the_weights(scale, spread):
    X, y = rows()
    s = scale * np.exp(spread * np.random.default_rng(2).standard_normal(len(y)))
    for C in (1.0, 100.0):
        method = interior_point.InteriorPoint(
            Design(X, Serial()), y, s, problem(y, s, strength=scale / C)
        )
        fit = method.solve(1e-6 * s.sum(), np.zeros(X.shape[1]))
        assert fit.gap <= 1e-6 * s.sum()
        assert objective(X, y, s, scale / C, None, fit.w) < 0.9 * s.sum()


def test_it_is_not_considered_for_wide_rows_or_weights_of_zero():
    assert interior_point.passes_of(np.ones((20, 30))) == math.inf
    assert interior_point.passes_of(sp.csr_matrix((10_000, 2_000))) == math.inf
    X, y = rows()
    weights = np.ones(len(y))
    weights[:50] = 0.0
    fit = em.LinearSVC(loss="hinge", C=10.0, fit_intercept=False, tol=1e-4, max_iter=10**6)
    assert fit.fit(X, y, weights).method_ == "dual"


def test_an_estimator_names_every_method_that_a_class_was_fitted_by():
    """Of three classes two overlap, and the third has a column of its own."""
    X, y = rows(400, 20)
    X[:, 5] = 0.0
    far = np.tile(2.0 * (np.arange(20) == 5), (100, 1))
    classes = np.concatenate([np.where(y > 0.0, 0, 1), np.full(100, 2)])
    fit = em.LinearSVC(loss="hinge", C=1e3, tol=1e-5, max_iter=10**6, random_state=0)
    assert fit.fit(np.vstack([X, far]), classes).method_ == "dual and interior point"
