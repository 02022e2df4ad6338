"""Elastic batch gradient descent under any schedule of losses and returns, in any exchange."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.property.schedules import Schedule, schedules
from tests.serial_world import Return, Run, Vanish, World, split_rows

MEMBERS = 5
ROUNDS = 14
L2 = 0.1
RNG = np.random.default_rng(2)
X = RNG.normal(size=(60, 3))
Y = np.where(X @ [1.0, -1.0, 0.5] + RNG.normal(size=60) > 0, 1.0, -1.0)
PARTS = split_rows(X, Y, MEMBERS, chunk_rows=4)

SCHEDULES = schedules(
    MEMBERS,
    ROUNDS,
    ["gradient", "probe", "curvature", "correct", "product", "product"],
    [None, None, "gradient", "probe", "correct", "product"],
    nth_max=2,
    has_state=False,
)
absences = st.sampled_from(["taylor", "ignore", "ignore_rescaled"])
OPTIMIZERS: dict[str, dict[str, object]] = {
    "search": {"optimizer": "gd"},
    "constant": {"optimizer": "gd", "step": "constant", "step_size": 0.3},
    "lbfgs": {"optimizer": "lbfgs"},
    "tron": {"optimizer": "tron"},
    "newton": {"optimizer": "newton"},
}
optimizers = st.sampled_from(sorted(OPTIMIZERS))
modes = st.sampled_from([0, 1, 2])


def run_world(
    schedule: Schedule, absent: str, optimizer: str, anchors: bool, roll_back: int
) -> tuple[World, Run]:
    # All members are back two rounds before the end, however often a group must be waited for.
    back = [Return(round=r) for r in range(ROUNDS, ROUNDS + 3)]
    world = World(
        settings={"l2": L2, "roll_back": roll_back, **OPTIMIZERS[optimizer]},
        parts=PARTS,
        absent=absent,
        schedule=[*schedule, *back],
        has_anchors=anchors,
    )
    return world, world.run(ROUNDS + 5)


def objective(w: np.ndarray) -> float:
    return float(np.logaddexp(0.0, -Y * (X @ w[:3])).mean() + L2 / 2 * w[:3] @ w[:3])


@settings(max_examples=150)
@given(SCHEDULES, absences, optimizers, st.booleans(), modes)
# no member is left in the first round, and the returning ones come in a phase that does not occur
@example(
    [
        Vanish(round=0, members=(0, 1, 2, 3, 4), during="gradient", nth=0),
        Return(round=0, during="probe"),
    ],
    "taylor",
    "constant",
    False,
    0,
)
@example([Vanish(round=0, members=(0, 2, 4), counted=True)], "taylor", "lbfgs", False, 0)
@example(  # to the precision of float64 in the very sum that contains a lost member's share
    [
        Vanish(round=0, members=(0,), during="gradient", nth=1),
        Vanish(round=9, members=(0,), during="gradient", nth=0, counted=True),
    ],
    "taylor",
    "tron",
    False,
    0,
)
def test_an_objective_reported_as_exact_is_over_every_example_once(
    schedule: Schedule, absent: str, optimizer: str, anchors: bool, roll_back: int
) -> None:
    world, run = run_world(schedule, absent, optimizer, anchors, roll_back)
    for r, row in enumerate(run.rows):
        if row.objective_kind == "exact":
            np.testing.assert_allclose(row.objective, objective(run.w(r)), rtol=1e-12)
    # A run that has converged when all members are back ends before another row.
    assert run.rows[-1].objective_kind == "exact" or run.model.converged
    assert not world.groups
    # Nor does it wait for a lost member whose share is in the last sum: the objective must be over
    # all examples.
    np.testing.assert_allclose(run.model.objective, objective(run.w(len(run.rows))), rtol=1e-12)


@settings(max_examples=150)
@given(SCHEDULES, st.booleans(), modes)
@example(
    [
        Vanish(round=1, members=(0,), during="gradient", nth=0, counted=False),
        Vanish(round=12, members=(0,), during="gradient", nth=0, counted=True),
    ],
    False,
    0,
)
def test_stand_ins_and_present_examples_weigh_as_much_as_all(
    schedule: Schedule, anchors: bool, roll_back: int
) -> None:
    """No example is both counted and substituted, and none is neither.

    A model that stays at zero has one objective, log 2, and one gradient, estimated or exact: there
    every Taylor expansion is exact, and any other number is an example too many or too few.
    """
    back = [Return(round=r) for r in range(ROUNDS, ROUNDS + 3)]
    world = World(
        settings={
            "l2": 0.0,
            "optimizer": "gd",
            "roll_back": roll_back,
            "step": "constant",
            "step_size": 1e-30,
        },
        parts=PARTS,
        absent="taylor",
        schedule=[*[e for e in schedule if e.round > 0 or isinstance(e, Return)], *back],
        has_anchors=anchors,
    )
    run = world.run(ROUNDS + 5)
    for row in run.rows:
        if row.objective is not None:
            np.testing.assert_allclose(row.objective, np.log(2.0), rtol=1e-12)
            if row.extra["gradient_norm"] is not None:
                np.testing.assert_allclose(
                    row.extra["gradient_norm"], run.rows[0].extra["gradient_norm"], rtol=1e-10
                )


@settings(max_examples=60)
@given(SCHEDULES, optimizers)
def test_stall_makes_the_very_steps_of_an_undisturbed_run(
    schedule: Schedule, optimizer: str
) -> None:
    job = {"l2": L2, "tolerance": 1e-6, **OPTIMIZERS[optimizer]}
    back = [Return(round=r) for r in range(200)]
    stalled, plain = (
        World(settings=job, parts=PARTS, absent="stall", schedule=events).run(40)
        for events in ([*schedule, *back], [])
    )
    models = list(dict.fromkeys(tuple(row.model["coef"][0]) for row in stalled.rows))
    expected = [tuple(row.model["coef"][0]) for row in plain.rows]
    np.testing.assert_allclose(models, expected[: len(models)], rtol=1e-6, atol=1e-9)
