"""Offsets of estimators: numbers for each row, or a column, against second implementations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.sparse as sp
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import elasticml as em
from tests.reference import Reference

ROWS = 160
RNG = np.random.default_rng(5)
X = RNG.normal(size=(ROWS, 4))
OFFSET = RNG.normal(size=ROWS)
S = RNG.uniform(0.5, 2.0, ROWS)
Z = X @ [0.5, -0.3, 0.0, 0.8] + OFFSET + 0.2
REAL = Z + RNG.standard_t(3, ROWS)
SIGNS = np.where(RNG.random(ROWS) < 1 / (1 + np.exp(-Z)), 1.0, -1.0)
COUNTS = RNG.poisson(np.exp(0.5 * Z)).astype(float)
WITH_OFFSET = np.column_stack([X[:, :2], OFFSET, X[:, 2:]])
FRAME = pd.DataFrame(WITH_OFFSET, columns=["a", "b", "exposure", "c", "d"])

REGRESSORS = {
    "ridge": em.Ridge(alpha=0.5),
    "ridge without penalty": em.Ridge(alpha=0.0),
    "positive ridge": em.Ridge(alpha=0.5, positive=True, tol=1e-12),
    "lasso": em.Lasso(alpha=0.05, tol=1e-13),
    "chosen lasso": em.LassoCV(tol=1e-12, alphas=5),
}


def minimum(loss: str, y: Any, l2: float, **given: Any) -> Reference:
    """Return the problem of a mean loss with these weights and offsets."""
    return Reference(X=X, y=y, loss=loss, weights=S, l2=l2, offset=OFFSET, **given)


def parameters(model: Any) -> Any:
    return np.append(np.ravel(model.coef_), model.intercept_)


def without_column(model: Any) -> Any:
    """Return the parameters of a model that was fitted with column 2 as its offset."""
    coef = np.ravel(model.coef_)
    assert coef[2] == 1.0
    return np.append(np.delete(coef, 2), model.intercept_)


@pytest.mark.parametrize("name", list(REGRESSORS))
def test_an_offset_of_a_regression_is_taken_from_the_targets(name: str) -> None:
    plain = clone(REGRESSORS[name]).fit(X, REAL - OFFSET, S)
    model = clone(REGRESSORS[name]).fit(X, REAL, S, offset=OFFSET)
    np.testing.assert_array_equal(parameters(model), parameters(plain))
    np.testing.assert_allclose(model.predict(X, offset=OFFSET), plain.predict(X) + OFFSET)
    named = clone(REGRESSORS[name]).fit(FRAME, REAL, S, offset="exposure")
    np.testing.assert_allclose(without_column(named), parameters(plain), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(named.predict(FRAME), model.predict(X, offset=OFFSET), atol=1e-9)
    assert named.n_features_in_ == 5
    assert named.score(FRAME, REAL) == pytest.approx(model.score(X, REAL, offset=OFFSET))


@pytest.mark.parametrize("intercept", [True, False])
def test_an_offset_of_counts_is_the_log_of_the_exposure(intercept: bool) -> None:
    settings = {"alpha": 0.05, "fit_intercept": intercept, "tol": 1e-13}
    reference = minimum("poisson", COUNTS, 0.05, has_intercept=intercept)
    model = em.PoissonRegressor(**settings).fit(X, COUNTS, S, offset=OFFSET)
    np.testing.assert_allclose(parameters(model), np.append(*reference.best), atol=1e-6)
    value = reference.objective(model.coef_, model.intercept_)
    assert value == pytest.approx(reference.least, abs=1e-10)
    z = X @ model.coef_ + model.intercept_ + OFFSET
    assert 0.0 <= model.dual_gap_ <= 1e-10
    np.testing.assert_allclose(model.predict(X, OFFSET), np.exp(z))
    named = em.PoissonRegressor(**settings).fit(sp.csr_array(WITH_OFFSET), COUNTS, S, offset=2)
    np.testing.assert_allclose(named.predict(WITH_OFFSET), np.exp(z), rtol=1e-6)


EXACT: dict[str, Any] = {"C": 0.1, "tol": 1e-12}
PENALISED = {"has_intercept": True, "constant": 1.0}
CLASSIFIERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "logistic": (em.LogisticRegression(**EXACT), "logistic", {"has_intercept": True}),
    "logistic without an intercept": (
        em.LogisticRegression(**EXACT, fit_intercept=False), "logistic", {},
    ),
    "svm": (em.LinearSVC(**EXACT), "squared_hinge", PENALISED),
    "svm by its dual": (
        em.LinearSVC(**EXACT, dual=True, max_iter=10_000, random_state=0),
        "squared_hinge", PENALISED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CLASSIFIERS))
def test_an_offset_of_a_classifier_is_added_to_its_margins(name: str) -> None:
    estimator, loss, given = CLASSIFIERS[name]
    reference = minimum(loss, SIGNS, 1.0 / (0.1 * S.sum()), **given)
    model = clone(estimator).fit(X, SIGNS, S, offset=OFFSET)
    own = parameters(model)
    np.testing.assert_allclose(own, np.append(*reference.best), atol=1e-5)
    assert 0.0 <= model.dual_gap_ <= 1e-6
    np.testing.assert_allclose(
        model.decision_function(X, offset=OFFSET), X @ own[:-1] + own[-1] + OFFSET
    )
    for rows in (FRAME, sp.csr_array(WITH_OFFSET)):
        column = "exposure" if rows is FRAME else 2
        named = clone(estimator).fit(rows, SIGNS, S, offset=column)
        # Both models are at most sqrt(2 gap) from the optimum.
        apart = np.sqrt(2.0 * model.dual_gap_) + np.sqrt(2.0 * named.dual_gap_)
        np.testing.assert_allclose(without_column(named), own, atol=max(1e-6, apart))
        np.testing.assert_array_equal(named.predict(rows), model.predict(X, OFFSET))
    assert model.score(X, SIGNS, S, OFFSET) == pytest.approx(named.score(rows, SIGNS, S))


def test_the_hinge_loss_has_a_certificate_with_an_offset() -> None:
    model = em.LinearSVC(loss="hinge", C=0.2, tol=1e-5, max_iter=20_000)
    model.fit(X, SIGNS, S, offset=OFFSET)
    rng = np.random.default_rng(0)

    def objective(v: Any) -> Any:
        margins = X @ v[:-1] + v[-1] + OFFSET
        return 0.5 * v @ v + 0.2 * S @ np.maximum(1.0 - SIGNS * margins, 0.0)

    best = objective(parameters(model))
    found = scipy.optimize.minimize(
        objective, parameters(model) + 0.01 * rng.normal(size=5), method="Powell"
    )
    assert best - model.dual_gap_ <= found.fun + 1e-12
    assert best <= found.fun + 1e-3


def test_a_saved_model_has_its_offset_as_a_column(tmp_path: Any) -> None:
    frame = FRAME.drop(columns="exposure")
    model = em.PoissonRegressor(alpha=0.1).fit(frame, COUNTS, offset=OFFSET)
    model.save(tmp_path / "model.npz")
    kept = em.load_model(tmp_path / "model.npz")
    means = model.predict(frame, OFFSET)
    np.testing.assert_allclose(kept.predict(frame.assign(offset=OFFSET)), means, rtol=1e-12)
    np.testing.assert_allclose(kept.to_sklearn().predict(frame.assign(offset=OFFSET)), means)
    with pytest.raises(Exception, match="offset"):
        kept.predict(frame)
    named = em.PoissonRegressor(alpha=0.1).fit(FRAME, COUNTS, offset="exposure")
    np.testing.assert_allclose(named.to_model().predict(FRAME), means, rtol=1e-9)


def test_a_file_names_its_offset(tmp_path: Any) -> None:
    path = str(tmp_path / "claims.csv")
    FRAME.assign(region=np.where(X[:, 0] > 0.0, "n", "s"), claims=COUNTS).to_csv(path, index=False)
    model = em.PoissonRegressor(alpha=0.1, tol=1e-10).fit(path, "claims", offset="exposure")
    assert model.coef_[2] == 1.0
    longer = FRAME.assign(region="n", exposure=OFFSET + np.log(2.0))
    shorter = longer.assign(exposure=OFFSET)
    np.testing.assert_allclose(model.predict(longer), 2.0 * model.predict(shorter))
    with pytest.raises(ValueError, match="wanted a column of X: a, b, exposure"):
        em.PoissonRegressor().fit(path, "claims", offset="exposur")


def test_offsets_that_do_not_fit_are_refused() -> None:
    model = em.Ridge().fit(X, REAL, offset=OFFSET)
    with pytest.raises(ValueError, match="was fitted with an offset, and these rows have none"):
        model.predict(X)
    with pytest.raises(ValueError, match=r"offset has shape \(3,\), wanted 160 finite numbers"):
        model.predict(X, offset=OFFSET[:3])
    with pytest.raises(ValueError, match="offset is 4, wanted the number of a column"):
        em.Ridge().fit(X, REAL, offset=4)
    with pytest.raises(ValueError, match="offset with 3 classes"):
        em.LogisticRegression().fit(X, np.arange(ROWS) % 3, offset=OFFSET)
    with pytest.raises(ValueError, match="offset with l1_ratio above 0"):
        em.LogisticRegression(l1_ratio=0.5).fit(X, SIGNS, offset=OFFSET)
    with pytest.raises(ValueError, match="offset with penalty='l1'"):
        em.LinearSVC(penalty="l1").fit(X, SIGNS, offset=OFFSET)
    assert em.Ridge().fit(X, REAL, offset=OFFSET).fit(X, REAL).predict(X).shape == (ROWS,)


def test_scikit_learns_routing_carries_offsets_through_a_search() -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        model = em.PoissonRegressor().set_fit_request(offset=True).set_score_request(offset=True)
        search = GridSearchCV(model, {"alpha": [0.01, 100.0]}, cv=3)
        search.fit(X, COUNTS, offset=OFFSET)
    assert search.best_params_ == {"alpha": 0.01}
    expected = em.PoissonRegressor(alpha=0.01).fit(X, COUNTS, offset=OFFSET)
    np.testing.assert_array_equal(search.best_estimator_.coef_, expected.coef_)


WARM = {
    "logistic": (em.LogisticRegression(C=0.1, tol=1e-10, warm_start=True), SIGNS),
    "lasso": (em.Lasso(alpha=0.05, tol=1e-10, warm_start=True), REAL),
    "poisson": (em.PoissonRegressor(alpha=0.1, tol=1e-10, warm_start=True), COUNTS),
}


@pytest.mark.parametrize("name", WARM)
def test_a_warm_start_knows_the_offset_and_refuses_other_columns(name: str) -> None:
    estimator, y = WARM[name]
    for rows, offset in ((X, None), (X, OFFSET), (FRAME, "exposure"), (WITH_OFFSET, 2)):
        model = clone(estimator).fit(rows, y, offset=offset)
        cold, steps = parameters(model), np.max(model.n_iter_)
        again = model.fit(rows, y, offset=offset)
        assert np.max(again.n_iter_) < steps
        np.testing.assert_allclose(parameters(again), cold, atol=1e-4)
    with pytest.raises(ValueError, match=r"warm_start: .* shape \(1, 5\), .* need \(1, 3\)"):
        model.fit(X[:, :3], y)
