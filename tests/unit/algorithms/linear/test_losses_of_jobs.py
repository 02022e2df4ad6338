"""Every loss of regression in a job, in this process, against a second implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize
from sklearn.linear_model import GammaRegressor, PoissonRegressor, TweedieRegressor

from elasticml.algorithms.local_runner import train_locally
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.registry import algorithm
from elasticml.errors import ConfigError, DataError
from elasticml.estimators.rows import chunk_rows
from elasticml.estimators.svm import LinearSVC
from elasticml.models.loading import load_model, model_of_job
from elasticml.specification.algorithms import BatchGradient, CoCoA

ROWS, L2 = 240, 0.05
RNG = np.random.default_rng(11)
X = RNG.normal(size=(ROWS, 5)) * [1.0, 2.0, 0.5, 1.0, 0.3]
Z = X @ [0.4, -0.2, 0.8, 0.0, 0.5]
REAL = Z + RNG.standard_t(2, ROWS)
POSITIVE = np.exp(Z) * RNG.gamma(2.0, 0.5, ROWS) + 1e-3
COUNTS = RNG.poisson(np.exp(Z)).astype(float)


def boxed(low: float, high: float, c: float) -> tuple[np.ndarray, float]:
    """Solve ``max_a mean(a y - c/2 a^2) - |X'a/n|^2 / (2 l2)`` over a box; return w and P(w)."""

    def negative(a: np.ndarray) -> tuple[float, np.ndarray]:
        image = X.T @ a / ROWS
        dual = (a @ REAL - 0.5 * c * a @ a) / ROWS - image @ image / (2 * L2)
        return -dual * ROWS, -(REAL - c * a - X @ image / L2)

    bound = [(None if np.isinf(low) else low, None if np.isinf(high) else high)] * ROWS
    options = {"maxiter": 50_000, "maxfun": 500_000, "ftol": 1e-16, "gtol": 1e-11, "maxcor": 50}
    found = scipy.optimize.minimize(
        negative, np.zeros(ROWS), jac=True, method="L-BFGS-B", bounds=bound, options=options
    )
    return X.T @ found.x / (ROWS * L2), -found.fun / ROWS


def fitted(model: Any, y: np.ndarray, **more: Any) -> tuple[np.ndarray, float]:
    settings = {"solver": "newton-cholesky", "alpha": L2, "fit_intercept": False, "tol": 1e-12}
    w = model(**settings, **more, max_iter=1000).fit(X, y).coef_
    power = {PoissonRegressor: 1.0, GammaRegressor: 2.0}.get(model, 1.5)
    from sklearn.metrics import mean_tweedie_deviance

    return w, 0.5 * mean_tweedie_deviance(y, np.exp(X @ w), power=power) + L2 / 2 * w @ w


CASES: dict[str, Any] = {
    "huber": (
        {"loss": "huber", "delta": 0.7},
        REAL,
        lambda: boxed(-0.7, 0.7, 1.0),
    ),
    "quantile": (
        {"loss": "quantile", "quantile": 0.8, "smoothing": 0.3},
        REAL,
        lambda: boxed(-0.2, 0.8, 0.3),
    ),
    "poisson": ({"loss": "poisson"}, COUNTS, lambda: fitted(PoissonRegressor, COUNTS)),
    "gamma": ({"loss": "gamma"}, POSITIVE, lambda: fitted(GammaRegressor, POSITIVE)),
    "tweedie": (
        {"loss": "tweedie", "power": 1.5},
        COUNTS,
        lambda: fitted(TweedieRegressor, COUNTS, power=1.5, link="log"),
    ),
}


def trained(
    settings: Any, y: np.ndarray, rounds: int = 300, *, rows: Any = X, weights: Any = None
) -> Any:
    """Run the rounds of a job here, over any rows."""
    data = chunk_rows(rows).with_labels(y, weights)
    section = settings.section()
    return train_locally(
        algorithm(section["name"]),
        section,
        data.facts,
        data.chunks,
        rounds=rounds,
        parallel=Serial(),
    )


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("optimizer", ["lbfgs", "tron", "newton"])
def test_batch_gradient_finds_the_second_implementations_model(name: str, optimizer: Any) -> None:
    settings, y, reference = CASES[name]
    job = BatchGradient(
        **settings, l2=L2, optimizer=optimizer, tolerance=1e-10, intercept=False, scale="none"
    )
    model = trained(job, y).model
    w, objective = reference()
    np.testing.assert_allclose(model.arrays["coef"][0], w, atol=1e-6)
    assert model.objective == pytest.approx(objective, rel=1e-8)


