"""Several classes under any schedule of losses, returns and moves, in any exchange."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from elasticml.objectives.losses import LOSSES
from elasticml.objectives.multiclass import OneAgainstRest, Softmax
from tests.property.schedules import Schedule, moves, schedules
from tests.serial_world import Return, World, split_rows

MEMBERS = 4
ROUNDS = 10
L2 = 0.1
RNG = np.random.default_rng(5)
X = RNG.normal(size=(60, 3))
Y = np.argmax(X @ RNG.normal(size=(3, 3)) + RNG.gumbel(size=(60, 3)), 1).astype(float)
S = RNG.uniform(0.5, 2.0, 60)
PARTS = split_rows(X, Y, MEMBERS, weights=S, chunk_rows=4)
BACK = [Return(round=r) for r in range(ROUNDS, ROUNDS + 3)]


def objective(loss: OneAgainstRest | Softmax, W: np.ndarray) -> float:
    value = loss.value_and_slope(W @ X.T, Y, S, np.empty((3, 60))) / S.sum()
    return value + 0.5 * L2 * float((W**2).sum())


@settings(max_examples=25)
@given(
    schedules(
        MEMBERS, ROUNDS, ("one_against_rest pass", "one_against_rest certify"), has_state=True
    ),
    st.sampled_from(["hinge", "squared_hinge", "logistic"]),
    st.sampled_from(["reload", "stall"]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([1, "auto"]),
)
def test_gaps_bound_the_sum_of_the_classes_under_any_schedule(
    schedule: Schedule, loss: str, absent: str, share: float, gap_every: int | str
) -> None:
    world = World(
        settings={"loss": loss, "l2": L2, "gap_every": gap_every},
        parts=PARTS,
        algorithm="cocoa",
        absent=absent,
        reloads=absent == "reload",
        schedule=[*schedule, *BACK],
        between=moves(share),
    )
    run = world.run(ROUNDS + 60)
    each = OneAgainstRest(LOSSES[loss])
    models = [(r.model, r.objective, r.gap) for r in run.rows]
    models.append((run.model.arrays, run.model.objective, run.model.gap))
    values = [objective(each, m["coef"]) for m, _, _ in models if m]
    for model, value, gap in models:
        if value is not None:
            assert abs(value - objective(each, model["coef"])) <= 1e-9
            assert value - gap <= min(values) + 1e-9
    if not world.groups and not world.open:
        assert run.model.gap <= 0.05


@settings(max_examples=25)
@given(
    schedules(MEMBERS, ROUNDS, ("gradient", "probe", "product"), has_state=False),
    st.sampled_from(["lbfgs", "tron", "newton"]),
    st.sampled_from(["auto", "taylor", "reload"]),
    st.sampled_from([0.0, 0.3]),
)
def test_softmax_finds_its_optimum_after_any_schedule(
    schedule: Schedule, optimizer: str, absent: str, share: float
) -> None:
    world = World(
        settings={"l2": L2, "optimizer": optimizer, "tolerance": 1e-9},
        parts=PARTS,
        absent=absent,
        reloads=absent == "reload",
        schedule=[*schedule, *BACK],
        between=moves(share),
    )
    run = world.run(ROUNDS + 90)
    if world.groups or world.open:
        return
    reference = LogisticRegression(
        C=1.0 / (L2 * S.sum()), fit_intercept=False, solver="newton-cholesky", tol=1e-12
    ).fit(X, Y, sample_weight=S)
    assert run.model.converged
    np.testing.assert_allclose(run.model.arrays["coef"], reference.coef_, atol=1e-6)
    assert abs(run.model.objective - objective(Softmax(), run.model.arrays["coef"])) < 1e-10
