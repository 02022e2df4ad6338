"""Every trainer under any schedule of losses, returns and moves: true sums and certificates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import ConfigError
from elasticml.objectives.loss_kernels import loss_named
from elasticml.objectives.multiclass import OneAgainstRest, Softmax
from tests.log_cosh import LOG_COSH
from tests.own_penalties import BY_NUMPY, ROUNDED
from tests.property.schedules import Schedule, moves, schedules
from tests.reference import Reference, error_by_columns, error_by_rows, split_columns
from tests.serial_world import ExchangeRecord, Return, Run, Vanish, World, split_rows

Arrays = Mapping[str, np.ndarray]

MEMBERS, ROUNDS, AFTER = 5, 10, 60
L2 = 0.1
RNG = np.random.default_rng(2)
X = RNG.normal(size=(60, 3)) * [1.0, 2.0, 0.5]
SIGNAL = X @ [1.0, -1.0, 0.5] + RNG.normal(size=60)
Y = np.where(SIGNAL > 0.0, 1.0, -1.0)
COUNTS = RNG.poisson(np.exp(np.clip(0.5 * SIGNAL, -2.0, 2.0))).astype(float)
CLASSES = np.argmax(X @ RNG.normal(size=(3, 3)) + RNG.gumbel(size=(60, 3)), 1).astype(float)
S = RNG.uniform(0.5, 2.0, 60)
WIDE = RNG.normal(size=(30, 14)) + 0.5
TARGETS = WIDE[:, :3] @ [2.0, -1.0, 1.0] + RNG.normal(size=30)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One algorithm with one loss, and what is known of it without the package."""

    algorithm: str
    settings: Mapping[str, Any]
    parts: Sequence[Sequence[Chunk]]
    #: The objective of a model, and the least one.
    value: Callable[[Arrays], float]
    least: float
    #: Exchanges in which members vanish and return, and rules for their examples.
    phases: Sequence[str]
    rules: Sequence[str]
    #: Settings that are drawn.
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    #: How near to the least objective the job ends when all members are back.
    reach: float = 1e-6
    #: Compares an exchange with the states of the chunks.
    error: Callable[[World, ExchangeRecord], float | None] = lambda world, record: None

    def play(
        self, schedule: Schedule, absent: str, share: float, *, anchors: bool, **chosen: Any
    ) -> None:
        """Train under a schedule, after which all members return; check all that is reported."""
        back = [Return(round=r) for r in range(ROUNDS, ROUNDS + 4)]
        errors: list[float | None] = []
        world = World(
            settings={**self.settings, **chosen},
            parts=self.parts,
            algorithm=self.algorithm,
            absent=absent,
            reloads=absent == "reload",
            schedule=[*schedule, *back],
            has_anchors=anchors,
            between=moves(share),
            watch=lambda world, record: errors.append(self.error(world, record)),
        )
        run = world.run(ROUNDS + AFTER)
        for row in run.rows:
            if row.model and row.objective is not None:
                self.check_row(row)
        assert max((error for error in errors if error is not None), default=0.0) <= 1e-10
        self.check_end(world, run)

    def check_row(self, row: Any) -> None:
        """Compare the objective and every bound of a row with its model's."""
        true, extra = self.value(row.model), row.extra
        slack = 1e-9 * max(1.0, abs(true))
        if row.objective_kind == "exact":
            assert abs(row.objective - true) <= slack
        elif row.objective_kind == "bound":
            assert row.objective >= true - slack
        if extra.get("error_bound") is not None:
            assert abs(row.objective - true) <= extra["error_bound"] + slack
        if extra.get("gap_bound") is not None:
            assert true - self.least <= extra["gap_bound"] + slack
        if extra.get("dual") is not None:
            assert extra["dual"] <= self.least + slack
        if row.gap is not None and self.algorithm != "cocoa":  # CoCoA's is that of its best model
            assert true - self.least <= row.gap + slack
        if row.next_gap is not None and row.next_objective is not None:
            assert row.next_objective - self.least <= row.next_gap + slack

    def check_end(self, world: World, run: Run) -> None:
        """Check the result, which is near the optimum if every member is back."""
        model, true = run.model, self.value(run.model.arrays)
        if model.objective is not None:
            assert abs(model.objective - true) <= 1e-9 * max(1.0, abs(true))
        if model.gap is not None:
            assert true - self.least <= model.gap + 1e-9
        if not world.groups and not world.open:
            assert model.objective is not None
            assert not model.gap_is_bound
            assert true - self.least <= self.reach


