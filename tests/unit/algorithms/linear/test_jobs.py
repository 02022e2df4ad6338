"""Linear models of jobs: every algorithm, loss, orientation and kind of target at its optimum.

The second implementation is that of ``tests/reference.py``; for several classes at once,
scikit-learn's.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

import elasticml as em
from elasticml.algorithms.local_runner import train_locally
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
from tests.log_cosh import LOG_COSH
from tests.property.schedules import moves
from tests.reference import SETTINGS, Reference, split_columns
from tests.serial_world import World, split_rows

ROWS, L2, OFFSET = 240, 0.05, 1
RNG = np.random.default_rng(11)
X = RNG.normal(size=(ROWS, 5)) * [1.0, 2.0, 0.5, 1.0, 0.3]
S = RNG.uniform(0.5, 2.0, ROWS)
Z = X @ [0.4, -0.2, 0.8, 0.0, 0.5]
REAL = Z + RNG.standard_t(2, ROWS)
COUNTS = RNG.poisson(np.exp(Z)).astype(float)
SIGNS = np.where(Z + RNG.logistic(size=ROWS) > 0.0, 1.0, -1.0)
LABELS = np.array([2.0, 3.0, 7.0, 9.0])
CLASSES = LABELS[np.argmax(X @ RNG.normal(size=(5, 4)) + RNG.gumbel(size=(ROWS, 4)), axis=1)]
CLASS_WEIGHTS = {2.0: 1.5, 3.0: 1.0, 7.0: 0.5, 9.0: 2.0}
#: Sample weights times class weights.
EACH = S * np.array([CLASS_WEIGHTS[label] for label in CLASSES])
TARGETS: dict[str, Any] = {
    **dict.fromkeys(("squared", "huber", "quantile", LOG_COSH), REAL),
    **dict.fromkeys(("poisson", "tweedie"), COUNTS),
    "gamma": np.exp(Z) * RNG.gamma(2.0, 0.5, ROWS) + 1e-3,
    **dict.fromkeys(("logistic", "hinge", "squared_hinge", "smoothed_hinge"), SIGNS),
}
#: Rows that are dense, sparse, indicators, and ten times as many columns as the model needs.
KINDS: dict[str, Any] = {
    "dense": X,
    "sparse": sp.csr_array(np.where(X > 0.0, X, 0.0)),
    "indicators": sp.csr_array(1.0 * (X > 0.0)),
    "wide": np.hstack([X, RNG.normal(size=(ROWS, 45)) * RNG.uniform(0.2, 4.0, 45)]),
}


def trained(job: Any, y: Any, rounds: int = 2000, *, rows: Any = X, weights: Any = None) -> Any:
    """Run the rounds of a job here; return its model."""
    data = chunk_rows(rows).with_labels(y, weights)
    section = job.section()
    parts = algorithm(section["name"]), section, data.facts, data.chunks
    return train_locally(*parts, rounds=rounds, parallel=Serial()).model


# --- one model ----------------------------------------------------------------------------------

GRADIENTS = ("gd", "lbfgs", "tron", "newton")
ROUNDS_MAX = {"gd": 60, "lbfgs": 40, "tron": 15, "newton": 12}
DUAL = [loss for loss in TARGETS if loss not in ("poisson", "gamma", "tweedie")]
#: Algorithm, loss, kind of rows, and what else the job has.
JOBS: list[tuple[str, str, str, dict[str, Any]]] = [
    *(
        ("batch_gradient", loss, kind, {"optimizer": optimizer, **more})
        for loss in TARGETS
        if loss not in ("hinge", LOG_COSH)
        for optimizer in GRADIENTS[1:]
        for kind, more in (
            ("dense", {}),
            ("sparse", {"weights": S, "intercept": True, "offset": OFFSET}),
        )
    ),
    *(
        ("batch_gradient", "logistic", "wide", {"optimizer": optimizer, **more})
        for optimizer in GRADIENTS
        for more in (
            {"scale": "standard", "intercept": True, "weights": S},
            {"scale": "maxabs", "l2": 0.2},
            {"scale": "auto", "l2": 0.2},
        )
    ),
    *(
        ("cocoa", loss, kind, {"weights": S, "intercept": True, "scale": "maxabs", **more})
        for loss in DUAL
        for kind, more in (
            ("dense", {} if loss == "hinge" else {"offset": OFFSET}),
            ("sparse", {"intercept_scaling": 2.0}),
            ("indicators", {"intercept": False, "scale": "none", "weights": None}),
        )
    ),
    ("cocoa", "logistic", "wide", {"scale": "standard", "intercept": True}),
    # The penalty of raw columns has certificates in every round.
    *(
        ("batch_gradient", "logistic", "dense", {"intercept": True, "penalise": "raw", **more})
        for more in (
            {"scale": "standard", "weights": S},
            {"scale": "standard", "weights": S, "offset": OFFSET},
        )
    ),
    *(
        ("batch_gradient", loss, "dense", {"intercept": True, "penalise": "raw", **more})
        for loss in ("squared", "huber", "quantile", LOG_COSH, "squared_hinge", "smoothed_hinge")
        for more in ({"weights": S}, {"scale": "standard", "offset": OFFSET})
    ),
    (
        "batch_gradient",
        "poisson",
        "dense",
        {"scale": "standard", "intercept": True, "offset": OFFSET, "weights": S},
    ),
    *(
        ("primal_cocoa", loss, kind, {"l1": l1 * scale, "l2": l2 * scale, **more})
        for loss, scale in (("squared", 1.0), ("logistic", 0.3), (LOG_COSH, 0.3))
        for kind, l1, l2 in (("wide", 0.1, 0.0), ("wide", 0.05, 0.3), ("indicators", 0.02, 0.0))
        for more in (
            {"gather": False, "intercept": True},
            {"weights": S},
            {"intercept": True, "weights": S},
        )
    ),
    *(("primal_cocoa", "squared_hinge", "wide", {"l1": 0.05, "gather": g}) for g in (True, False)),
    ("batch_gradient", "logistic", "dense", {"class_weight": "balanced", "weights": S}),
    ("cocoa", "logistic", "dense", {"class_weight": {-1.0: 0.5, 1.0: 2.0}, "weights": S}),
    ("primal_cocoa", "logistic", "wide", {"l1": 0.02, "class_weight": "balanced", "weights": S}),
]


@pytest.mark.parametrize(("name", "loss", "kind", "given"), JOBS)
def test_members_find_the_model_of_a_second_implementation(
    name: str, loss: str, kind: str, given: dict[str, Any]
) -> None:
    """Chunks move between rounds; the intercept of CoCoA is the weight of a column."""
    rows, y, job = KINDS[kind], TARGETS[loss], {"l2": L2, "intercept": False, **given}
    weights, offset = job.pop("weights", None), job.get("offset")
    A = rows.toarray() if sp.issparse(rows) else rows
    free = np.delete(np.arange(A.shape[1]), [] if offset is None else [offset])
    of_class = job.get("class_weight", {})
    if of_class == "balanced":
        of_class = {label: ROWS / (2.0 * np.sum(y == label)) for label in (-1.0, 1.0)}
    each = np.array([of_class.get(label, 1.0) for label in y])
    fixed = 0.0 if offset is None else A[:, offset]
    is_raw = job.get("penalise") == "raw"
    A, scale = A[:, free], "none" if is_raw else job.get("scale", "none")
    is_dual, is_centred = name == "cocoa", job["intercept"] and scale == "standard"
    shift = A.mean(axis=0) * is_centred
    sizes = (
        np.abs(A).max(axis=0) if scale == "maxabs" else np.sqrt(np.mean((A - shift) ** 2, axis=0))
    )
    factor = np.ones(free.size) if scale == "none" else 1.0 / sizes
    reference = Reference(
        X=(A - shift) * factor,
        y=y,
        loss=loss,
        weights=each if weights is None else each * weights,
        offset=fixed,
        l1=job.get("l1", 0.0),
        l2=job["l2"],
        has_intercept=job["intercept"],
        constant=job.get("intercept_scaling", 1.0) if is_dual and job["intercept"] else None,
    )
    tolerance = 1e-10 if name == "batch_gradient" else 1e-8 if loss == "hinge" else 1e-12
    if name == "primal_cocoa":
        parts = split_columns(rows, y, weights, 3)
    else:
        parts = split_rows(rows, y, 3, weights=weights, chunk_rows=20)
    world = World(
        settings={"loss": loss, **SETTINGS.get(loss, {}), **job, "tolerance": tolerance},
        parts=parts,
        algorithm=name,
        absent="reload",
        between=moves(0.5),
    )
    run = world.run(20_000)
    model = run.model
    assert len(run.rows) < ROUNDS_MAX.get(job.get("optimizer", ""), 300)
    assert model.converged
    coef, intercept = model.arrays["coef"][0], float(np.ravel(model.arrays["intercept"])[0])
    assert offset is None or coef[offset] == 1.0
    assert job["intercept"] or intercept == 0.0
    found = coef[free] / factor, intercept + shift @ coef[free]
    value = reference.objective(*found)
    assert model.objective == pytest.approx(value, rel=1e-11)
    assert value - reference.least <= (1e-9 if model.gap is None else model.gap + 1e-10)
    assert model.gap is None or model.gap >= 0.0
    for row in run.rows if is_raw else ():
        assert row.objective - reference.least <= row.gap + 1e-10
    assert not is_raw or model.gap <= 1e-8
    # The objective is strongly convex where there is a quadratic penalty.
    atol = 1e-3 if loss == "hinge" or job["l2"] == 0.0 else 1e-5
    np.testing.assert_allclose(np.append(*found), np.append(*reference.best), atol=atol)
    if job.get("l1"):
        np.testing.assert_array_equal(coef != 0.0, np.abs(reference.best[0]) > 1e-7)


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


# --- Newton's method in every layout ------------------------------------------------------------

MANY = 1600
#: A column like seconds since 1970, one of small values, and some of zeros and ones.
TABLE = np.column_stack(
    [
        1.7e9 + 100.0 * RNG.normal(size=MANY),
        1e-4 * RNG.normal(size=MANY),
        RNG.normal(size=(MANY, 3)),
        RNG.random((MANY, 4)) < 0.3,
    ]
)
BINARY = sp.csr_matrix(RNG.random((MANY, 40)) < 0.08, dtype=float)
SPARSE = sp.random_array((MANY, 60), density=0.1, rng=RNG, format="csr")
LAYOUTS = {
    "dense": (TABLE, "standard"),
    "dense, only numbers scaled": (TABLE, "auto"),
    "sparse": (SPARSE, "none"),
    "sparse, scaled": (SPARSE, "standard"),
    "binary": (BINARY, "none"),
    "binary, nearly dense blocks": (sp.hstack([BINARY] * 3, format="csr"), "standard"),
    # With this many columns the Hessian is computed from a share of the rows.
    "wide": (RNG.normal(size=(MANY * 10, 200)), "none"),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_every_layout_has_the_minimum_of_lbfgs(name: str, intercept: bool, loss: str) -> None:
    rows, scale = LAYOUTS[name]
    n, d = rows.shape
    columns = rows.toarray() if sp.issparse(rows) else rows
    spread = np.where(columns.std(axis=0) > 0.0, columns.std(axis=0), 1.0)
    z = (columns - columns.mean(axis=0)) / spread @ np.cos(np.arange(d)) / 3.0
    y = z + RNG.normal(size=n) if loss == "squared" else np.where(z + RNG.normal(size=n) > 0, 1, 0)
    job: Any = {"loss": loss, "scale": scale, "intercept": intercept, "l2": 1e-3}
    data = {"rows": rows, "weights": RNG.uniform(0.5, 2.0, n)}
    few = 10 if loss == "logistic" else 3
    newton = trained(BatchGradient(**job, optimizer="newton", tolerance=1e-9), y, few, **data)
    other = trained(BatchGradient(**job, optimizer="lbfgs", tolerance=1e-8), y, **data)
    assert newton.converged
    np.testing.assert_allclose(newton.objective, other.objective, rtol=1e-9)


def test_many_classes_have_the_minimum_of_lbfgs() -> None:
    """Their Hessian has many blocks: each class's own one preconditions."""
    rows = RNG.normal(size=(MANY, 40))
    scores = rows @ RNG.normal(size=(40, 41)) + 3.0 * RNG.gumbel(size=(MANY, 41))
    y = np.argmax(scores, axis=1)
    newton = trained(BatchGradient(l2=1e-2, optimizer="newton", tolerance=1e-9), y, 20, rows=rows)
    other = trained(BatchGradient(l2=1e-2, optimizer="lbfgs", tolerance=1e-8), y, rows=rows)
    assert newton.converged
    np.testing.assert_allclose(newton.objective, other.objective, rtol=1e-10)


