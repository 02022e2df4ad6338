"""L1-logistic regression on members in one thread: optima, certificates, losses, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import elasticml as em
from elasticml.algorithms.cocoa.line_search import LineModel
from elasticml.algorithms.primal_cocoa import margin_problem
from elasticml.algorithms.primal_cocoa.margin_problem import MarginProblem
from elasticml.errors import ConfigError, DataError
from elasticml.objectives.conjugates import dual_loss_named
from tests.column_reference import resumed, split_columns
from tests.margin_reference import MarginReference
from tests.property.schedules import moves
from tests.serial_world import Return, Vanish, World

RNG = np.random.default_rng(8)
N, D = 120, 20
X = RNG.normal(size=(N, D)) * RNG.uniform(0.5, 2.0, D) + RNG.normal(size=D)
X[:, 7] = X[:, 3] + RNG.normal(size=N)
Y = np.where((X - X.mean(axis=0))[:, :6] @ RNG.normal(size=6) + RNG.logistic(size=N) > 0, 3.0, 1.0)
S = RNG.uniform(0.1, 2.0, N)
S[:4] = 0.0
SPARSE = sp.csr_array(sp.random(N, 40, 0.2, random_state=2, data_rvs=RNG.standard_normal))
BINARY = sp.csr_array((SPARSE != 0).astype(np.float64))
SPARSE_Y = np.where(SPARSE[:, :5].sum(axis=1) + 0.3 * RNG.normal(size=N) > 0, 1.0, 0.0)
WEIGHTS = {1.0: 0.5, 3.0: 2.0}


def make_reference(**changes: Any) -> MarginReference:
    return MarginReference(**{"X": X, "y": Y, **changes})


def assert_same(run: Any, reference: MarginReference) -> None:
    coef, intercept = run.model.arrays["coef"][0], float(run.model.arrays["intercept"][0])
    assert run.model.converged
    assert reference.objective(coef, intercept) <= reference.optimum + 2e-11
    np.testing.assert_allclose(coef, reference.best.coef_[0], atol=1e-4)
    np.testing.assert_array_equal(coef != 0.0, np.abs(reference.best.coef_[0]) > 1e-9)
    np.testing.assert_allclose(intercept, np.ravel(reference.best.intercept_)[0], atol=1e-4)


@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weights", [None, S])
@pytest.mark.parametrize(
    ("X", "y", "l1", "l2"),
    [(X, Y, 0.02, 0.0), (X, Y, 0.01, 0.05), (SPARSE, SPARSE_Y, 0.01, 0.0), (BINARY, Y, 0.01, 0.02)],
    ids=["lasso", "elastic net", "sparse", "binary"],
)
def test_the_model_is_scikit_learns(X, y, l1, l2, weights, intercept, gather):
    reference = MarginReference(X=X, y=y, weights=weights, l1=l1, l2=l2, intercept=intercept)
    run = reference.world(3, tolerance=1e-11, between=moves(1.0), gather=gather).run(3000)
    assert_same(run, reference)
    assert max(reference.errors) <= 1e-11
    reference.check_rows(run.rows)
    np.testing.assert_array_equal(run.model.arrays["classes"], np.unique(y))


@pytest.mark.parametrize("class_weight", [WEIGHTS, "balanced"])
@pytest.mark.parametrize("weights", [None, S])
def test_classes_have_weights(class_weight, weights):
    counts = np.ones(N, bool) if weights is None else weights > 0.0
    shares = {c: counts.sum() / (2.0 * np.sum(counts & (c == Y))) for c in (1.0, 3.0)}
    reference = make_reference(
        weights=weights, class_weight=WEIGHTS if class_weight is WEIGHTS else shares
    )
    run = reference.world(2, tolerance=1e-11, class_weight=class_weight).run(2000)
    assert_same(run, reference)
    assert max(reference.errors) <= 1e-11
    reference.check_rows(run.rows)


@pytest.mark.parametrize("gather", [True, False])
def test_an_l1_penalty_under_the_squared_hinge_is_liblinears(gather):
    total = float(N)
    C = 1.0 / (0.05 * total)
    here = em.LinearSVC(penalty="l1", C=C, fit_intercept=False, tol=1e-12).fit(X, Y)
    world = World(
        settings={
            "loss": "squared_hinge",
            "l1": 0.05,
            "intercept": False,
            "tolerance": 1e-12,
            "gather": gather,
        },
        parts=split_columns(X, Y, None, 3, 2),
        algorithm="primal_cocoa",
        absent="reload",
    )
    run = world.run(3000)
    assert run.model.converged
    np.testing.assert_allclose(run.model.arrays["coef"], here.coef_, atol=1e-5)
    np.testing.assert_array_equal(run.model.arrays["coef"] != 0.0, here.coef_ != 0.0)


def test_a_penalty_above_all_correlations_needs_no_round():
    run = make_reference(l1=100.0, weights=S).world(2, tolerance=1e-12).run(10)
    assert (len(run.rows), run.model.arrays["coef"].any()) == (0, False)
    share = float(S[Y == 3.0].sum() / S.sum())
    entropy = -share * np.log(share) - (1.0 - share) * np.log(1.0 - share)
    assert run.model.arrays["intercept"][0] == pytest.approx(np.log(share / (1.0 - share)))
    assert run.model.objective == pytest.approx(entropy, rel=1e-12)


def test_the_objective_never_rises_without_gathering():
    reference = make_reference()
    run = reference.world(4, tolerance=1e-11, gap_every=1, gather=False).run(3000)
    primals = [row.extra["primal"] for row in run.rows]
    assert np.all(np.diff(primals) <= 1e-12 * primals[0])
    assert run.rows[-1].step == 1.0


def test_screened_columns_are_in_no_solution():
    reference = make_reference(l1=0.06)
    world = reference.world(3, tolerance=1e-11, between=moves(1.0), gather=False)
    run = world.run(2000)
    dead = np.concatenate(
        [
            chunk.labels[(chunk.labels >= 0) & (chunk.state["alive"] == 0)]
            for chunks in world.chunks.values()
            for chunk in chunks
        ]
    ).astype(int)
    assert (dead.size > D // 4, reference.best.coef_[0, dead].any()) == (True, False)
    assert_same(run, reference)


@pytest.mark.parametrize("absent", ["reload", "freeze", "stall"])
@pytest.mark.parametrize(
    ("during", "round"), [("pass", 2), ("certify", 2), ("gather", 1), ("certify", 1)]
)
@pytest.mark.parametrize("counted", [True, False])
def test_lost_columns_come_back_and_the_optimum_is_found(absent, during, round, counted):
    reference = make_reference()
    # Columns are gathered in round 1, and in no other round of these cases.
    gather = round == 1
    world = reference.world(
        3,
        absent=absent,
        reloads=absent == "reload",
        schedule=[
            Vanish(round=round, members=(1,), during=during, counted=counted),
            Return(round=5),
        ],
        gap_every=1,
        tolerance=1e-11,
        gather=gather,
    )
    run = world.run(3000)
    assert any(request.exchange.operation == "gather" for request in run.exchanges) == gather
    assert_same(run, reference)
    reference.check_rows(run.rows)


def test_a_resumed_job_continues_from_its_last_model():
    reference = make_reference()
    resume = reference.world(2, gap_every=2, gather=False).run(6).rows[-1].resume
    again = resumed(reference, resume)
    assert np.count_nonzero(resume.arrays["coef"]) > 0
    # Screened columns stay screened, and the first certificate may screen a few more.
    best = resume.values["best"]
    assert again["gap"] <= best["primal"] - best["dual"]
    np.testing.assert_array_equal(again["coef"], resume.arrays["coef"])
    assert_same(again["run"], reference)


def test_a_warm_start_starts_from_the_given_model():
    reference = make_reference()
    first = reference.world(2, tolerance=1e-11).run(500).model
    start = {"coef": first.arrays["coef"][0].tolist(), "intercept": [0.0]}
    run = reference.world(2, tolerance=1e-9, warm_start=start).run(10)
    assert (len(run.rows), run.model.converged) == (0, True)
    # It follows from the coefficients.
    assert run.model.arrays["intercept"][0] == pytest.approx(first.arrays["intercept"][0])


def test_a_line_search_that_ends_early_is_judged_at_its_last_point(monkeypatch):
    problem = MarginProblem.of(
        np.array([-1.0, 1.0]),
        None,
        dual_loss_named("squared_hinge"),
        class_weight={1.0: 10.0},
        l1=0.0,
        l2=0.1,
        intercept=False,
    )
    z, dz = np.array([-5.0, 1.7]), np.array([0.0, -1.0])
    # -t, and 10 (t - 0.7)^2 beyond 0.7: -0.1 at 1, and least at 0.75, where it is -0.725.
    for looks in (1, 30):
        monkeypatch.setattr(margin_problem, "SEARCHES_MAX", looks)
        step = problem.search(z, dz, LineModel(slope=1.0, curvature=0.0), 0.0)
        assert step.length == pytest.approx(0.75)


@pytest.mark.parametrize("members", [1, 3])
def test_work_on_gathered_columns_is_announced_as_long(members):
    reference = make_reference(l1=0.005)
    run = reference.world(members, tolerance=1e-11).run(500)
    long = []
    for r in range(len(run.rows)):
        requests = [a.exchange for a in run.exchanges if a.round == r]
        worked = any("taken" in exchange.model for exchange in requests)
        gathers = [exchange for exchange in requests if exchange.operation == "gather"]
        # It follows the gathering, or, if columns are gathered already, the end of the round
        # before.
        announced = gathers[0].is_long if gathers else r > 0 and run.rows[r - 1].is_long
        assert announced or not worked
        long.append((worked, bool(gathers)))
        assert not any(e.is_long for e in requests if e.operation != "gather")
    assert {(True, True), (False, False)} <= set(long)
    assert run.model.converged
    waits = reference.world(members, tolerance=1e-11, gather=False).run(20)
    assert not any(row.is_long for row in waits.rows)


@pytest.mark.parametrize("weights", [None, S])
def test_other_than_two_labels_are_refused(weights):
    with pytest.raises(DataError, match=r"loss: logistic found 4 distinct labels \(0, 1, 2, 3\)"):
        make_reference(y=np.arange(N) % 4.0, weights=weights).world(2).run(1)
    with pytest.raises(DataError, match="found 1 distinct labels"):
        make_reference(y=np.ones(N), weights=weights).world(2).run(1)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"positive": True}, "positive: needs loss: squared, not logistic"),
        ({"class_weight": {7.0: 2.0}}, "class_weight names label 7, wanted labels among 1 and 3"),
        ({"loss": "squared", "class_weight": "balanced"}, "loss: squared has no classes"),
        ({"loss": "hinge"}, "loss: got 'hinge' .there is squared, logistic"),
    ],
)
def test_wrong_settings_are_refused(settings, what):
    with pytest.raises(ConfigError, match=what):
        make_reference().world(1, **settings).run(1)


@pytest.mark.parametrize("weights", [None, S])
@pytest.mark.parametrize("labels", [(-0.7, 0.1), (1.5, 123456.7), (1e-13, 2e-13), (-1e300, 1e300)])
def test_labels_are_any_two_numbers(labels, weights):
    chunks = split_columns(X, np.where(Y == 3.0, labels[1], labels[0]), weights, 1, 2)
    settings = {"loss": "logistic", "l1": 0.02, "tolerance": 1e-9}
    made = World(settings=settings, parts=chunks, algorithm="primal_cocoa", absent="reload")
    np.testing.assert_array_equal(made.run(200).model.arrays["classes"], labels)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("empty", [1.0, 3.0])
def test_a_class_may_have_no_weight(empty, intercept):
    weights = np.where(empty == Y, 0.0, S)
    settings = {"loss": "logistic", "l1": 0.02, "intercept": intercept, "tolerance": 1e-9}
    parts = split_columns(X, Y, weights, 2, 2)
    run = World(settings=settings, parts=parts, algorithm="primal_cocoa", absent="reload").run(500)
    C = 1.0 / (0.02 * weights.sum())
    here = em.LogisticRegression(C=C, l1_ratio=1.0, fit_intercept=intercept, tol=1e-10)
    here.fit(X, Y, weights)
    assert run.model.converged
    np.testing.assert_allclose(run.model.arrays["coef"], here.coef_, atol=1e-5)
    np.testing.assert_array_equal(run.model.arrays["classes"], [1.0, 3.0])
    # An intercept alone explains all of it.
    margins = X @ run.model.arrays["coef"][0] + run.model.arrays["intercept"][0]
    assert not intercept or np.all((margins > 10.0) == (empty == 1.0))


def test_a_third_class_without_weight_does_not_count():
    y, weights = Y.copy(), np.ones(N)
    y[:4], weights[:4] = 7.0, 0.0
    settings = {"loss": "logistic", "l1": 0.02, "class_weight": "balanced", "tolerance": 1e-9}
    parts = split_columns(X, y, weights, 2, 2)
    run = World(settings=settings, parts=parts, algorithm="primal_cocoa", absent="reload").run(500)
    np.testing.assert_array_equal(run.model.arrays["classes"], [1.0, 3.0])