def dual_problem(loss: str, *, intercept: bool) -> Problem:
    """Make a problem of CoCoA."""
    y = SIGNAL if loss in ("squared", LOG_COSH) else Y
    constant = 1.0 if intercept else None
    made = Reference(
        X=X, y=y, loss=loss, weights=S, l2=L2, has_intercept=intercept, constant=constant
    )
    return Problem(
        algorithm="cocoa",
        settings={"loss": loss, "l2": L2, "intercept": intercept, "tolerance": 1e-5},
        parts=split_rows(X, y, MEMBERS, weights=S, chunk_rows=4),
        value=made.of_arrays,
        least=made.least,
        phases=("pass", "certify"),
        rules=("reload", "stall") if loss == LOG_COSH else ("reload", "freeze", "stall"),
        choices={"gap_every": [1, 3, "auto"], "groups": ["auto", 2], "mode": ["default", "paper"]},
        reach=0.05 if loss == "hinge" else 1e-3,
        error=partial(error_by_rows, made),
    )


def column_problem(
    loss: str, l1: float, l2: float, *, intercept: bool, penalty: str | None = None
) -> Problem:
    """Make a problem of columns, with L1 or with the penalty of a user."""
    y = np.where(np.median(TARGETS) < TARGETS, 1.0, -1.0) if loss == "logistic" else TARGETS
    given = {"weights": S[:30], "l1": l1, "l2": l2, "has_intercept": intercept}
    own = None if penalty is None else BY_NUMPY[penalty]
    made = Reference(X=WIDE, y=y, loss=loss, penalty=own, **given)
    l1_or_own = {"l1": l1} if penalty is None else {"penalty": penalty}
    return Problem(
        algorithm="primal_cocoa",
        settings={"loss": loss, **l1_or_own, "l2": l2, "intercept": intercept, "tolerance": 1e-8},
        parts=split_columns(WIDE, y, S[:30], MEMBERS),
        value=made.of_arrays,
        least=made.least,
        phases=("pass", "certify", "gather"),
        rules=("reload", "freeze", "stall"),
        choices={"gap_every": [1, 3, "auto"], "gather": [True, False]},
        reach=0.02,
        error=partial(error_by_columns, made),
    )


def gradient_problem(rows: str, loss: str = "logistic", **given: Any) -> Problem:
    """Make a problem of batch gradients; members have random rows, sorted ones, or the same."""
    order = {"random": np.arange(60), "sorted": np.argsort(Y), "same": np.tile(np.arange(12), 5)}
    some = order[rows]
    y = Y[some] if loss == "logistic" else COUNTS[some]
    intercept, l2 = given.setdefault("intercept", False), given.setdefault("l2", L2)
    made = Reference(X=X[some], y=y, loss=loss, l2=l2, has_intercept=intercept)
    return Problem(
        algorithm="batch_gradient",
        settings={"loss": loss, "scale": "none", **given},
        parts=split_rows(X[some], y, MEMBERS, chunk_rows=4),
        value=made.of_arrays,
        least=made.least,
        phases=("gradient", "probe", "curvature", "correct", "product", "survey", "sketch"),
        rules=("auto", "taylor", "ignore", "ignore_rescaled", "stall", "reload"),
        choices={"roll_back": [0, 1, 2]},
        reach=1e-2 if "step_size" in given else 1e-8,
    )


