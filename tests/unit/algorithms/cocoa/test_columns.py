"""CoCoA by columns in one thread, squared and logistic: special columns, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import elasticml as em
from elasticml.errors import DataError
from tests.property.schedules import moves
from tests.reference import Reference, split_columns
from tests.serial_world import Return, Run, Vanish, World

RNG = np.random.default_rng(5)
N, D = 120, 24
X = RNG.normal(size=(N, D)) * RNG.uniform(0.2, 4.0, D) + RNG.normal(size=D)
X[:, 7] = X[:, 3] + RNG.normal(size=N)
Y = X[:, :6] @ RNG.normal(size=6) + RNG.normal(size=N) + 5.0
LABELS = np.where((X - X.mean(axis=0))[:, :6].sum(axis=1) + RNG.logistic(size=N) > 0, 3.0, 1.0)
S = RNG.uniform(0.1, 2.0, N)
S[:4] = 0.0
LOSSES = pytest.mark.parametrize("loss", ["squared", "logistic"])


def make_reference(loss: str = "squared", **changes: Any) -> Reference:
    """Make a problem with a solution of which a part is zero."""
    own = (Y, 0.1) if loss == "squared" else (LABELS - 2.0, 0.02)
    given = {"X": X, "y": own[0], "l1": own[1], "has_intercept": True, **changes}
    return Reference(loss=loss, **given)


def world_of(made: Reference, members: int, **given: Any) -> World:
    """Make a world of a problem; ``given`` are options of the world, and settings."""
    names = ("absent", "schedule", "reloads", "between")
    options = {"absent": "reload"} | {k: given.pop(k) for k in names if k in given}
    own = {k: getattr(made, k) for k in ("loss", "l1", "l2", "positive")}
    return World(
        settings={**own, "intercept": made.has_intercept, **given},
        parts=split_columns(made.X, made.y, made.weights, members),
        algorithm="primal_cocoa",
        **options,
    )


def check_rows(run: Run, reference: Reference) -> None:
    """Check every row's objective, and that its gap is not too small."""
    for row in run.rows:
        true = reference.of_arrays(row.model)
        assert row.objective == pytest.approx(true, rel=1e-9)
        assert true - reference.least <= row.gap + 1e-9 * true


def assert_same(run: Run, reference: Reference) -> None:
    coef, (best, intercept) = run.model.arrays["coef"][0], reference.best
    found = float(run.model.arrays["intercept"][0])
    assert run.model.converged
    assert reference.objective(coef, found) <= reference.least + 2e-11
    atol = 1e-5 if reference.loss == "squared" else 1e-4
    np.testing.assert_allclose(coef, best, atol=atol)
    np.testing.assert_array_equal(coef != 0.0, np.abs(best) > 1e-9)
    assert found == pytest.approx(intercept, abs=atol)


@pytest.mark.parametrize("absent", ["reload", "freeze", "stall"])
def test_positive_holds_from_any_start_when_columns_come_and_go(absent):
    reference = make_reference(positive=True, l1=0.05)
    start = make_reference(l1=0.05).best[0].tolist()
    assert min(start) < -0.1
    schedule = [
        Vanish(round=1, members=(0,), during="certify"),
        Vanish(round=2, members=(1,), during="pass", counted=True),
        Return(round=5),
    ]
    world = world_of(
        reference,
        3,
        absent=absent,
        reloads=absent == "reload",
        schedule=schedule,
        between=moves(0.3),
        gap_every=1,
        tolerance=1e-11,
        warm_start={"coef": start},
    )
    run = world.run(3000)
    assert_same(run, reference)
    check_rows(run, reference)
    assert min(float(row.model["coef"].min()) for row in run.rows[1:]) >= 0.0


def test_constant_and_zero_columns_are_left_at_zero():
    wide = np.column_stack([X, np.full(N, 3.0), np.zeros(N)])
    for made in (np.asarray, sp.csr_array):
        reference = make_reference(X=made(wide), l1=0.2)
        run = world_of(reference, 2, tolerance=1e-11, between=moves(1.0)).run(2000)
        assert_same(run, reference)
        assert not run.model.arrays["coef"][0, D:].any()