@pytest.mark.parametrize("name", ["huber", "quantile"])
def test_cocoa_certifies_the_second_implementations_model(name: str) -> None:
    settings, y, reference = CASES[name]
    model = trained(
        CoCoA(**settings, l2=L2, tolerance=1e-13, intercept=False, seed=1, scale="none"), y
    ).model
    w, objective = reference()
    np.testing.assert_allclose(model.arrays["coef"][0], w, atol=1e-6)
    assert model.objective == pytest.approx(objective, rel=1e-8)
    assert 0.0 <= model.gap <= 1e-12


@pytest.mark.parametrize("optimizer", ["newton", "tron"])
@pytest.mark.parametrize("scale", ["none", "standard"])
def test_scaling_keeps_the_problem_whose_penalty_is_of_raw_columns(
    scale: str, optimizer: str
) -> None:
    """Without scaled variables conjugate gradients take some hundred products on such columns."""
    y = np.sign(Z - Z.mean())
    job = BatchGradient(
        loss="squared_hinge",
        l2=1.0 / ROWS,
        optimizer=optimizer,
        intercept_scaling=2.0,
        scale=scale,
        penalise="raw",
        tolerance=1e-10,
    )
    sizes = np.array([1e2, 1.0, 1.0, 0.1, 1.0])
    model = trained(job, y, rows=X * sizes + 3.0 * sizes).model
    here = LinearSVC(tol=1e-14, intercept_scaling=2.0).fit(X * sizes + 3.0 * sizes, y)
    np.testing.assert_allclose(model.arrays["coef"], here.coef_, rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(model.arrays["intercept"], here.intercept_, rtol=1e-6)
    assert 0.0 <= model.gap <= 1e-12


def test_cocoa_certifies_the_quantile_loss_itself() -> None:
    model = trained(
        CoCoA(
            loss="quantile",
            quantile=0.8,
            l2=L2,
            tolerance=1e-9,
            intercept=False,
            seed=1,
            scale="none",
        ),
        REAL,
        5000,
    ).model
    _, objective = boxed(-0.2, 0.8, 0.0)
    assert 0.0 <= model.gap <= 1e-9
    assert model.objective == pytest.approx(objective, rel=1e-8)


def test_a_model_predicts_by_its_link_and_keeps_it(tmp_path: Any) -> None:
    settings, y, _ = CASES["poisson"]
    job = BatchGradient(**settings, l2=L2, intercept=True, tolerance=1e-8, scale="none")
    arrays = dict(trained(job, y).model.arrays)
    model = model_of_job(job.section(), None, arrays)
    model.save(tmp_path / "model.npz")
    kept = load_model(tmp_path / "model.npz")
    means = np.exp(X @ arrays["coef"][0] + arrays["intercept"][0])
    np.testing.assert_allclose(model.predict(X), means, rtol=1e-12)
    np.testing.assert_array_equal(kept.predict(X), model.predict(X))
    np.testing.assert_allclose(model.to_sklearn().predict(X), means, rtol=1e-12)
    assert model.settings() == {"loss": "poisson", "link": "log", "power": 1.0}


def test_labels_outside_of_the_losss_domain_are_refused() -> None:
    with pytest.raises(DataError, match="loss: poisson found the label -1"):
        trained(BatchGradient(loss="poisson"), COUNTS - 1.0)
    with pytest.raises(DataError, match="loss: gamma found the label 0, wanted positive"):
        trained(BatchGradient(loss="gamma"), COUNTS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BatchGradient(loss="squared", delta=1.0), "delta: belongs to loss: huber"),
        (lambda: BatchGradient(loss="quantile"), "smoothing: is missing"),
        (lambda: CoCoA(loss="huber", class_weight="balanced"), "huber has no classes"),
        (
            lambda: BatchGradient(loss="gamma", optimizer="gd", step="constant"),
            "step_size: is missing",
        ),
    ],
)
def test_settings_that_do_not_fit_the_loss_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