def test_columns_that_depend_on_each_other_have_a_minimum_without_a_penalty() -> None:
    rows = np.column_stack([TABLE[:, 2:5], TABLE[:, 2], np.zeros(MANY), np.ones(MANY)])
    y = rows[:, 0] - rows[:, 1] + RNG.normal(size=MANY)
    found = trained(BatchGradient(loss="squared", l2=0.0, optimizer="newton"), y, rows=rows)
    residual = y - rows @ found.arrays["coef"][0] - found.arrays["intercept"][0]
    exact = y - rows @ np.linalg.lstsq(rows, y, rcond=None)[0]
    np.testing.assert_allclose(residual, exact, atol=1e-6)


def test_the_shape_decides_and_too_many_columns_are_refused() -> None:
    y, narrow = np.arange(MANY) % 2, TABLE[:, 2:]
    assert trained(BatchGradient(scale="standard", optimizer="auto"), y, 8, rows=narrow).converged
    wide = sp.csr_matrix((np.ones(MANY), (np.arange(MANY), np.arange(MANY) * 3)))
    with pytest.raises(ConfigError, match=r"wanted at most 4,096; use tron or lbfgs"):
        trained(BatchGradient(optimizer="newton"), y, rows=wide)


# --- several classes ----------------------------------------------------------------------------


