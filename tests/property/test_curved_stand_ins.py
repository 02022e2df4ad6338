"""Guarded stand-ins under any schedule of losses and returns: exact values and valid bounds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.schedules import Schedule, schedules
from tests.serial_world import Return, Run, Vanish, World, split_rows

MEMBERS = 5
ROUNDS = 16
L2 = 0.1
RNG = np.random.default_rng(4)
X = RNG.normal(size=(60, 3)) * [1.0, 2.0, 0.5]
Y = np.where(X @ [1.0, -1.0, 0.5] + RNG.normal(size=60) > 0, 1.0, -1.0)
#: Shuffled; sorted by label; and every member with the very same rows.
LAYOUTS = {
    "random": (X, Y),
    "sorted": (X[np.argsort(Y, kind="stable")], np.sort(Y)),
    "same": (np.tile(X[:12], (MEMBERS, 1)), np.tile(Y[:12], MEMBERS)),
}

SCHEDULES = schedules(
    MEMBERS,
    ROUNDS,
    ["gradient", "probe", "survey", "sketch", "correct", "correct"],
    [None, None, None, "gradient", "probe", "survey", "sketch"],
    nth_max=2,
    has_state=False,
)
optimizers = st.sampled_from(["gd", "lbfgs", "tron"])


def run_world(
    layout: str, schedule: Schedule, optimizer: str, anchors: bool, **given: object
) -> Run:
    rows, labels = LAYOUTS[layout]
    back = [Return(round=r) for r in range(ROUNDS, ROUNDS + 3)]
    world = World(
        settings={"l2": L2, "optimizer": optimizer, **given},
        parts=split_rows(rows, labels, MEMBERS, chunk_rows=4),
        absent="auto",
        schedule=[*schedule, *back],
        has_anchors=anchors,
    )
    run = world.run(ROUNDS + 5)
    assert not world.groups
    assert not world.open
    return run


def objective(layout: str, w: np.ndarray) -> float:
    rows, labels = LAYOUTS[layout]
    return float(np.logaddexp(0.0, -labels * (rows @ w[:3])).mean() + L2 / 2 * w[:3] @ w[:3])


@settings(max_examples=35)
@given(
    st.sampled_from(sorted(LAYOUTS)),
    SCHEDULES,
    optimizers,
    st.sampled_from([{}, {"roll_back": 1}, {"roll_back": 2}]),
    st.booleans(),
    st.booleans(),
)
def test_a_guarded_job_returns_no_model_worse_than_one_that_it_knows(
    layout: str,
    schedule: Schedule,
    optimizer: str,
    roll_back: dict[str, int],
    anchors: bool,
    returns: bool,
) -> None:
    """Members that stay away, nearly all of them, let flat stand-ins fall without end."""
    rows, labels = LAYOUTS[layout]
    events = [e for e in schedule if returns or isinstance(e, Vanish)]
    world = World(
        settings={"l2": 1e-4, "optimizer": optimizer, **roll_back},
        parts=split_rows(rows, labels, MEMBERS, chunk_rows=4),
        absent="taylor",
        schedule=events,
        has_anchors=anchors,
    )
    run = world.run(ROUNDS + 30)

    def true(w: np.ndarray) -> float:
        return objective(layout, w) + (1e-4 - L2) / 2 * float(w[:3] @ w[:3])

    known = []
    for r, row in enumerate(run.rows):
        error = row.extra.get("error_bound")
        if row.objective is not None and (row.objective_kind == "exact" or error is not None):
            known.append((true(run.w(r)), row.objective + (error or 0.0)))
    assert all(value <= bound + 1e-9 for value, bound in known)
    final = true(run.w(len(run.rows)))
    kept = run.model.kept
    if kept is not None:
        assert final <= kept.objective + 1e-9
        assert kept.objective <= min(bound for _, bound in known) + 1e-9
    elif run.rows[-1].objective_kind == "exact" and run.model.objective is not None:
        assert final <= min(bound for _, bound in known) + 1e-9
    # What is certain to be worse than a known model is not returned.
    last = run.rows[-1]
    if kept is None and last.extra.get("error_bound") is not None:
        low = last.objective - last.extra["error_bound"]
        assert low <= min(bound for _, bound in known) + 1e-9


@settings(max_examples=20)
@given(SCHEDULES, st.booleans())
def test_the_loss_of_identical_members_changes_nothing(schedule: Schedule, anchors: bool) -> None:
    """Borrowed curvature is exact if the absent are copies of the present.

    However often anchors are carried from change to change: the run is the undisturbed one.
    """
    seen = [e for e in schedule if e.round > 1]
    few = [e for e in seen if isinstance(e, Return) or len(e.members) < 2]
    members = {m for e in few if isinstance(e, Vanish) for m in e.members}
    few = [e for e in few if isinstance(e, Return) or max(members) not in e.members]
    plain = run_world("same", [], "gd", anchors)
    run = run_world("same", few, "gd", anchors)
    for r in range(ROUNDS):
        np.testing.assert_allclose(run.w(r), plain.w(r), rtol=1e-7, atol=1e-9)
