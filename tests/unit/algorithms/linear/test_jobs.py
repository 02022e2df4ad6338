"""Linear models of jobs, in this process: every loss, optimizer and kind of target at its optimum.

The second implementation is scipy's minimum of formulas in numpy; for several classes at once,
scikit-learn's.
"""

from __future__ import annotations

import functools
import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.sparse as sp
from scipy.special import expit, xlogy
from sklearn.linear_model import LogisticRegression

import elasticml as em
from elasticml.algorithms.base import Proceed, RoundEnd
from elasticml.algorithms.local_runner import answer_locally, train_locally
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.registry import algorithm
from elasticml.data.dataset_stats import merge_summaries
from elasticml.data.readers.tabular import read_csv
from elasticml.data.source import survey_all
from elasticml.errors import ConfigError, DataError
from elasticml.estimators.rows import chunk_rows
from elasticml.models.loading import model_of_job
from elasticml.objectives.loss_kernels import loss_named
from elasticml.objectives.multiclass import OneAgainstRest, Softmax
from elasticml.specification.algorithms import AsyncSGD, BatchGradient, CoCoA, PrimalCoCoA

ROWS, L2, OFFSET = 240, 0.05, 1
RNG = np.random.default_rng(11)
X = RNG.normal(size=(ROWS, 5)) * [1.0, 2.0, 0.5, 1.0, 0.3]
S = RNG.uniform(0.5, 2.0, ROWS)
Z = X @ [0.4, -0.2, 0.8, 0.0, 0.5]
REAL = Z + RNG.standard_t(2, ROWS)
COUNTS = RNG.poisson(np.exp(Z)).astype(float)
POSITIVE = np.exp(Z) * RNG.gamma(2.0, 0.5, ROWS) + 1e-3
SIGNS = np.where(Z + RNG.logistic(size=ROWS) > 0.0, 1.0, -1.0)
LABELS = np.array([2.0, 3.0, 7.0, 9.0])
CLASSES = LABELS[np.argmax(X @ RNG.normal(size=(5, 4)) + RNG.gumbel(size=(ROWS, 4)), axis=1)]
CLASS_WEIGHTS = {2.0: 1.5, 3.0: 1.0, 7.0: 0.5, 9.0: 2.0}
#: Sample weights times class weights.
EACH = S * np.array([CLASS_WEIGHTS[label] for label in CLASSES])


def of_box(low: float, high: float, c: float) -> Any:
    """Return ``max a (y - z) - c/2 a^2`` over a box, and its slope."""

    def loss(z: Any, y: Any) -> Any:
        a = np.clip((y - z) / c, low, high)
        return a * (y - z) - 0.5 * c * a * a, -a

    return loss


def half_deviance(power: float) -> Any:
    def loss(z: Any, y: Any) -> Any:
        mean = np.exp(z)
        if power == 1.0:
            value = xlogy(y, y / mean) - y + mean
        elif power == 2.0:
            value = y / mean - np.log(y / mean) - 1.0
        else:
            own = y ** (2.0 - power) / ((1.0 - power) * (2.0 - power))
            value = own - y * mean ** (1.0 - power) / (1.0 - power)
            value = value + mean ** (2.0 - power) / (2.0 - power)
        return value, mean ** (1.0 - power) * (mean - y)

    return loss


def of_margin(formula: Any) -> Any:
    """Return a loss of the folded margin ``y z``."""

    def loss(z: Any, y: Any) -> Any:
        value, slope = formula(y * z)
        return value, y * slope

    return loss


def smoothed_hinge(m: Any) -> Any:
    room = np.maximum(1.0 - m, 0.0)
    return np.where(room > 1.0, room - 0.5, 0.5 * room**2), -np.minimum(room, 1.0)


#: Settings of a job, targets, and the loss with its slope.
CASES: dict[str, Any] = {
    "squared": ({}, REAL, lambda z, y: (0.5 * (z - y) ** 2, z - y)),
    "huber": ({"delta": 0.7}, REAL, of_box(-0.7, 0.7, 1.0)),
    "quantile": ({"quantile": 0.8, "smoothing": 0.3}, REAL, of_box(-0.2, 0.8, 0.3)),
    "poisson": ({}, COUNTS, half_deviance(1.0)),
    "gamma": ({}, POSITIVE, half_deviance(2.0)),
    "tweedie": ({"power": 1.5}, COUNTS, half_deviance(1.5)),
    "logistic": ({}, SIGNS, of_margin(lambda m: (np.logaddexp(0.0, -m), -expit(-m)))),
    "squared_hinge": (
        {},
        SIGNS,
        of_margin(lambda m: (np.maximum(1.0 - m, 0.0) ** 2, -2.0 * np.maximum(1.0 - m, 0.0))),
    ),
    "smoothed_hinge": ({}, SIGNS, of_margin(smoothed_hinge)),
}


