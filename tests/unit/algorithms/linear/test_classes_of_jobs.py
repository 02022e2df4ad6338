"""Several classes in a job, in this process, against scikit-learn and a second implementation."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from sklearn.linear_model import LogisticRegression

from elasticml.algorithms.base import Proceed, RoundEnd
from elasticml.algorithms.local_runner import answer_locally, train_locally
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.registry import algorithm
from elasticml.errors import DataError
from elasticml.estimators.rows import chunk_rows
from elasticml.models.loading import load_model, model_of_job
from elasticml.objectives.loss_kernels import loss_named
from elasticml.objectives.multiclass import OneAgainstRest, Softmax
from elasticml.specification.algorithms import AsyncSGD, BatchGradient, CoCoA
from tests.unit.algorithms.linear import test_losses_of_jobs

ROWS, L2 = 240, 0.05
RNG = np.random.default_rng(17)
X = RNG.normal(size=(ROWS, 5)) * [1.0, 2.0, 0.5, 1.0, 0.3]
X[RNG.random(X.shape) < 0.3] = 0.0
LABELS = np.array([2.0, 3.0, 7.0, 9.0])
Y = LABELS[
    np.argmax(X @ RNG.normal(size=(5, 4)) + [0.5, 0.0, -0.5, 0.0] + RNG.gumbel(size=(ROWS, 4)), 1)
]
S = RNG.uniform(0.5, 2.0, ROWS)
WEIGHTS = {2.0: 1.5, 3.0: 1.0, 7.0: 0.5, 9.0: 2.0}
#: Sample weights times class weights.
EACH = S * np.array([WEIGHTS[label] for label in Y])


def multinomial(X: Any = X, l2: float = L2, weights: Any = EACH, **more: Any) -> Any:
    settings = {"solver": "newton-cholesky", "tol": 1e-14, "max_iter": 1000, **more}
    model = LogisticRegression(C=1.0 / (l2 * weights.sum()), **settings)
    return model.fit(X, Y, sample_weight=weights)


def objective_of(model: Any, X: Any = X, l2: float = L2, weights: Any = EACH) -> float:
    own = model.predict_log_proba(X)[np.arange(ROWS), np.searchsorted(LABELS, Y)]
    return float(-weights @ own / weights.sum() + 0.5 * l2 * (model.coef_**2).sum())


def each_against_rest(loss: str, l2: float = L2, weights: Any = EACH) -> tuple[Any, float]:
    """Minimise every class's objective without intercept; return the coefficients and the sum."""
    coefs, total = [], 0.0
    for label in LABELS:
        signs, slope = np.where(label == Y, 1.0, -1.0), np.empty(ROWS)

        def value(w: Any, signs: Any = signs, slope: Any = slope) -> Any:
            at = loss_named(loss).value_and_slope(X @ w, signs, weights, slope) / weights.sum()
            return at + 0.5 * l2 * w @ w, X.T @ slope / weights.sum() + l2 * w

        found = scipy.optimize.minimize(
            value, np.zeros(5), jac=True, method="BFGS", options={"gtol": 1e-12}
        )
        coefs.append(found.x)
        total += found.fun
    return np.array(coefs), total


def trained(settings: Any, rounds: int = 2000, rows: Any = X) -> Any:
    return test_losses_of_jobs.trained(settings, Y, rounds, rows=rows, weights=S)


@pytest.mark.parametrize("optimizer", ["lbfgs", "tron", "newton", "gd"])
@pytest.mark.parametrize("rows", [X, scipy.sparse.csr_matrix(X)], ids=["dense", "sparse"])
def test_softmax_is_scikit_learns_multinomial_model(optimizer: Any, rows: Any) -> None:
    job = BatchGradient(
        l2=L2,
        optimizer=optimizer,
        intercept=True,
        class_weight=WEIGHTS,
        tolerance=1e-10,
        scale="none",
    )
    model = trained(job, rows=rows).model
    reference = multinomial()
    np.testing.assert_allclose(model.arrays["coef"], reference.coef_, atol=1e-6)
    # Softmax does not change if all intercepts grow alike.
    moved = model.arrays["intercept"] - reference.intercept_
    np.testing.assert_allclose(moved, moved.mean(), atol=1e-6)
    assert model.objective == pytest.approx(objective_of(reference), rel=1e-8)


