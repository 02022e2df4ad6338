"""Ridge: scikit-learn's contract and models, certified by a duality gap."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge as Theirs

import elasticml as em
from tests.unit.estimators.contract import tall


def test_each_target_has_its_own_penalty():
    X, y = tall()
    Y, alpha = np.stack([y, y * y], axis=1), [0.1, 30.0]
    ours, theirs = em.Ridge(alpha).fit(X, Y), Theirs(np.array(alpha)).fit(X, Y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-8)
    assert ours.dual_gap_.shape == (2,)
    with pytest.raises(ValueError, match="alpha has 2 values for 1 targets"):
        em.Ridge(alpha).fit(X, y)


def test_without_a_penalty_it_is_least_squares_and_has_no_certificate():
    X, y = tall()
    X = np.column_stack([X, X[:, 0]])
    ours = em.Ridge(0.0).fit(X, y)
    best = np.linalg.lstsq(X - X.mean(axis=0), y - y.mean(), rcond=None)[0]
    np.testing.assert_allclose(ours.coef_, best, atol=1e-6)
    assert math.isnan(ours.dual_gap_)


def test_positive_keeps_coefficients_from_being_negative():
    X, y = tall()
    ours = em.Ridge(2.0, positive=True, tol=1e-13).fit(X, y)
    theirs = Theirs(2.0, positive=True, tol=1e-12, max_iter=100_000).fit(X, y)
    assert np.all(ours.coef_ >= 0.0)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)


def test_fits_that_end_early_are_bounded_by_their_gap():
    X, y = tall()
    best = em.Ridge(1.0).fit(X, y)

    def objective(model):
        return ((y - model.predict(X)) ** 2).sum() + (model.coef_**2).sum()

    rough = em.Ridge(1.0, solver="newton", tol=1e-3).fit(X, y)
    assert rough.dual_gap_ <= 1e-3 * ((y - y.mean()) ** 2).sum()
    assert 0.0 <= objective(rough) - objective(best) <= rough.dual_gap_ + 1e-9


def test_a_stalled_fit_is_not_converged():
    rng = np.random.default_rng(0)
    X = 0.01 * rng.standard_normal((300, 5))
    y = 100.0 * X @ np.arange(1.0, 6.0) + rng.standard_normal(300)
    with pytest.warns(ConvergenceWarning, match="duality gap"):
        em.Ridge(1e-6, solver="newton").fit(X + 1e6, y)
    with pytest.warns(ConvergenceWarning, match="duality gap"):
        em.LogisticRegression(C=1e6).fit(X + 1e6, y > 0.0)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (em.Ridge(0.0, positive=True), "Ridge with positive=True and alpha=0"),
        (em.Lasso(0.0), "Lasso with alpha=0"),
        (em.ElasticNet(0.0), "ElasticNet with alpha=0"),
    ],
)
def test_a_model_without_a_certificate_is_fitted_here_whatever_the_client(model, what):
    X = np.random.default_rng(1).standard_normal((30, 3))
    # The client is not asked: nothing listens there.
    model.client = "tcp://127.0.0.1:1"
    with pytest.warns(UserWarning, match=f"{what}, which has no certificate, is fitted") as caught:
        model.fit(X, X @ [1.0, 2.0, 3.0])
    assert (caught[0].filename, model.solver_path_) == (__file__, "in-process")
    np.testing.assert_allclose(model.coef_, [1.0, 2.0, 3.0], atol=0.05)


@pytest.mark.parametrize("alpha", [[1.0, -1.0], [np.nan], [1.0, np.inf]])
def test_invalid_penalties_are_refused(alpha):
    X, y = tall()
    with pytest.raises(ValueError, match=r"alpha: got .*, wanted finite numbers not below 0"):
        em.Ridge(alpha).fit(X, np.stack([y, y], axis=1))


@pytest.mark.filterwarnings("error")
def test_columns_of_unequal_size_do_not_look_singular():
    """Their normal equations had a condition of 1e22, of which scipy warned."""
    sizes = np.array([1e-4, 1.0, 1e4, 1e7])
    rows = np.random.default_rng(0).standard_normal((200, 4)) * sizes
    model = em.Ridge(alpha=1e-9).fit(rows, rows @ (1.0 / sizes))
    np.testing.assert_allclose(model.coef_ * sizes, 1.0, rtol=1e-2)