def minimum(
    loss: str, y: Any, weights: Any, rows: Any, *, offset: Any = 0.0, free: int = 0
) -> tuple[Any, float]:
    """Return scipy's minimum; the last ``free`` columns have no penalty."""
    penalty = np.where(np.arange(rows.shape[1]) < rows.shape[1] - free, L2, 0.0)

    def value(w: Any) -> Any:
        each, slope = CASES[loss][2](rows @ w + offset, y)
        total = weights.sum()
        gradient = rows.T @ (weights * slope) / total + penalty * w
        return weights @ each / total + 0.5 * penalty @ w**2, gradient

    options = {"gtol": 1e-12, "maxiter": 5000}
    zero = np.zeros(rows.shape[1])
    found = scipy.optimize.minimize(value, zero, jac=True, method="BFGS", options=options)
    return found.x, found.fun


def trained(job: Any, y: Any, rounds: int = 2000, *, rows: Any = X, weights: Any = None) -> Any:
    """Run the rounds of a job here; return its model."""
    data = chunk_rows(rows).with_labels(y, weights)
    section = job.section()
    parts = algorithm(section["name"]), section, data.facts, data.chunks
    return train_locally(*parts, rounds=rounds, parallel=Serial()).model


# --- one model ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("optimizer", ["lbfgs", "tron", "newton"])
@pytest.mark.parametrize("with_offset", [False, True])
def test_batch_gradient_finds_scipys_model(name: str, optimizer: Any, with_offset: bool) -> None:
    """With an offset also with weights, an intercept and sparse rows."""
    settings, y, _ = CASES[name]
    more = {"intercept": with_offset, **({"offset": OFFSET} if with_offset else {})}
    job = BatchGradient(
        loss=name, **settings, l2=L2, optimizer=optimizer, tolerance=1e-10, scale="none", **more
    )
    if not with_offset:
        model = trained(job, y)
        w, objective = minimum(name, y, np.ones(ROWS), X)
    else:
        model = trained(job, y, rows=sp.csr_matrix(X), weights=S)
        rows = np.column_stack([np.delete(X, OFFSET, axis=1), np.ones(ROWS)])
        w, objective = minimum(name, y, S, rows, offset=X[:, OFFSET], free=1)
        w = np.insert(w, OFFSET, 1.0)
    found = np.append(model.arrays["coef"][0], model.arrays["intercept"] if with_offset else [])
    np.testing.assert_allclose(found, w, atol=1e-6)
    assert model.objective == pytest.approx(objective, rel=1e-8)


#: Losses that CoCoA certifies, and hinge and quantile, whose minimum has no formula here.
OF_COCOA = {
    **{name: CASES[name] for name in CASES if name not in ("poisson", "gamma", "tweedie")},
    "hinge": ({}, SIGNS, of_margin(lambda m: (np.maximum(1.0 - m, 0.0), 0.0 * m))),
    "plain quantile": ({"quantile": 0.8}, REAL, of_box(-0.2, 0.8, 1e-300)),
}