@pytest.mark.parametrize("scale", ["maxabs", "standard"])
def test_scaled_columns_of_several_classes(scale: Any) -> None:
    job = BatchGradient(l2=L2, intercept=True, scale=scale, class_weight=WEIGHTS, tolerance=1e-10)
    shift = X.mean(0) if scale == "standard" else 0.0
    factor = 1.0 / (X.std(0) if scale == "standard" else np.abs(X).max(0))
    reference = multinomial((X - shift) * factor)
    model = trained(job).model
    np.testing.assert_allclose(model.arrays["coef"], reference.coef_ * factor, atol=1e-6)
    margins = X @ model.arrays["coef"].T + model.arrays["intercept"]
    moved = margins - reference.decision_function((X - shift) * factor)
    np.testing.assert_allclose(moved, np.broadcast_to(moved[:, :1], moved.shape), atol=1e-6)


@pytest.mark.parametrize("loss", ["squared_hinge", "smoothed_hinge"])
@pytest.mark.parametrize("optimizer", ["lbfgs", "tron", "newton"])
def test_other_losses_train_each_class_against_the_rest(loss: Any, optimizer: Any) -> None:
    job = BatchGradient(
        loss=loss,
        l2=L2,
        optimizer=optimizer,
        class_weight=WEIGHTS,
        tolerance=1e-10,
        intercept=False,
        scale="none",
    )
    model = trained(job).model
    coef, objective = each_against_rest(loss)
    np.testing.assert_allclose(model.arrays["coef"], coef, atol=1e-6)
    assert model.objective == pytest.approx(objective, rel=1e-8)


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_cocoa_certifies_each_class_against_the_rest(loss: Any) -> None:
    job = CoCoA(
        loss=loss,
        l2=L2,
        class_weight=WEIGHTS,
        tolerance=4e-13,
        intercept=False,
        seed=1,
        scale="none",
    )
    model = trained(job).model
    coef, objective = each_against_rest(loss)
    np.testing.assert_allclose(model.arrays["coef"], coef, atol=1e-6)
    assert model.objective == pytest.approx(objective, rel=1e-8)
    assert 0.0 <= model.gap <= 4e-13
    assert model.converged
    assert model.reason == "gap <= 1e-13, in each of 4 classes"


def test_cocoa_certifies_the_hinge_of_each_class() -> None:
    job = CoCoA(
        loss="hinge", l2=L2, class_weight=WEIGHTS, scale="maxabs", intercept=True, tolerance=1e-8
    )
    model = trained(job, 5000).model
    assert 0.0 <= model.gap <= 1e-8


def test_a_warm_start_of_all_classes_is_their_optimum() -> None:
    first = trained(CoCoA(loss="squared_hinge", l2=L2, tolerance=1e-10, scale="none")).model
    again = CoCoA(loss="squared_hinge", l2=L2, tolerance=1e-6, scale="none").section()
    again["warm_start"] = {k: np.ravel(a).tolist() for k, a in first.arrays.items()}
    data = chunk_rows(X).with_labels(Y, S)
    parts = (algorithm("cocoa"), again, data.facts, data.chunks)
    done = train_locally(*parts, rounds=5, parallel=Serial())
    assert (done.rounds, done.model.converged) == (0, True)


@pytest.mark.parametrize("name", ["batch_gradient", "cocoa"])
def test_a_job_of_several_classes_resumes_in_another_process(name: str) -> None:
    section = {"name": name, "loss": "squared_hinge", "l2": L2, "tolerance": 1e-10}
    made, resumes, answer = algorithm(name), [], None
    data = chunk_rows(X).with_labels(Y, S)
    trainer, solver = made.trainer(section, data.facts, "stall"), made.solver(section, data.facts)
    whole = None
    while whole is None:
        try:
            asked = trainer.send(answer)
        except StopIteration as end:
            whole = end.value
            break
        if isinstance(asked, RoundEnd):
            resumes.append(asked.resume)
            answer = Proceed(go_on=True)
        else:
            answer = answer_locally(
                asked, 1, lambda work: solver.compute(work, data.chunks, Serial()), ROWS
            )
    # In CoCoA, some classes have converged by the last round and others have not.
    for resume in (resumes[1], resumes[-1]):
        values = json.loads(json.dumps(dict(resume.values)))
        again = replace(
            made,
            trainer=functools.partial(made.trainer, resume=replace(resume, values=values)),
        )
        fresh = chunk_rows(X).with_labels(Y, S)
        done = train_locally(
            again, section, fresh.facts, fresh.chunks, rounds=500, parallel=Serial()
        )
        assert done.model.converged
        np.testing.assert_allclose(done.model.arrays["coef"], whole.arrays["coef"], atol=1e-4)
        assert done.model.objective == pytest.approx(whole.objective, abs=1e-9)