def classes_problem(algorithm: str, **given: Any) -> Problem:
    """Make a problem with three classes."""
    is_dual = algorithm == "cocoa"
    loss = OneAgainstRest(loss_named("logistic")) if is_dual else Softmax()

    def value(arrays: Arrays) -> float:
        W = np.ascontiguousarray(arrays["coef"])
        total = loss.value_and_slope(W @ X.T, CLASSES, S, np.empty((3, 60))) / S.sum()
        return float(total + 0.5 * L2 * (W**2).sum())

    return Problem(
        algorithm=algorithm,
        settings={"loss": "logistic", "l2": L2, "intercept": False, **given},
        parts=split_rows(X, CLASSES, MEMBERS, weights=S, chunk_rows=4),
        value=value,
        least=float(
            minimize(lambda w: value({"coef": w.reshape(3, 3)}), np.zeros(9), tol=1e-12).fun
        ),
        phases=("one_against_rest pass", "one_against_rest certify")
        if is_dual
        else ("gradient", "probe", "product"),
        rules=("reload", "stall") if is_dual else ("auto", "taylor", "reload"),
        choices={"gap_every": [1, "auto"]} if is_dual else {},
        reach=1e-3 if is_dual else 1e-8,
    )


PROBLEMS = {
    "hinge": dual_problem("hinge", intercept=False),
    "logistic": dual_problem("logistic", intercept=True),
    "ridge": dual_problem("squared", intercept=True),
    "own loss by rows": dual_problem(LOG_COSH, intercept=True),
    "one against rest": classes_problem("cocoa", tolerance=1e-5),
    "lasso": column_problem("squared", 0.1, 0.0, intercept=True),
    "elastic net": column_problem("squared", 0.05, 0.1, intercept=False),
    "sparse logistic": column_problem("logistic", 0.02, 0.0, intercept=True),
    "own loss by columns": column_problem(LOG_COSH, 0.02, 0.01, intercept=True),
    "own penalty": column_problem("squared", 0.0, 0.01, intercept=True, penalty=ROUNDED),
    "gradient descent": gradient_problem("sorted", optimizer="gd"),
    "constant steps": gradient_problem("random", optimizer="gd", step="constant", step_size=0.3),
    "lbfgs": gradient_problem("random", optimizer="lbfgs"),
    "tron": gradient_problem("sorted", optimizer="tron"),
    "newton": gradient_problem("same", optimizer="newton"),
    "poisson": gradient_problem("sorted", "poisson", optimizer="lbfgs", intercept=True),
    "huber": gradient_problem("sorted", "huber", optimizer="tron", intercept=True),
    "softmax": classes_problem("batch_gradient", optimizer="lbfgs", tolerance=1e-9),
}
#: Those of CoCoA, by rows and by columns.
COCOA = [name for name, problem in PROBLEMS.items() if "cocoa" in problem.algorithm]


@pytest.mark.parametrize("name", PROBLEMS)
@settings(max_examples=5)
@given(st.data())
def test_objectives_and_certificates_are_true_under_any_schedule(
    name: str, data: st.DataObject
) -> None:
    problem = PROBLEMS[name]
    operations = (None, None, *problem.phases)
    schedule = data.draw(schedules(MEMBERS, ROUNDS, problem.phases, operations), "schedule")
    absent = data.draw(st.sampled_from(problem.rules), "absent")
    share = data.draw(st.sampled_from([0.0, 0.0, 0.3, 1.0]), "share")
    chosen = {k: data.draw(st.sampled_from(v), k) for k, v in problem.choices.items()}
    problem.play(schedule, absent, share, anchors=data.draw(st.booleans(), "anchors"), **chosen)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_loss_in_any_exchange_under_any_rule_ends_at_the_optimum(name: str) -> None:
    """Each operation loses a member, before or after its partial is counted."""
    problem = PROBLEMS[name]
    for k, phase in enumerate(problem.phases):
        kill = Vanish(round=2, members=(1, 3), during=phase, counted=k % 2 == 1)
        early = Vanish(round=1, members=(0,), during=problem.phases[0], counted=k % 2 == 0)
        schedule = [early, kill, Return(round=4, oldest=True), Return(round=6)]
        rule = problem.rules[k % len(problem.rules)]
        problem.play(schedule, rule, 0.3, anchors=k % 3 != 0)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_job_resumed_on_other_members_ends_at_the_optimum(name: str) -> None:
    """Nothing but the checkpoint is left: no chunk has state, and members have other chunks."""
    problem = PROBLEMS[name]

    def world(**given: Any) -> World:
        return World(
            settings=problem.settings,
            algorithm=problem.algorithm,
            absent=problem.rules[0],
            **given,
        )

    first = world(parts=problem.parts).run(4)
    start = first.rows[-1]
    parts = [*problem.parts[1:], problem.parts[0]]
    values = json.loads(json.dumps(dict(start.resume.values)))
    run = world(parts=parts, resume=replace(start.resume, values=values)).run(AFTER)
    for row in run.rows:
        problem.check_row(row)
    assert problem.value(run.model.arrays) - problem.least <= problem.reach
    if name in COCOA and start.next_gap is not None:
        gaps = [*(row.gap for row in run.rows), run.model.gap]
        assert gaps[0] <= start.next_gap * (1.0 + 1e-12)
    # Dual variables are made again from the model, which is then theirs.
    if run.rows and problem.algorithm != "cocoa":
        np.testing.assert_allclose(run.rows[0].model["coef"], start.next_model["coef"], rtol=1e-9)