@pytest.mark.parametrize("name", OF_COCOA)
@pytest.mark.parametrize("kind", ["dense", "sparse", "indicators"])
@pytest.mark.parametrize("with_offset", [False, True])
def test_cocoa_certifies_scipys_model(name: str, kind: str, with_offset: bool) -> None:
    """The intercept is penalised as the weight of a column of ones."""
    settings, y, loss = OF_COCOA[name]
    A = {"dense": X, "sparse": np.where(X > 0.0, X, 0.0), "indicators": 1.0 * (X > 0.0)}[kind]
    more = {"offset": OFFSET} if with_offset else {}
    tolerance = 1e-8 if name in ("hinge", "plain quantile") else 1e-12
    job = CoCoA(
        loss=name.removeprefix("plain "),
        **settings,
        l2=L2,
        intercept=True,
        scale="maxabs",
        tolerance=tolerance,
        seed=1,
        **more,
    )
    rows = A if kind == "dense" else sp.csr_matrix(A)
    model = trained(job, y, 20_000, rows=rows, weights=S)
    assert 0.0 <= model.gap <= tolerance
    free = [j for j in range(5) if not (with_offset and j == OFFSET)]
    factor = 1.0 / np.abs(A).max(axis=0)[free]
    columns = np.column_stack([A[:, free] * factor, np.ones(ROWS)])
    offset = A[:, OFFSET] if with_offset else np.zeros(ROWS)
    coef, intercept = model.arrays["coef"][0], model.arrays["intercept"]
    if with_offset:
        assert coef[OFFSET] == 1.0
    w = np.append(coef[free] / factor, intercept)

    def objective(w: Any) -> float:
        return float(S @ loss(columns @ w + offset, y)[0] / S.sum() + 0.5 * L2 * w @ w)

    assert model.objective == pytest.approx(objective(w), rel=1e-12)
    if name in CASES:
        best, least = minimum(name, y, S, columns, offset=offset)
        np.testing.assert_allclose(w, best, atol=1e-5)
        assert model.objective == pytest.approx(least, rel=1e-8)
        return
    found = scipy.optimize.minimize(objective, w + 0.01, method="Powell", options={"xtol": 1e-9})
    assert objective(w) - model.gap <= found.fun + 1e-12
    assert objective(w) <= found.fun + 1e-4


