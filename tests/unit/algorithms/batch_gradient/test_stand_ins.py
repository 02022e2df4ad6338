"""Stand-ins with curvature: consistent derivatives, updates, selection, and the guard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.batch_gradient.stand_ins import (
    StandIn,
    StandIns,
    Sums,
    first_basis,
    nystrom,
)
from elasticml.ids import GroupId
from tests.serial_world import Return, Run, Vanish, World, split_rows

RNG = np.random.default_rng(1)
N = 6


def sums(weight: float = 1.0) -> Sums:
    return Sums(loss=float(RNG.normal()), gradient=RNG.normal(size=N), weight=weight)


def spd(rank: int = N) -> np.ndarray:
    root = RNG.normal(size=(N, rank))
    return root @ root.T


#: The present members' summed loss: a quadratic.
H, G = spd(), RNG.normal(size=N)


def present(w: np.ndarray) -> Sums:
    return Sums(loss=float(0.5 * w @ H @ w + G @ w), gradient=H @ w + G, weight=5.0)


def queue() -> StandIns:
    stand_ins = StandIns(N)
    w = RNG.normal(size=N)
    bent = nystrom(first_basis(N, 3), first_basis(N, 3) @ spd(), np.ones(N))
    flat = StandIn(w=w, sums=sums(2.0))
    stand_ins.push(GroupId(1), flat)
    stand_ins.push(GroupId(2), flat.borrowing(w, sums(3.0), present(w)))
    own = StandIn(w=RNG.normal(size=N), sums=sums(1.0), mode="nystrom", curvature=bent)
    stand_ins.push(GroupId(3), own)
    return stand_ins


def test_value_gradient_search_and_curvature_are_of_one_function() -> None:
    stand_ins = queue()
    w, p = RNG.normal(size=N), RNG.normal(size=N)

    def total(v: np.ndarray) -> Sums:
        return stand_ins.total(present(v), v)

    steps = np.array([0.7, 0.1, 0.0])
    values = np.array([present(w + t * p).loss for t in steps])
    slopes = np.array([present(w + t * p).gradient @ p for t in steps])
    got_values, got_slopes = stand_ins.along(w, p, steps, values, slopes)
    np.testing.assert_allclose(got_values, [total(w + t * p).loss for t in steps])
    np.testing.assert_allclose(got_slopes, [total(w + t * p).gradient @ p for t in steps])
    # Everything is quadratic here, so differences are exact.
    np.testing.assert_allclose(
        stand_ins.curvature(H @ p, p), total(w + p).gradient - total(w).gradient
    )
    bend = stand_ins.curvature_along(float(p @ H @ p), p)
    np.testing.assert_allclose(bend, p @ stand_ins.curvature(H @ p, p))
    by_slope = (total(w + p).loss - total(w - p).loss) / 2
    np.testing.assert_allclose(total(w).gradient @ p, by_slope)
    assert total(w).weight == 5.0 + 6.0


# --- whole runs ---------------------------------------------------------------------------------

ROWS = RNG.normal(size=(2400, 5)) * [1.0, 2.0, 0.5, 1.0, 1.0]
LABELS = np.where(ROWS @ [1.0, -1.0, 2.0, 0.0, 0.5] + RNG.normal(size=2400) > 0, 1.0, -1.0)
ORDER = np.argsort(np.abs(ROWS[:, 1]))


def train(*schedule: Vanish | Return, is_sorted: bool = False, **settings: Any) -> Run:
    rows, labels = (ROWS[ORDER], LABELS[ORDER]) if is_sorted else (ROWS, LABELS)
    settings = {"optimizer": "gd", "l2": 0.01, **settings}
    absent = settings.pop("absent", "auto")
    world = World(
        settings=settings, parts=split_rows(rows, labels, 4), absent=absent, schedule=schedule
    )
    return world.run(40)


def test_similar_members_borrow_curvature_and_dissimilar_ones_use_their_own() -> None:
    lose = (Vanish(round=8, members=(0, 1)), Return(round=20))
    alike, unlike = train(*lose), train(*lose, is_sorted=True)
    assert alike.rows[10].extra["curvature_from"] == "borrowed 1"
    assert alike.rows[10].extra["likeness"] < 0.3
    assert unlike.rows[10].extra["curvature_from"] == "nystrom 1"
    assert unlike.rows[10].extra["likeness"] > 0.3
    assert unlike.rows[25].extra["curvature_from"] is None


@pytest.mark.parametrize("during", [None, "probe", "gradient"])
def test_a_stand_in_ends_with_the_first_gradient_that_has_its_examples(during: str | None) -> None:
    lose, back = Vanish(round=5, members=(0,)), Return(round=9, during=during)
    run = train(lose, back, is_sorted=True)
    gradients = [a for a in run.exchanges if a.phase == "gradient"]
    whole = [a for a in gradients if a.outcome.absent_examples == 0 and a.round >= 5]
    kinds = {row.objective_kind for row in run.rows[whole[0].round + 1 :]}
    assert kinds == {"exact"}
    assert all(row.stand_ins == 1 for row in run.rows[5 : whole[0].round])
    assert all(row.stand_ins == 0 for row in run.rows[whole[0].round + 1 :])


def test_a_flat_stand_in_is_guarded_then_borrows_then_the_model_stays() -> None:
    """The sketch of dissimilar members is lost with members that vanish while it is computed."""
    first = (Vanish(round=8, members=(0,)), Return(round=10))
    second = Vanish(round=10, members=(0, 1), during="sketch")
    run = train(*first, second, Return(round=38), is_sorted=True)
    values = [row.extra["curvature_from"] for row in run.rows[11:38]]
    assert values[0] == "taylor 1"
    assert values[-1] == "borrowed 1"
    steps = [row.step for row in run.rows[11:38]]
    assert steps[-1] == 0.0
    notes = [row.extra["note"] for row in run.rows if row.extra["note"]]
    assert [note.split(":")[0] for note in notes] == [
        "stand-ins without curvature helped no more",
        "no step is certain to help",
    ]
    assert run.rows[39].objective_kind == "exact"


def mean_loss(w: np.ndarray, members: tuple[int, ...], l2: float = 0.01) -> float:
    some = np.concatenate([np.arange(600 * m, 600 * m + 600) for m in members])
    losses = np.logaddexp(0.0, -LABELS[some] * (ROWS[some] @ w[:5]))
    return float(losses.mean() + 0.5 * l2 * w[:5] @ w[:5])


@pytest.mark.parametrize("has_anchors", [True, False])
@pytest.mark.parametrize("during", ["gradient", "probe"])
def test_a_loss_during_the_first_return_is_not_computed_as_a_difference(
    during: str, has_anchors: bool
) -> None:
    """Members lost before the first gradient are in no sum: their return hides the lost share.

    Later sums contain all present members, so that a later loss is a difference of them.
    """
    unseen = (Vanish(round=0, members=(0, 1)), Return(round=5, during=during))
    lost = Vanish(round=5, members=(2,), during=during)
    later = Vanish(round=5, members=(3,), during="gradient", nth=1)
    world = World(
        settings={"optimizer": "gd", "l2": 0.01},
        parts=split_rows(ROWS, LABELS, 4),
        absent="auto",
        schedule=(*unseen, lost, later) if during == "probe" else (*unseen, lost),
        has_anchors=has_anchors,
    )
    run = world.run(8)
    # A cached anchor is exactly the lost members' share; without one it cannot be known.
    report = int(has_anchors) + (during == "probe")
    assert [row.stand_ins for row in run.rows[5:]] == [report] * 3
    there = (0, 1, 2, 3) if has_anchors else (0, 1, 3)
    if during == "probe":  # stand-ins are anchored at this round's own model
        assert run.rows[5].objective == pytest.approx(mean_loss(run.w(5), there))
    elif has_anchors:
        assert run.rows[5].objective == pytest.approx(mean_loss(run.w(5), there), rel=1e-3)
    else:
        for r in range(5, 8):
            assert run.rows[r].objective == pytest.approx(mean_loss(run.w(r), there))


def test_a_job_that_rolls_back_means_the_papers_stand_ins() -> None:
    lose = (Vanish(round=8, members=(0, 1)), Return(round=20))
    paper, auto = (train(*lose, absent=a, mode="paper") for a in ("taylor", "auto"))
    for r in range(41):
        np.testing.assert_array_equal(paper.w(r), auto.w(r))
    assert "curvature_from" not in auto.rows[10].extra


def true_objective(w: np.ndarray) -> float:
    return mean_loss(w, (0, 1, 2, 3), 1e-6)


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("absent", ["auto", "taylor"])
@pytest.mark.parametrize("optimizer", ["gd", "lbfgs", "tron"])
def test_most_examples_away_for_good_do_not_let_the_model_run_away(
    absent: str, is_sorted: bool, optimizer: str
) -> None:
    """1,800 of 2,400 examples away: their tangents alone fall without end.

    The estimated objective became negative, and the model of that was returned.
    """
    lose = Vanish(round=5, members=(1, 2, 3))
    given: dict[str, Any] = {"is_sorted": is_sorted, "l2": 1e-6, "optimizer": optimizer}
    run = train(lose, absent=absent, **given)
    before, after = (true_objective(run.w(r)) for r in (5, len(run.rows)))
    assert after <= 1.002 * before
    if optimizer != "tron":
        paper = train(lose, absent="taylor", **given, mode="paper", roll_back=0)
        assert paper.rows[-1].objective < 0.0
        assert true_objective(paper.w(len(paper.rows))) > 4.0 * before
    kept = run.model.kept
    if kept is not None:
        assert after <= kept.objective + 1e-12
        np.testing.assert_array_equal(run.w(len(run.rows)), run.w(kept.round))
    if absent == "taylor" and is_sorted:
        assert kept is not None