@pytest.mark.parametrize("loss", [Softmax(), OneAgainstRest(loss_named("squared_hinge"))])
def test_derivatives_are_finite_differences(loss: Any) -> None:
    z, u = RNG.normal(size=(3, 6)), RNG.normal(size=(3, 6))
    y, s, h = np.array([0.0, 1, 2, 2, 1, 0]), RNG.uniform(0.5, 2.0, 6), 1e-6

    def value(z: Any) -> float:
        return loss.value_and_slope(z, y, s, np.empty(z.shape))

    def slope(z: Any) -> Any:
        out = np.empty(z.shape)
        loss.value_and_slope(z, y, s, out)
        return out

    numeric = (value(z + h * u) - value(z - h * u)) / (2 * h)
    assert (slope(z) * u).sum() == pytest.approx(numeric, rel=1e-7)
    values, slopes = np.zeros(2), np.zeros(2)
    loss.along(z, u, y, s, np.array([0.0, 0.5]), values, slopes)
    assert values == pytest.approx([value(z), value(z + 0.5 * u)], rel=1e-14)
    assert slopes == pytest.approx([(slope(z) * u).sum(), (slope(z + 0.5 * u) * u).sum()])
    curvatures, product = np.empty(z.shape), u.copy()
    loss.curvature(z, y, s, curvatures)
    loss.times(curvatures, s, product)
    np.testing.assert_allclose(product, (slope(z + h * u) - slope(z - h * u)) / (2 * h), atol=1e-7)
    assert loss.curvature_along(z, u, y, s) == pytest.approx((product * u).sum())
    diagonal = loss.diagonal(curvatures, s)
    for k, i in ((0, 0), (1, 3), (2, 5)):
        unit = np.zeros(z.shape)
        unit[k, i] = 1.0
        loss.times(curvatures, s, unit)
        assert unit[k, i] == pytest.approx(diagonal[k, i])
        assert unit[k, i] <= s[i] * loss.smoothness


def model_of(job: Any) -> tuple[Any, dict[str, Any]]:
    data = chunk_rows(X).with_labels(Y, S)
    arrays = dict(trained(job).model.arrays)
    return model_of_job(job.section(), data.facts, arrays), arrays


def test_a_multinomial_model_predicts_and_is_kept(tmp_path: Any) -> None:
    job = BatchGradient(l2=L2, intercept=True, class_weight=WEIGHTS, tolerance=1e-10, scale="none")
    model, _ = model_of(job)
    reference = multinomial()
    np.testing.assert_allclose(model.predict_proba(X), reference.predict_proba(X), atol=1e-6)
    np.testing.assert_array_equal(model.predict(X), reference.predict(X))
    assert model.score(X, Y) == reference.score(X, Y)
    assert model.decision_function(X).shape == (ROWS, 4)
    model.save(tmp_path / "model.npz")
    kept = load_model(tmp_path / "model.npz")
    np.testing.assert_array_equal(kept.predict_proba(X), model.predict_proba(X))
    exported = model.to_sklearn()
    np.testing.assert_allclose(exported.predict_proba(X), model.predict_proba(X), atol=1e-12)


def test_a_model_of_each_class_against_the_rest_predicts_and_is_kept(tmp_path: Any) -> None:
    model, arrays = model_of(
        CoCoA(loss="logistic", l2=L2, intercept=True, tolerance=1e-9, scale="none")
    )
    each = 1.0 / (1.0 + np.exp(-(X @ arrays["coef"].T + arrays["intercept"])))
    expected = each / each.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-14)
    np.testing.assert_array_equal(model.predict(X), LABELS[expected.argmax(axis=1)])
    model.save(tmp_path / "model.npz")
    kept = load_model(tmp_path / "model.npz")
    np.testing.assert_array_equal(kept.predict_proba(X), model.predict_proba(X))
    exported = model.to_sklearn()
    np.testing.assert_allclose(exported.predict_proba(X), expected, atol=1e-12)
    np.testing.assert_array_equal(exported.predict(X), model.predict(X))
    assert model.settings()["one_against_rest"] is True


def test_an_algorithm_of_one_model_refuses_several_classes() -> None:
    section = AsyncSGD("linear", loss="logistic", passes=1.0).section()
    facts = chunk_rows(X).with_labels(Y, S).facts
    with pytest.raises(DataError, match=r"found 4 distinct labels .*use algorithm batch_gradient"):
        algorithm("async_sgd").trainer(section, facts, "reload")