@pytest.mark.parametrize("optimizer", ["newton", "tron"])
@pytest.mark.parametrize("scale", ["none", "standard"])
def test_scaling_keeps_the_problem_whose_penalty_is_of_raw_columns(
    scale: str, optimizer: str
) -> None:
    """Without scaled variables conjugate gradients take some hundred products on such columns."""
    job = BatchGradient(
        loss="squared_hinge",
        l2=1.0 / ROWS,
        optimizer=optimizer,
        intercept_scaling=2.0,
        scale=scale,
        penalise="raw",
        tolerance=1e-10,
    )
    rows = (X + 3.0) * [1e2, 1.0, 1.0, 0.1, 1.0]
    model = trained(job, SIGNS, 300, rows=rows)
    here = em.LinearSVC(tol=1e-14, intercept_scaling=2.0).fit(rows, SIGNS)
    np.testing.assert_allclose(model.arrays["coef"], here.coef_, rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(model.arrays["intercept"], here.intercept_, rtol=1e-6)
    assert 0.0 <= model.gap <= 1e-12


def test_a_scaled_job_leaves_its_offset_as_it_is() -> None:
    job = BatchGradient(
        loss="poisson", l2=L2, intercept=True, offset=OFFSET, scale="standard", tolerance=1e-10
    )
    model = trained(job, COUNTS, weights=S)
    free = np.delete(X, OFFSET, axis=1)
    factor = 1.0 / free.std(0)
    rows = np.column_stack([(free - free.mean(0)) * factor, np.ones(ROWS)])
    w, objective = minimum("poisson", COUNTS, S, rows, offset=X[:, OFFSET], free=1)
    np.testing.assert_allclose(
        model.arrays["coef"][0], np.insert(w[:4] * factor, OFFSET, 1.0), atol=1e-6
    )
    assert model.objective == pytest.approx(objective, rel=1e-8)


def test_the_gap_of_a_job_of_counts_holds_with_an_offset() -> None:
    job = BatchGradient(loss="poisson", l2=L2, offset=OFFSET, tolerance=1e-10, scale="none")
    rows = np.column_stack([np.delete(X, OFFSET, axis=1), np.ones(ROWS)])
    least = minimum("poisson", COUNTS, S, rows, offset=X[:, OFFSET], free=1)[1]
    for rounds in range(1, 12):
        model = trained(job, COUNTS, rounds, weights=S)
        assert model.objective - least <= model.gap + 1e-12
    assert model.gap <= 1e-3


# --- several classes ----------------------------------------------------------------------------


def multinomial(rows: Any = X, **more: Any) -> tuple[Any, float]:
    """Return scikit-learn's model of all classes, and its objective."""
    settings = {"solver": "newton-cholesky", "tol": 1e-14, "max_iter": 1000, **more}
    model = LogisticRegression(C=1.0 / (L2 * EACH.sum()), **settings)
    model.fit(rows, CLASSES, sample_weight=EACH)
    own = model.predict_log_proba(rows)[np.arange(ROWS), np.searchsorted(LABELS, CLASSES)]
    return model, float(-EACH @ own / EACH.sum() + 0.5 * L2 * (model.coef_**2).sum())


def each_against_rest(loss: str) -> tuple[Any, float]:
    """Return every class's coefficients without intercept, and the sum of their objectives."""
    found = [minimum(loss, np.where(label == CLASSES, 1.0, -1.0), EACH, X) for label in LABELS]
    return np.array([w for w, _ in found]), sum(value for _, value in found)


OF_CLASSES: dict[str, Any] = {"l2": L2, "class_weight": CLASS_WEIGHTS}


@pytest.mark.parametrize(
    ("optimizer", "scale"),
    [
        ("gd", "none"),
        *itertools.product(("lbfgs", "tron", "newton"), ("none", "maxabs", "standard")),
    ],
)
def test_softmax_is_scikit_learns_multinomial_model(optimizer: Any, scale: Any) -> None:
    job = BatchGradient(
        **OF_CLASSES, optimizer=optimizer, intercept=True, tolerance=1e-10, scale=scale
    )
    rows = sp.csr_matrix(X) if optimizer == "newton" else X
    model = trained(job, CLASSES, rows=rows, weights=S)
    shift = X.mean(0) if scale == "standard" else 0.0
    factor = {"none": 1.0, "maxabs": 1.0 / np.abs(X).max(0), "standard": 1.0 / X.std(0)}[scale]
    reference, objective = multinomial((X - shift) * factor)
    np.testing.assert_allclose(model.arrays["coef"], reference.coef_ * factor, atol=1e-6)
    # Softmax does not change if all margins grow alike.
    margins = X @ model.arrays["coef"].T + model.arrays["intercept"]
    moved = margins - reference.decision_function((X - shift) * factor)
    np.testing.assert_allclose(moved, np.broadcast_to(moved[:, :1], moved.shape), atol=1e-6)
    assert model.objective == pytest.approx(objective, rel=1e-8)


@pytest.mark.parametrize(
    "job",
    [
        *(
            BatchGradient(
                **OF_CLASSES,
                loss=loss,
                optimizer=optimizer,
                intercept=False,
                scale="none",
                tolerance=1e-10,
            )
            for loss in ("squared_hinge", "smoothed_hinge")
            for optimizer in ("lbfgs", "tron", "newton")
        ),
        *(
            CoCoA(**OF_CLASSES, loss=loss, intercept=False, scale="none", tolerance=4e-13, seed=1)
            for loss in ("logistic", "squared_hinge")
        ),
    ],
    ids=lambda job: f"{job.name} {job.loss} {getattr(job, 'optimizer', '')}",
)
def test_other_losses_train_each_class_against_the_rest(job: Any) -> None:
    model = trained(job, CLASSES, weights=S)
    coef, objective = each_against_rest(job.loss)
    np.testing.assert_allclose(model.arrays["coef"], coef, atol=1e-6)
    assert model.objective == pytest.approx(objective, rel=1e-8)
    if job.name == "cocoa":
        assert 0.0 <= model.gap <= 4e-13
        assert model.reason == "gap <= 1e-13, in each of 4 classes"


def test_a_warm_start_of_all_classes_is_their_optimum() -> None:
    job = CoCoA(loss="squared_hinge", l2=L2, tolerance=1e-10, scale="none")
    first = trained(job, CLASSES, weights=S)
    section = job.section() | {"tolerance": 1e-6}
    section["warm_start"] = {k: np.ravel(a).tolist() for k, a in first.arrays.items()}
    data = chunk_rows(X).with_labels(CLASSES, S)
    parts = (algorithm("cocoa"), section, data.facts, data.chunks)
    done = train_locally(*parts, rounds=5, parallel=Serial())
    assert (done.rounds, done.model.converged) == (0, True)


def test_cocoa_starts_from_a_model_with_an_offset() -> None:
    made = {"loss": "squared", "l2": L2, "offset": OFFSET, "scale": "standard"}
    first = trained(CoCoA(**made, tolerance=1e-12), REAL)
    section = CoCoA(**made, tolerance=1e-10).section()
    section["warm_start"] = {k: np.ravel(a).tolist() for k, a in first.arrays.items()}
    data = chunk_rows(X).with_labels(REAL, None)
    parts = (algorithm("cocoa"), section, data.facts, data.chunks)
    again = train_locally(*parts, rounds=1, parallel=Serial()).model
    assert again.gap <= 1e-10
    np.testing.assert_allclose(again.arrays["coef"], first.arrays["coef"], atol=1e-5)


@pytest.mark.parametrize("name", ["batch_gradient", "cocoa"])
def test_a_job_of_several_classes_resumes_in_another_process(name: str) -> None:
    section = {"name": name, "loss": "squared_hinge", "l2": L2, "tolerance": 1e-10}
    made, resumes, answer = algorithm(name), [], None
    data = chunk_rows(X).with_labels(CLASSES, S)
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
            made, trainer=functools.partial(made.trainer, resume=replace(resume, values=values))
        )
        fresh = chunk_rows(X).with_labels(CLASSES, S)
        parts = (again, section, fresh.facts, fresh.chunks)
        model = train_locally(*parts, rounds=500, parallel=Serial()).model
        assert model.converged
        np.testing.assert_allclose(model.arrays["coef"], whole.arrays["coef"], atol=1e-4)
        assert model.objective == pytest.approx(whole.objective, abs=1e-9)