def multinomial(rows: Any = X, **more: Any) -> tuple[Any, float]:
    """Return scikit-learn's model of all classes, and its objective."""
    settings = {"solver": "newton-cholesky", "tol": 1e-14, "max_iter": 1000, **more}
    model = LogisticRegression(C=1.0 / (L2 * EACH.sum()), **settings)
    model.fit(rows, CLASSES, sample_weight=EACH)
    own = model.predict_log_proba(rows)[np.arange(ROWS), np.searchsorted(LABELS, CLASSES)]
    return model, float(-EACH @ own / EACH.sum() + 0.5 * L2 * (model.coef_**2).sum())


def each_against_rest(loss: str, *, intercept: bool = False) -> tuple[Any, float]:
    """Return every class's coefficients, and the sum of their objectives."""
    common: dict[str, Any] = {"weights": EACH, "l2": L2, "has_intercept": intercept}
    each = [
        Reference(X=X, y=np.where(label == CLASSES, 1.0, -1.0), loss=loss, **common)
        for label in LABELS
    ]
    return np.array([one.best[0] for one in each]), sum(one.least for one in each)


OF_CLASSES: dict[str, Any] = {"l2": L2, "class_weight": CLASS_WEIGHTS}


@pytest.mark.parametrize(
    ("optimizer", "scale"),
    [
        ("gd", "none"),
        ("newton", "raw"),
        *itertools.product(("lbfgs", "tron", "newton"), ("none", "maxabs", "standard")),
    ],
)
def test_softmax_is_scikit_learns_multinomial_model(optimizer: Any, scale: Any) -> None:
    given: Any = {"scale": "standard", "penalise": "raw"} if scale == "raw" else {"scale": scale}
    job = BatchGradient(**OF_CLASSES, optimizer=optimizer, intercept=True, tolerance=1e-10, **given)
    rows = sp.csr_matrix(X) if optimizer == "newton" else X
    model = trained(job, CLASSES, rows=rows, weights=S)
    shift = X.mean(0) if scale == "standard" else 0.0
    factor = {"maxabs": 1.0 / np.abs(X).max(0), "standard": 1.0 / X.std(0)}.get(scale, 1.0)
    reference, objective = multinomial((X - shift) * factor)
    np.testing.assert_allclose(model.arrays["coef"], reference.coef_ * factor, atol=1e-6)
    # Softmax does not change if all margins grow alike.
    margins = X @ model.arrays["coef"].T + model.arrays["intercept"]
    moved = margins - reference.decision_function((X - shift) * factor)
    np.testing.assert_allclose(moved, np.broadcast_to(moved[:, :1], moved.shape), atol=1e-6)
    assert model.objective == pytest.approx(objective, rel=1e-8)
    assert scale != "raw" or 0.0 <= model.gap <= 1e-8


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
            BatchGradient(**OF_CLASSES, loss=loss, penalise="raw", scale=scale, tolerance=1e-10)
            for loss in ("squared_hinge", "smoothed_hinge")
            for scale in ("none", "standard")
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
    coef, objective = each_against_rest(job.loss, intercept=job.intercept)
    np.testing.assert_allclose(model.arrays["coef"], coef, atol=1e-6)
    assert model.objective == pytest.approx(objective, rel=1e-8)
    assert not job.intercept or 0.0 <= model.gap <= 1e-8
    if job.name == "cocoa":
        assert 0.0 <= model.gap <= 4e-13
        assert model.reason == "gap <= 1e-13, in each of 4 classes"


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


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_a_model_of_several_classes_predicts_and_is_kept(loss: str, tmp_path: Any) -> None:
    settings: Any = {"l2": L2, "intercept": True, "tolerance": 1e-9, "scale": "none"}
    job: Any = CoCoA(loss="logistic", **settings)
    if loss == "softmax":
        job = BatchGradient(**settings, class_weight=CLASS_WEIGHTS)
    facts = chunk_rows(X).with_labels(CLASSES, S).facts
    arrays = dict(trained(job, CLASSES, weights=S).arrays)
    model = model_of_job(job.section(), facts, arrays)
    model.save(tmp_path / "model.npz")
    kept, exported = em.load_model(tmp_path / "model.npz"), model.to_sklearn()
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
            lambda: begin("batch_gradient", np.ones(ROWS), loss="logistic"),
            DataError,
            r"found 1 distinct label \(1\), wanted at least 2",
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
            lambda: begin("cocoa", CLASSES, "freeze"),
            ConfigError,
            "absent: got 'freeze' with 4 classes",
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
