"""The distributed lasso and elastic net in one thread: optima, certificates, losses, screening."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.data.readers.arrays import from_arrays
from elasticml.data.source import load_all
from elasticml.errors import ConfigError, DataError
from tests.column_reference import ColumnReference, resumed
from tests.property.schedules import moves
from tests.serial_world import Return, Vanish, World

RNG = np.random.default_rng(5)
N, D = 120, 24
X = RNG.normal(size=(N, D)) * RNG.uniform(0.2, 4.0, D) + RNG.normal(size=D)
X[:, 7] = X[:, 3] + RNG.normal(size=N)
Y = X[:, :6] @ RNG.normal(size=6) + RNG.normal(size=N) + 5.0
S = RNG.uniform(0.0, 2.0, N)
S[:4] = 0.0
SPARSE = sp.csr_array(sp.random(N, 80, 0.1, random_state=2))
SPARSE_Y = SPARSE[:, :5].sum(axis=1) * 4.0 + 0.1 * RNG.normal(size=N) + 1.0
BINARY = sp.csr_array((SPARSE != 0).astype(np.float64))


def make_reference(**changes: Any) -> ColumnReference:
    return ColumnReference(**{"X": X, "y": Y, **changes})


def assert_same(run: Any, reference: ColumnReference, atol: float = 1e-5) -> None:
    coef = run.model.arrays["coef"][0]
    assert run.model.converged
    assert (
        reference.objective(coef, float(run.model.arrays["intercept"][0]))
        <= reference.optimum + 2e-11
    )
    np.testing.assert_allclose(coef, reference.best.coef_, atol=atol)
    np.testing.assert_array_equal(coef != 0.0, reference.best.coef_ != 0.0)
    np.testing.assert_allclose(run.model.arrays["intercept"], reference.best.intercept_, atol=1e-5)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weights", [None, S])
@pytest.mark.parametrize(
    ("X", "y", "l1", "l2"),
    [
        (X, Y, 0.2, 0.0),
        (X, Y, 0.1, 0.3),
        (SPARSE, SPARSE_Y, 0.01, 0.0),
        (BINARY, SPARSE_Y, 0.01, 0.01),
    ],
    ids=["lasso", "elastic net", "sparse", "binary"],
)
def test_the_model_is_scikit_learns(X, y, l1, l2, weights, intercept, members):
    reference = ColumnReference(
        X=X, y=np.asarray(y), weights=weights, l1=l1, l2=l2, intercept=intercept
    )
    run = reference.world(members, tolerance=1e-11, between=moves(1.0)).run(2000)
    assert_same(run, reference)
    assert max(reference.errors) <= 1e-12
    reference.check_rows(run.rows)


def test_positive_keeps_coefficients_from_being_negative():
    reference = make_reference(positive=True, l1=0.05)
    run = reference.world(2, tolerance=1e-11, between=moves(1.0)).run(2000)
    assert_same(run, reference)
    assert (np.count_nonzero(reference.best.coef_ > 0), reference.best.coef_.min()) == (
        np.count_nonzero(run.model.arrays["coef"]),
        0.0,
    )


def test_a_start_with_negative_coefficients_ends_without_them():
    reference = make_reference(positive=True, l1=0.05)
    start = {"coef": make_reference(l1=0.05).best.coef_.tolist()}
    assert min(start["coef"]) < -0.1
    run = reference.world(2, tolerance=1e-11, between=moves(1.0), warm_start=start).run(2000)
    assert_same(run, reference)


def test_the_ridge_alone_is_fitted_and_certified():
    reference = make_reference(l1=0.0, l2=0.5)
    run = reference.world(2, tolerance=1e-11, between=moves(1.0)).run(2000)
    assert_same(run, reference)


def test_constant_and_zero_columns_are_left_at_zero():
    wide = np.column_stack([X, np.full(N, 3.0), np.zeros(N)])
    reference = make_reference(X=wide, l1=0.2)
    run = reference.world(2, tolerance=1e-11, between=moves(1.0)).run(2000)
    assert_same(run, reference)
    assert not run.model.arrays["coef"][0, D:].any()


def test_the_gap_of_sparse_columns_far_from_zero_is_not_understated():
    near = make_reference(X=X[:, :8], l1=0.05)
    far = make_reference(X=sp.csr_array(X[:, :8] + 1e7), l1=0.05)
    run = far.world(2, tolerance=1e-7).run(40)
    coef = run.model.arrays["coef"][0]
    error = Y - X[:, :8] @ coef
    assert run.model.gap >= near.objective(coef, float(error.mean())) - near.optimum - 1e-12
    shifted = X[:, :8] + np.eye(8)[3] * 3e7
    run = make_reference(X=sp.csr_array(shifted), l1=0.05).world(2, tolerance=1e-7).run(500)
    assert run.model.converged
    np.testing.assert_allclose(run.model.arrays["coef"][0], near.best.coef_, atol=1e-3)


@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("made", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_columns_far_from_zero_take_few_rounds(made, members, gather):
    moved = X[:, :8] + 1e7
    # The same columns, except for rounding of the large numbers.
    near = make_reference(X=moved - 1e7, l1=0.05)
    far = make_reference(X=made(moved), l1=0.05)
    run = far.world(members, tolerance=1e-8, gather=gather).run(150)
    assert run.model.converged
    np.testing.assert_allclose(run.model.arrays["coef"][0], near.best.coef_, atol=1e-4)
    error = Y - near.X @ run.model.arrays["coef"][0]
    value = near.objective(run.model.arrays["coef"][0], float(error.mean()))
    assert value - near.optimum <= run.model.gap + 1e-9 * value


@pytest.mark.parametrize("columns", [1, 2])
def test_fewer_columns_than_members_are_fitted(columns):
    reference = make_reference(X=X[:, :columns], l1=0.05)
    assert_same(reference.world(5, tolerance=1e-11).run(500), reference)


def test_constant_targets_need_no_round():
    reference = make_reference(y=np.full(N, 2.5))
    run = reference.world(2, tolerance=0.0).run(10)
    assert (len(run.rows), run.model.gap, run.model.objective) == (0, 0.0, 0.0)
    assert (run.model.arrays["coef"].any(), run.model.arrays["intercept"][0]) == (False, 2.5)


def test_a_penalty_above_all_correlations_needs_no_round():
    reference = make_reference(l1=100.0)
    run = reference.world(2, tolerance=1e-12).run(10)
    assert (len(run.rows), run.model.arrays["coef"].any()) == (0, False)
    assert run.model.objective == pytest.approx(reference.optimum, rel=1e-12)


def test_the_objective_never_rises_and_final_steps_are_whole():
    reference = make_reference()
    run = reference.world(4, tolerance=1e-11, gap_every=1, gather=False).run(3000)
    primals = [row.extra["primal"] for row in run.rows]
    assert np.all(np.diff(primals) <= 1e-12 * primals[0])
    assert run.rows[-1].step == 1.0


def test_screened_columns_are_in_no_solution_and_cost_nothing():
    reference = make_reference(l1=0.5)
    world = reference.world(3, tolerance=1e-11, between=moves(1.0))
    screened, plain = world.run(2000), reference.world(3, tolerance=1e-11, screen=False).run(2000)
    dead = np.concatenate(
        [
            chunk.labels[(chunk.labels >= 0) & (chunk.state["alive"] == 0)]
            for chunks in world.chunks.values()
            for chunk in chunks
        ]
    ).astype(int)
    assert (dead.size > D // 2, reference.best.coef_[dead].any()) == (True, False)
    assert screened.rows[-1].extra["alive"] == D - dead.size
    assert plain.rows[-1].extra["alive"] == D
    assert_same(screened, reference)
    assert_same(plain, reference)


@pytest.mark.parametrize("absent", ["reload", "freeze", "stall"])
@pytest.mark.parametrize(
    ("during", "round"), [("pass", 2), ("certify", 2), ("gather", 1), ("certify", 1)]
)
@pytest.mark.parametrize("counted", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_lost_columns_come_back_and_the_optimum_is_found(absent, during, round, counted):
    reference = make_reference()
    # Columns are gathered in round 1, and in no other round of these cases.
    gather = round == 1
    schedule = [
        Vanish(round=round, members=(1,), during=during, counted=counted),
        Return(round=5),
    ]
    world = reference.world(
        3,
        absent=absent,
        reloads=absent == "reload",
        schedule=schedule,
        gap_every=1,
        tolerance=1e-11,
        gather=gather,
    )
    run = world.run(3000)
    assert any(request.outcome.absent_examples for request in run.exchanges) or absent != "freeze"
    assert any(request.exchange.operation == "gather" for request in run.exchanges) == gather
    assert_same(run, reference)
    reference.check_rows(run.rows)


@pytest.mark.parametrize("absent", ["reload", "freeze", "stall"])
def test_positive_holds_when_columns_come_and_go(absent):
    reference = make_reference(positive=True, l1=0.05)
    schedule = [
        Vanish(round=1, members=(0,), during="certify"),
        Vanish(round=2, members=(1,), during="pass", counted=True),
        Return(round=5),
    ]
    world = reference.world(
        3,
        absent=absent,
        reloads=absent == "reload",
        schedule=schedule,
        between=moves(0.3),
        gap_every=1,
        tolerance=1e-11,
    )
    run = world.run(3000)
    assert_same(run, reference)
    reference.check_rows(run.rows)
    assert min(float(row.model["coef"].min()) for row in run.rows) >= 0.0


def test_with_frozen_columns_the_certificates_stay_those_of_the_whole_problem():
    reference = make_reference(l2=0.05)
    world = reference.world(
        3,
        absent="freeze",
        schedule=[Vanish(round=4, members=(1,), during="pass")],
        gap_every=1,
        gather=False,
    )
    run = world.run(60)
    reference.check_rows(run.rows)
    frozen = {int(j) for chunk in world.chunks[1] for j in chunk.labels if j >= 0}
    values = {tuple(row.next_model["coef"][0][sorted(frozen)]) for row in run.rows[5:]}
    assert (len(values), len(run.rows)) == (1, 60)
    # The remaining columns go on to their own optimum.
    assert run.rows[-1].extra["primal"] < run.rows[5].extra["primal"]
    assert run.model.objective == pytest.approx(
        reference.objective(run.model.arrays["coef"][0], float(run.model.arrays["intercept"][0]))
    )


def test_a_resumed_job_continues_from_its_last_model():
    reference = make_reference()
    first = reference.world(2, gap_every=2, gather=False).run(6)
    resume = first.rows[-1].resume
    coef = resume.arrays["coef"]
    again = resumed(reference, resume)
    assert np.count_nonzero(coef) > 0
    # One member sums what two members summed before: the last bits depend on the CPU.
    best = resume.values["best"]
    assert again["gap"] == pytest.approx(best["primal"] - best["dual"], rel=1e-12)
    np.testing.assert_array_equal(again["coef"], coef)
    assert_same(again["run"], reference)


def test_a_warm_start_starts_from_the_given_model():
    reference = make_reference()
    start = {"coef": reference.best.coef_.tolist(), "intercept": [0.0]}
    run = reference.world(2, tolerance=1e-9, warm_start=start).run(10)
    assert (len(run.rows), run.model.converged) == (0, True)
    with pytest.raises(ConfigError, match=r"warm_start.coef has 3 numbers, wanted 24"):
        reference.world(1, warm_start={"coef": [1.0, 2.0, 3.0]}).run(1)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"l1": 0.0}, "l1: got 0, wanted a penalty"),
        ({"l1": -1.0}, "l1: got -1.0"),
        ({"gap_every": 0}, "gap_every: got 0"),
        ({"loss": "hinge"}, "loss: got 'hinge'"),
        ({"screening": True}, "screening is not a setting"),
        ({"local_epochs": 0}, "local_epochs: got 0"),
    ],
)
def test_wrong_settings_are_refused(settings, what):
    with pytest.raises(ConfigError, match=what):
        make_reference().world(1, **settings).run(1)


LOUD = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")


@pytest.mark.parametrize(
    ("data", "settings", "what"),
    [
        pytest.param({"y": Y * 1e160}, {}, "the objective is inf", marks=LOUD),
        pytest.param({}, {"warm_start": {"coef": [1e300] * D}}, "the objective is nan", marks=LOUD),
        ({"X": X * 1e160}, {}, "the square of feature 0 is not finite"),
        ({"X": sp.csr_array(X * 1e160)}, {}, "the square of feature 0 is not finite"),
    ],
    ids=["targets", "warm start", "dense", "sparse"],
)
def test_numbers_whose_squares_are_not_finite_are_refused(data, settings, what):
    with pytest.raises(DataError, match=what):
        make_reference(**data).world(2, **settings).run(3)


def test_data_by_rows_or_of_float32_are_refused():
    rows = load_all(from_arrays(X, Y))
    with pytest.raises(DataError, match="they are by rows"):
        World(settings={}, parts=[rows], absent="reload", algorithm="primal_cocoa").run(1)
    rows = load_all(from_arrays(X, Y, dtype="float32"))
    with pytest.raises(ConfigError, match="wanted float64 numbers by columns"):
        World(settings={}, parts=[rows], absent="reload", algorithm="primal_cocoa").run(1)


def test_an_absent_rule_without_certificates_is_refused():
    with pytest.raises(ConfigError, match="algorithm primal_cocoa cannot follow"):
        make_reference().world(1, absent="taylor").run(1)
