"""Dual coordinate descent in one thread, against LIBLINEAR and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
from sklearn.svm import LinearSVC

from elasticml.algorithms.linear.dual_descent import DualDescent, memory_rows

LOSSES = ("hinge", "squared_hinge", "logistic")


def rows(n: int = 200, d: int = 30, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.4)
    return X, np.where(X[:, 0] + X[:, 1] + 0.5 * rng.standard_normal(n) > 0.2, 1.0, -1.0)


def losses_of(loss: str, m: np.ndarray) -> np.ndarray:
    if loss == "logistic":
        return np.logaddexp(0.0, -m)
    room = np.maximum(1.0 - m, 0.0)
    return room if loss == "hinge" else room * room


def objective(loss, X, y, s, strength, constant, w):
    A = X if constant is None else np.hstack([X, np.full((len(X), 1), constant)])
    return float(s @ losses_of(loss, y * (A @ w))) + 0.5 * strength * float(w @ w)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("strength", [10.0, 1.0])
@pytest.mark.parametrize("constant", [None, 2.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_its_gap_bounds_the_distance_to_an_independent_minimum(loss, strength, constant, weighted):
    X, y = rows()
    s = np.random.default_rng(1).random(len(y)) * 2.0 if weighted else np.ones(len(y))
    fit = DualDescent(
        memory_rows(X), X.shape[1], y, s if weighted else None,
        loss=loss, strength=strength, constant=constant, seed=3,
    ).solve(1e-7 * len(y), 20_000)  # fmt: skip
    assert fit.converged
    value = objective(loss, X, y, s, strength, constant, fit.w)

    if loss == "hinge":
        A = X if constant is None else np.hstack([X, np.full((len(X), 1), constant)])
        other = LinearSVC(
            loss="hinge", C=1.0 / strength, fit_intercept=False, tol=1e-10, max_iter=200_000
        )
        least = objective(
            loss, X, y, s, strength, constant, other.fit(A, y, sample_weight=s).coef_[0]
        )
    else:
        least = scipy.optimize.minimize(
            lambda w: objective(loss, X, y, s, strength, constant, w),
            np.zeros(fit.w.size),
            method="L-BFGS-B",
            options={"maxiter": 10_000, "maxfun": 10**6, "ftol": 1e-15, "gtol": 1e-9},
        ).fun
    assert value - fit.gap <= least * (1.0 + 1e-9)
    assert value <= least + fit.gap + 1e-6 * least


@pytest.mark.parametrize("loss", LOSSES)
def test_dense_sparse_and_single_precision_rows_have_the_same_minimum(loss):
    X, y = rows()
    X = X.astype(np.float32)
    values = []
    for A in (X, sp.csr_matrix(X), sp.csr_matrix(X.astype(np.float64)), X.astype(np.float64)):
        solver = DualDescent(
            memory_rows(A), X.shape[1], y, None, loss=loss, strength=1.0, constant=1.0, seed=3
        )
        fit = solver.solve(1e-8 * len(y), 20_000)
        assert fit.converged
        values.append(objective(loss, X.astype(np.float64), y, np.ones(len(y)), 1.0, 1.0, fit.w))
    np.testing.assert_allclose(values, values[0], rtol=2e-8)


def test_a_gap_that_is_not_reached_is_reported_with_a_valid_certificate():
    X, y = rows()
    solver = DualDescent(
        memory_rows(X), X.shape[1], y, None, loss="hinge", strength=0.1, constant=None, seed=0
    )
    fit = solver.solve(1e-12, 3)
    assert not fit.converged
    assert fit.passes == 3
    value = objective("hinge", X, y, np.ones(len(y)), 0.1, None, fit.w)
    exact = DualDescent(
        memory_rows(X), X.shape[1], y, None, loss="hinge", strength=0.1, constant=None, seed=1
    ).solve(1e-3, 20_000)
    least = objective("hinge", X, y, np.ones(len(y)), 0.1, None, exact.w) - exact.gap
    assert value - fit.gap <= least + exact.gap


@pytest.mark.parametrize("loss", LOSSES)
def test_empty_rows_and_rows_without_weight_change_nothing(loss):
    X, y = rows(60, 8)
    s = np.ones(60)
    s[10:20] = 0.0
    X[20:25] = 0.0
    keep = np.r_[0:10, 25:60]
    fits = [
        DualDescent(
            memory_rows(sp.csr_matrix(A)), 8, b, c, loss=loss, strength=1.0, constant=None, seed=0
        ).solve(1e-9, 50_000)
        for A, b, c in ((X, y, s), (X[keep], y[keep], None))
    ]
    np.testing.assert_allclose(fits[0].w, fits[1].w, atol=1e-4)


# The hinge's margins oscillate around its kink: with the model before the last pass alone in place
# of a mean it took 350 passes.
def test_a_mean_of_former_models_certifies_noisy_rows_earlier():
    passes = 0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(2000, 20))
        y = np.where(X @ rng.normal(size=20) + 3.0 * rng.normal(size=2000) > 0.0, 1.0, -1.0)
        solver = DualDescent(
            memory_rows(X), 20, y, None, loss="hinge", strength=1.0, constant=None, seed=3
        )
        passes += solver.solve(1e-3 * 2000, 1000).passes
    assert passes <= 320