@pytest.mark.parametrize("loss", [Softmax(), OneAgainstRest(loss_named("squared_hinge"))])
def test_derivatives_of_several_margins_are_finite_differences(loss: Any) -> None:
    z, u = RNG.normal(size=(3, 6)), RNG.normal(size=(3, 6))
    y, s, h = np.array([0.0, 1, 2, 2, 1, 0]), RNG.uniform(0.5, 2.0, 6), 1e-6

    def at(z: Any) -> tuple[float, Any]:
        out = np.empty(z.shape)
        return loss.value_and_slope(z, y, s, out), out

    numeric = (at(z + h * u)[0] - at(z - h * u)[0]) / (2 * h)
    assert (at(z)[1] * u).sum() == pytest.approx(numeric, rel=1e-7)
    values, slopes = np.zeros(2), np.zeros(2)
    loss.along(z, u, y, s, np.array([0.0, 0.5]), values, slopes)
    assert values == pytest.approx([at(z)[0], at(z + 0.5 * u)[0]], rel=1e-14)
    assert slopes == pytest.approx([(at(z)[1] * u).sum(), (at(z + 0.5 * u)[1] * u).sum()])
    curvatures, product = np.empty(z.shape), u.copy()
    loss.curvature(z, y, s, curvatures)
    loss.times(curvatures, s, product)
    expected = (at(z + h * u)[1] - at(z - h * u)[1]) / (2 * h)
    np.testing.assert_allclose(product, expected, atol=1e-7)
    assert loss.curvature_along(z, u, y, s) == pytest.approx((product * u).sum())
    diagonal = loss.diagonal(curvatures, s)
    for k, i in ((0, 0), (1, 3), (2, 5)):
        unit = np.zeros(z.shape)
        unit[k, i] = 1.0
        loss.times(curvatures, s, unit)
        assert unit[k, i] == pytest.approx(diagonal[k, i])
        assert unit[k, i] <= s[i] * loss.smoothness


# --- what a user gets ---------------------------------------------------------------------------


def kept_and_exported(job: Any, y: Any, path: Any) -> tuple[Any, ...]:
    """Return the model of a job, the same loaded from a file, scikit-learn's, and its arrays."""
    data = chunk_rows(X).with_labels(y, S)
    arrays = dict(trained(job, y, weights=S).arrays)
    model = model_of_job(job.section(), data.facts, arrays)
    model.save(path / "model.npz")
    return model, em.load_model(path / "model.npz"), model.to_sklearn(), arrays


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_a_model_of_several_classes_predicts_and_is_kept(loss: str, tmp_path: Any) -> None:
    settings: Any = {"l2": L2, "intercept": True, "tolerance": 1e-9, "scale": "none"}
    job: Any = CoCoA(loss="logistic", **settings)
    if loss == "softmax":
        job = BatchGradient(**settings, class_weight=CLASS_WEIGHTS)
    model, kept, exported, arrays = kept_and_exported(job, CLASSES, tmp_path)
    margins = X @ arrays["coef"].T + arrays["intercept"]
    each = np.exp(margins) if loss == "softmax" else expit(margins)
    expected = each / each.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.decision_function(X), margins, atol=1e-12)
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-14)
    np.testing.assert_array_equal(model.predict(X), LABELS[expected.argmax(axis=1)])
    assert model.score(X, CLASSES) == np.mean(model.predict(X) == CLASSES)
    np.testing.assert_array_equal(kept.predict_proba(X), model.predict_proba(X))
    np.testing.assert_allclose(exported.predict_proba(X), expected, atol=1e-12)
    np.testing.assert_array_equal(exported.predict(X), model.predict(X))
    assert model.settings().get("one_against_rest", False) is (loss != "softmax")