# --- CoCoA, by rows and by columns ----------------------------------------------------------------


def cocoa_world(name: str, **given: Any) -> World:
    """Make a world of a problem of CoCoA that gathers no columns and skips no rows."""
    problem = PROBLEMS[name]
    alone = {"gather" if problem.algorithm == "primal_cocoa" else "shrink": False}
    chosen = {**problem.settings, **alone, **given.pop("settings", {})}
    options = {"absent": "reload", "parts": problem.parts, **given}
    return World(settings=chosen, algorithm=problem.algorithm, **options)


# At the kink of the hinge no model says what its dual variables are.
@pytest.mark.parametrize("name", [name for name in COCOA if name != "hinge"])
def test_a_warm_start_starts_from_the_given_model(name: str) -> None:
    first = cocoa_world(name).run(2000).model
    assert first.converged
    # By columns the intercept follows from the coefficients.
    start = {"coef": first.arrays["coef"].tolist(), "intercept": first.arrays["intercept"].tolist()}
    looser = 10.0 * PROBLEMS[name].settings["tolerance"]
    again = cocoa_world(name, settings={"tolerance": looser, "warm_start": start}).run(10)
    assert again.model.converged
    assert len(again.rows) <= 1
    assert again.model.objective <= first.objective + looser
    with pytest.raises(ConfigError, match=r"warm_start.coef has 6 numbers, wanted \d+"):
        cocoa_world(name, settings={"warm_start": {"coef": [1.0] * 6}}).run(1)


@pytest.mark.parametrize("name", COCOA)
def test_stall_waits_for_lost_members(name: str) -> None:
    joined = "one_against_rest " if name == "one against rest" else ""
    schedule = (Vanish(round=4, members=(1, 2), during=joined + "pass"), Return(round=9))
    settings = {"gap_every": 1, "tolerance": 0.0}
    run = cocoa_world(name, absent="stall", schedule=schedule, settings=settings).run(12)
    phases = [[phase.removeprefix(joined) for phase in run.phases(r)] for r in range(3, 10)]
    assert phases == [
        ["pass", "certify"],
        ["pass"],
        [],
        [],
        [],
        [],
        ["certify", "pass", "certify"],
    ]


@pytest.mark.parametrize("name", COCOA)
def test_policies_tune_local_epochs_and_damping_from_the_next_round_on(name: str) -> None:
    tuned = {1: {"local_epochs": 3, "damping": 0.25, "step_size": 1.0}, 2: {"damping": 9.0}}
    run = cocoa_world(name, tuned=tuned, settings={"tolerance": 0.0, "local_epochs": 1}).run(5)
    requests = [a.exchange.parameters for a in run.exchanges if a.phase.endswith("pass")]
    epochs = [next(v for k, v in each.items() if k.endswith("local_epochs")) for each in requests]
    assert epochs == [1.0, 1.0, 3.0, 3.0, 3.0]
    assert run.rows[2].extra["damping"] == 0.25
    visited = [row.extra["visited"] for row in run.rows]
    # Two epochs at least: a pass ends when its problem is solved well enough.
    assert min(visited[2:]) >= 2.0 * max(visited[:2])