@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize("made", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_columns_far_from_zero_take_few_rounds(made, gather):
    moved = X[:, :8] + 1e7
    # The same columns, except for rounding of the large numbers.
    near = make_reference(X=moved - 1e7, l1=0.05)
    far = make_reference(X=made(moved), l1=0.05)
    run = world_of(far, 2, tolerance=1e-8, gather=gather).run(150)
    coef = run.model.arrays["coef"][0]
    assert run.model.converged
    np.testing.assert_allclose(coef, near.best[0], atol=1e-4)
    value = near.objective(coef, float((Y - near.X @ coef).mean()))
    assert value - near.least <= run.model.gap + 1e-9 * value


def test_constant_targets_need_no_round():
    run = world_of(make_reference(y=np.full(N, 2.5)), 2, tolerance=0.0).run(10)
    assert (len(run.rows), run.model.gap, run.model.objective) == (0, 0.0, 0.0)
    assert (run.model.arrays["coef"].any(), run.model.arrays["intercept"][0]) == (False, 2.5)


@LOSSES
def test_a_penalty_above_all_correlations_needs_no_round(loss):
    reference = make_reference(loss, l1=100.0, weights=S)
    run = world_of(reference, 2, tolerance=1e-12).run(10)
    assert (len(run.rows), run.model.arrays["coef"].any()) == (0, False)
    mean = float(reference.s @ LABELS - 1.0) / 2.0
    expected = np.log(mean / (1.0 - mean)) if loss == "logistic" else reference.s @ Y
    assert run.model.arrays["intercept"][0] == pytest.approx(expected)
    value = reference.objective(np.zeros(D), float(expected))
    assert run.model.objective == pytest.approx(value, rel=1e-12)


def test_with_frozen_columns_the_others_go_on_to_their_own_optimum():
    reference = make_reference(l2=0.05)
    schedule = [Vanish(round=4, members=(1,), during="pass")]
    world = world_of(reference, 3, absent="freeze", schedule=schedule, gap_every=1, gather=False)
    run = world.run(60)
    check_rows(run, reference)
    frozen = {int(j) for chunk in world.chunks[1] for j in chunk.labels if j >= 0}
    values = {tuple(row.next_model["coef"][0][sorted(frozen)]) for row in run.rows[5:]}
    assert (len(values), len(run.rows)) == (1, 60)
    assert run.rows[-1].extra["primal"] < run.rows[5].extra["primal"]


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("empty", [1.0, 3.0])
def test_a_class_may_have_no_weight(empty, intercept):
    weights = np.where(empty == LABELS, 0.0, S)
    settings = {"loss": "logistic", "l1": 0.02, "intercept": intercept, "tolerance": 1e-9}
    parts = split_columns(X, LABELS, weights, 2, 2)
    run = World(settings=settings, parts=parts, algorithm="primal_cocoa", absent="reload").run(500)
    C = 1.0 / (0.02 * weights.sum())
    here = em.LogisticRegression(C=C, l1_ratio=1.0, fit_intercept=intercept, tol=1e-10)
    here.fit(X, LABELS, weights)
    assert run.model.converged
    np.testing.assert_allclose(run.model.arrays["coef"], here.coef_, atol=1e-5)
    np.testing.assert_array_equal(run.model.arrays["classes"], [1.0, 3.0])


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
        world_of(make_reference(**data), 2, **settings).run(3)


@pytest.mark.parametrize("weights", [None, S])
def test_other_than_two_labels_are_refused(weights):
    for y, found in ((np.arange(N) % 4.0, 4), (np.ones(N), 1)):
        with pytest.raises(DataError, match=f"found {found} distinct labels"):
            world_of(make_reference("logistic", y=y, weights=weights), 2).run(1)