def test_a_model_predicts_by_its_link_and_keeps_it(tmp_path: Any) -> None:
    job = BatchGradient(loss="poisson", l2=L2, intercept=True, tolerance=1e-8, scale="none")
    model, kept, exported, arrays = kept_and_exported(job, COUNTS, tmp_path)
    means = np.exp(X @ arrays["coef"][0] + arrays["intercept"][0])
    np.testing.assert_allclose(model.predict(X), means, rtol=1e-12)
    np.testing.assert_array_equal(kept.predict(X), model.predict(X))
    np.testing.assert_allclose(exported.predict(X), means, rtol=1e-12)
    assert model.settings() == {"loss": "poisson", "link": "log", "power": 1.0}


def test_a_tables_offset_is_named_and_needed_for_predictions(tmp_path: Any) -> None:
    table = pd.DataFrame(X, columns=["a", "exposure", "b", "c", "d"])
    table["region"], table["claims"] = np.where(X[:, 0] > 0.0, "north", "south"), COUNTS
    table.to_csv(tmp_path / "claims.csv", index=False)
    source = survey_all(read_csv(str(tmp_path / "claims.csv"), "claims"))
    facts = merge_summaries([source.read(b.index, None, 1)[1] for b in source.blocks()])
    job = BatchGradient(
        loss="poisson", offset="exposure", intercept=True, tolerance=1e-8, scale="none"
    )
    chunks = [c for b in source.blocks() for c in source.read(b.index, None, 1)[0]]
    made = (algorithm("batch_gradient"), job.section(), facts, chunks)
    arrays = train_locally(*made, rounds=300, parallel=Serial()).model.arrays
    model = model_of_job(job.section(), facts, arrays)
    assert model.coef_[0, OFFSET] == 1.0
    longer = table.assign(exposure=table["exposure"] + np.log(2.0))
    np.testing.assert_allclose(model.predict(longer), 2.0 * model.predict(table), rtol=1e-12)
    with pytest.raises(Exception, match="exposure"):
        model.predict(table.drop(columns="exposure"))
    with pytest.raises(ConfigError, match="offset is 'region', a column of kind category"):
        algorithm("batch_gradient").trainer({"loss": "poisson", "offset": "region"}, facts, "auto")


# --- refused ------------------------------------------------------------------------------------


def begin(name: str, y: Any, absent: str = "auto", **settings: Any) -> None:
    facts = chunk_rows(X).with_labels(y, S).facts
    algorithm(name).trainer(settings, facts, absent)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: trained(BatchGradient(loss="poisson"), COUNTS - 1.0),
            DataError,
            "loss: poisson found the label -1",
        ),
        (
            lambda: trained(BatchGradient(loss="gamma"), COUNTS),
            DataError,
            "loss: gamma found the label 0, wanted positive",
        ),
        (
            lambda: begin(
                "async_sgd", CLASSES, "reload", problem="linear", loss="logistic", passes=1.0
            ),
            DataError,
            r"found 4 distinct labels .*use algorithm batch_gradient",
        ),
        (
            lambda: BatchGradient(loss="squared", delta=1.0),
            ConfigError,
            "delta: belongs to loss: huber",
        ),
        (lambda: BatchGradient(loss="quantile"), ConfigError, "smoothing: is missing"),
        (
            lambda: CoCoA(loss="huber", class_weight="balanced"),
            ConfigError,
            "huber has no classes",
        ),
        (
            lambda: BatchGradient(loss="gamma", optimizer="gd", step="constant"),
            ConfigError,
            "step_size: is missing",
        ),
        (
            lambda: begin("cocoa", REAL, "freeze", loss="squared", offset=1),
            ConfigError,
            r"'freeze' with algorithm\.offset",
        ),
        (
            lambda: CoCoA(loss="squared", offset=1, device="cuda"),
            ConfigError,
            "cuda has no kernels for an offset",
        ),
        (lambda: PrimalCoCoA(offset=1), ConfigError, "no member has whole rows"),
        (lambda: AsyncSGD(k=2, offset=1), ConfigError, "belongs to problem: linear"),
        (
            lambda: begin("batch_gradient", REAL, loss="squared", offset=5),
            ConfigError,
            "wanted a number below 5",
        ),
        (
            lambda: begin("batch_gradient", REAL, loss="squared", offset="exposure"),
            ConfigError,
            "the data have none",
        ),
        (
            lambda: begin("batch_gradient", CLASSES, loss="logistic", offset=1),
            ConfigError,
            "wanted none with more than two classes",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make()
