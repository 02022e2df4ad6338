"""CoCoA under any schedule of losses, returns and moves, in any exchange, with any absent rule."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.cocoa_reference import CocoaReference, world_of
from tests.property.schedules import Schedule, moves, schedules
from tests.serial_world import Return, Vanish, split_rows

MEMBERS = 5
ROUNDS = 12
L2 = 0.1
PHASES = ("pass", "certify")
RNG = np.random.default_rng(2)
X = RNG.normal(size=(60, 3))
SIGNAL = X @ [1.0, -1.0, 0.5] + RNG.normal(size=60)
S = RNG.uniform(0.5, 2.0, 60)
PARTS = {
    loss: split_rows(
        X, SIGNAL if loss == "squared" else np.sign(SIGNAL), MEMBERS, weights=S, chunk_rows=4
    )
    for loss in ("hinge", "squared_hinge", "logistic", "squared")
}


@settings(max_examples=60)
@given(
    schedules(MEMBERS, ROUNDS, PHASES, [None, None, *PHASES]),
    st.sampled_from(sorted(PARTS)),
    st.sampled_from(["reload", "freeze", "stall"]),
    st.booleans(),
    st.sampled_from([1, 3, "auto"]),
    st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    st.sampled_from(["auto", 2, 3]),
    st.sampled_from([0.0, 1.0]),
)
@example(
    [
        Vanish(round=1, members=(0,), counted=True, during="pass"),
        Vanish(round=1, members=(1,), during="certify"),
        Return(round=3, during="certify"),
    ],
    "hinge",
    "freeze",
    True,
    1,
    0.0,
    2,
    0.0,
)
def test_models_and_certificates_are_correct_under_any_schedule(
    schedule: Schedule,
    loss: str,
    absent: str,
    has_anchors: bool,
    gap_every: int | str,
    share: float,
    groups: int | str,
    intercept: float,
) -> None:
    # All members are back before the end, however often a group must be waited for.
    back = [Return(round=r) for r in range(ROUNDS, ROUNDS + 3)]
    reference = CocoaReference.of(PARTS[loss], loss, L2, intercept)
    world = world_of(
        reference,
        PARTS[loss],
        intercept=intercept > 0.0,
        absent=absent,
        reloads=absent == "reload",
        schedule=[*schedule, *back],
        has_anchors=has_anchors,
        between=moves(share),
        gap_every=gap_every,
        groups=groups,
    )
    run = world.run(ROUNDS + 40)
    assert max(reference.errors, default=0.0) <= 1e-10
    reference.check_rows(run.rows)
    duals = [row.extra["dual"] for row in run.rows if row.extra["dual"] is not None]
    assert max(duals, default=0.0) <= min(reference.primals) + 1e-12
    w = np.append(run.model.arrays["coef"][0], run.model.arrays["intercept"])[
        : 3 + (intercept > 0.0)
    ]
    if run.model.objective is not None:
        assert abs(run.model.objective - reference.primal(w)) <= 1e-9
    if not world.groups and not world.open:
        assert not run.model.gap_is_bound
        assert run.model.gap <= 0.05
