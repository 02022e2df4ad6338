"""Column-partitioned sparse models under any schedule of losses, returns and moves, any rule."""

from __future__ import annotations

import functools

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.column_reference import ColumnReference
from tests.margin_reference import MarginReference
from tests.property.schedules import Schedule, moves, schedules
from tests.serial_world import Return, Vanish

MEMBERS = 4
ROUNDS = 10
PHASES = ("pass", "certify", "gather")
RNG = np.random.default_rng(3)
X = RNG.normal(size=(30, 14)) + 0.5
Y = X[:, :3] @ [2.0, -1.0, 1.0] + RNG.normal(size=30)
S = RNG.uniform(0.5, 2.0, 30)
PENALTIES = {"lasso": (0.1, 0.0), "elastic net": (0.05, 0.1), "ridge": (0.0, 0.2)}


def assert_right(
    reference: ColumnReference | MarginReference,
    schedule: Schedule,
    slack: float,
    absent: str,
    gap_every: int | str,
    share: float,
    gather: bool,
) -> None:
    """Play a schedule to its end; compare its certificates with the reference's."""
    # All members are back before the end, however often a group must be waited for.
    back = [Return(round=r) for r in range(ROUNDS, ROUNDS + 3)]
    world = reference.world(
        MEMBERS,
        absent=absent,
        reloads=absent == "reload",
        schedule=[*schedule, *back],
        between=moves(share),
        gap_every=gap_every,
        gather=gather,
    )
    run = world.run(ROUNDS + 60)
    assert max(reference.errors, default=0.0) <= 1e-10
    reference.check_rows(run.rows)
    coef, intercept_ = run.model.arrays["coef"][0], float(run.model.arrays["intercept"][0])
    assert abs(run.model.objective - reference.objective(coef, intercept_)) <= 1e-9
    assert run.model.objective - reference.optimum <= run.model.gap + slack
    if not world.groups and not world.open:
        assert run.model.gap <= 0.02


@settings(max_examples=80)
@given(
    schedules(MEMBERS, ROUNDS, PHASES, [None, None, *PHASES]),
    st.sampled_from(sorted(PENALTIES)),
    st.sampled_from(["reload", "freeze", "stall"]),
    st.sampled_from([1, 3, "auto"]),
    st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    st.booleans(),
    st.booleans(),
)
@example(
    [
        Vanish(round=1, members=(0,), counted=True, during="pass"),
        Vanish(round=1, members=(1,), during="certify"),
        Return(round=3, during="certify"),
    ],
    "lasso",
    "freeze",
    1,
    0.0,
    True,
    False,
)
@example(
    [
        Vanish(round=1, members=(0,), counted=False, during="certify"),
        Return(round=2, during="pass", with_state=True),
    ],
    "lasso",
    "freeze",
    1,
    0.0,
    True,
    False,
)
def test_models_and_certificates_are_correct_under_any_schedule(
    schedule: Schedule,
    penalty: str,
    absent: str,
    gap_every: int | str,
    share: float,
    intercept: bool,
    gather: bool,
) -> None:
    l1, l2 = PENALTIES[penalty]
    reference = ColumnReference(X=X, y=Y, weights=S, l1=l1, l2=l2, intercept=intercept)
    assert_right(reference, schedule, 1e-12, absent, gap_every, share, gather)


@functools.cache
def margin_reference(penalty: str, intercept: bool) -> MarginReference:
    """Compute the optimum once; certificates are recorded in copies."""
    l1, l2 = {"lasso": (0.02, 0.0), "elastic net": (0.01, 0.05), "ridge": (0.0, 0.1)}[penalty]
    y = np.where(np.median(Y) < Y, 1.0, 0.0)
    reference = MarginReference(X=X, y=y, weights=S, l1=l1, l2=l2, intercept=intercept)
    assert reference.optimum > 0.0
    return reference


@settings(max_examples=60)
@given(
    schedules(MEMBERS, ROUNDS, PHASES, [None, None, *PHASES]),
    st.sampled_from(sorted(PENALTIES)),
    st.sampled_from(["reload", "freeze", "stall"]),
    st.sampled_from([1, 3, "auto"]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.booleans(),
    st.booleans(),
)
def test_classifiers_and_certificates_are_correct_under_any_schedule(
    schedule: Schedule,
    penalty: str,
    absent: str,
    gap_every: int | str,
    share: float,
    intercept: bool,
    gather: bool,
) -> None:
    reference = margin_reference(penalty, intercept)
    reference.errors.clear()
    assert_right(reference, schedule, 1e-11, absent, gap_every, share, gather)
