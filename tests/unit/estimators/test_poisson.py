"""Poisson regression: scikit-learn's contract and models, certified."""

from __future__ import annotations

import numpy as np
import pytest

import elasticml as em

ROWS, COLUMNS = 300, 4


def data(seed=0):
    """Make a linear target with heavy tails, counts, and weights, some of them zero."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, COLUMNS)) * [1.0, 3.0, 0.2, 1.0]
    z = 0.3 + X @ [0.5, -0.1, 1.0, 0.0]
    y = z + rng.standard_t(1.5, ROWS)
    return X, y, rng.poisson(np.exp(z)).astype(float), rng.integers(0, 4, ROWS).astype(float)


def test_an_exposure_as_weight_is_the_offset_of_a_job():
    X, _, y, _ = data()
    offset = 0.5 * np.sin(np.arange(ROWS))
    exposure = np.exp(offset)
    model = em.PoissonRegressor(alpha=0.3, tol=1e-13).fit(X, y / exposure, sample_weight=exposure)
    # The gradient of the likelihood of counts with this offset, at the model.
    error = exposure * model.predict(X) - y
    gradient = X.T @ error / exposure.sum() + 0.3 * model.coef_
    np.testing.assert_allclose(np.append(gradient, error.sum()), 0.0, atol=1e-5)


def test_counts_far_from_one_are_reached_and_negative_ones_refused():
    X, _, y, _ = data()
    model = em.PoissonRegressor(alpha=0.0, tol=1e-12).fit(X, 1e6 * y)
    assert np.mean(model.predict(X)) == pytest.approx(1e6 * y.mean(), rel=1e-6)
    with pytest.raises(ValueError, match="wanted counts, at least 0"):
        em.PoissonRegressor().fit(X, y - 1.0)
