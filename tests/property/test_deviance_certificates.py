"""Certified gaps of batch gradient jobs with an intercept, against minima found otherwise."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticml.algorithms.base import Exchange, Resume
from elasticml.algorithms.batch_gradient.certificate import LowerBound, lower_bound_for
from elasticml.algorithms.batch_gradient.line_search import ENCLOSING, lowest
from elasticml.algorithms.scaling import Columns
from elasticml.objectives.loss_kernels import MarginLoss, loss_named
from elasticml.specification.algorithms import BatchGradient
from tests.property.schedules import Return, Vanish
from tests.reference import Reference
from tests.serial_world import World, split_rows

ROWS, D = 40, 3
LOSSES = ("poisson", "gamma", "tweedie", "logistic", "squared")


def problem(seed: int, loss: str, power: float, scale: float) -> dict[str, Any]:
    """Draw rows, targets and weights of which some are 0."""
    rng = np.random.default_rng(seed)
    X = scale * rng.normal(size=(ROWS, D))
    mean = np.exp(np.clip(X @ rng.normal(size=D), -3.0, 3.0))
    y = rng.poisson(mean).astype(float)
    y = rng.gamma(0.5, 2.0 * mean) + 1e-3 if loss == "gamma" else y + (y.sum() == 0.0)
    if loss == "logistic":
        y = np.where(
            rng.permutation(ROWS) < ROWS // 2, np.sign(mean - 1.0), np.tile([-1, 1], ROWS // 2)
        )
    given: dict[str, Any] = {"power": power} if loss == "tweedie" else {}
    more = {"penalise": "raw"} if loss in ("logistic", "squared") else {}
    return {
        "X": X,
        "y": y,
        "s": rng.integers(0, 3, ROWS) + (y == y.max()),
        "loss": loss_named(loss, given),
        "settings": {"loss": loss, **given, **more},
    }


class Objective:
    """The mean loss with an L2 penalty on all coordinates but the intercept, the last one."""

    def __init__(self, made: dict[str, Any], l2: float, *, intercept: bool) -> None:
        self.X = np.column_stack([made["X"], np.ones(ROWS)]) if intercept else made["X"]
        self.y, self.s, self.l2 = made["y"], made["s"].astype(float), l2
        self.loss: MarginLoss = made["loss"]
        self.penalised = np.full(self.X.shape[1], l2)
        self.penalised[D:] = 0.0

    def at(self, w: np.ndarray) -> tuple[float, float, np.ndarray, np.ndarray]:
        """Return value, penalty, gradient and Hessian."""
        slopes, curvatures = np.empty(ROWS), np.empty(ROWS)
        z, total = np.ascontiguousarray(self.X @ w), self.s.sum()
        loss = self.loss.value_and_slope(z, self.y, self.s, slopes) / total
        self.loss.curvature(z, self.y, self.s, curvatures)
        penalty = 0.5 * float(self.penalised @ w**2)
        gradient = self.X.T @ slopes / total + self.penalised * w
        hessian = (self.X.T * curvatures) @ self.X / total + np.diag(self.penalised)
        return loss + penalty, penalty, gradient, hessian

    def minimise(self, intercept: float | None = None) -> tuple[float, np.ndarray]:
        """Return the minimum and its model, by Newton's method with halved steps.

        With ``intercept`` the last coordinate keeps this value.
        """
        w = np.zeros(self.X.shape[1])
        own = np.arange(w.size if intercept is None else w.size - 1)
        w[own.size :] = intercept
        value, _, gradient, hessian = self.at(w)
        for _ in range(200):
            step, length = np.zeros(w.size), 1.0
            step[own] = np.linalg.solve(hessian[np.ix_(own, own)], gradient[own])
            while self.at(w - length * step)[0] > value and length > 1e-12:
                length *= 0.5
            w = w - length * step
            value, _, gradient, hessian = self.at(w)
            if np.abs(gradient[own]).max() < 1e-13:
                break
        return value, w


def learn(bound: LowerBound, objective: Objective, w: np.ndarray) -> float:
    """Raise a bound by what a model certifies; return its gap."""
    value, _, gradient, hessian = objective.at(w)
    least, own = value, np.eye(w.size)[-1]
    if w.size > D and gradient[-1] != 0.0:
        steps = -gradient[-1] / (hessian[-1, -1] or np.inf) * np.append(ENCLOSING, 0.0)
        at = [objective.at(w + step * own) for step in steps]
        values, slopes = np.array([(each[0], each[2][-1]) for each in at]).T
        least = lowest(steps, values, slopes)
    bound.learn(value, gradient, w, D, least)
    gap = bound.gap(value)
    assert gap is not None
    return gap


def bound_of(objective: Objective, made: dict[str, Any], *, intercept: bool) -> LowerBound:
    """Run the exchanges of a lower bound over all rows."""
    section = BatchGradient(**made["settings"], l2=objective.l2, intercept=intercept, scale="none")
    columns = Columns(n_columns=D, intercept=intercept)
    trainer = lower_bound_for(section, columns, None)
    answer: Any = None
    while True:
        try:
            request = trainer.send(answer)
        except StopIteration as end:
            return end.value
        assert isinstance(request, Exchange)
        arrays: dict[str, Any] = {
            "largest": made["X"].max(axis=0),
            "smallest": -made["X"].min(axis=0),
        }
        if "w" in request.model:
            value, penalty, gradient, _ = objective.at(np.array(request.model["w"]))
            total = objective.s.sum()
            arrays = {
                "loss": (value - penalty) * total,
                "gradient": gradient * total,
                "weight": total,
            }
        answer = type("Outcome", (), {"arrays": arrays})


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(LOSSES),
    st.floats(1.05, 1.95),
    st.sampled_from([1e-3, 0.1, 2.0]),
    st.booleans(),
    st.sampled_from([0.05, 1.0]),
)
def test_no_gap_is_below_the_true_one_and_it_vanishes_at_the_optimum(
    seed: int, loss: str, power: float, l2: float, intercept: bool, scale: float
) -> None:
    made = problem(seed, loss, power, scale)
    objective = Objective(made, l2, intercept=intercept)
    least, best = objective.minimise()
    bound = bound_of(objective, made, intercept=intercept)
    rng = np.random.default_rng(seed)
    directions = [rng.normal(size=best.size), np.eye(best.size)[-1]]
    for distance, direction in itertools.product((1.0, 0.3, 1e-2, 1e-4, 1e-6), directions):
        w = best + distance * direction
        value = objective.at(w)[0]
        assert learn(bound, objective, w) >= value - least - 1e-12 * max(1.0, abs(value))
    assert learn(bound, objective, best) <= 1e-10 * max(1.0, abs(least))


@pytest.mark.parametrize("loss", LOSSES)
def test_the_best_coefficients_of_a_wrong_intercept_are_not_certified_as_the_best(
    loss: str,
) -> None:
    """There the gradient of the coefficients is 0: the bound is what the intercept adds to it."""
    made = problem(5, loss, 1.5, 1.0)
    made["X"] += 2.0  # moving the intercept turns the gradient of the coefficients
    objective = Objective(made, 1e-3, intercept=True)
    least, best = objective.minimise()
    for distance in (-2.0, 1.0, 1e-2):
        bound = bound_of(objective, made, intercept=True)
        value, w = objective.minimise(intercept=best[-1] + distance)
        assert learn(bound, objective, w) >= value - least - 1e-12


def test_a_checkpoint_keeps_the_bound_and_the_constants_of_the_data() -> None:
    made = problem(3, "tweedie", 1.3, 1.0)
    objective = Objective(made, 0.1, intercept=True)
    bound = bound_of(objective, made, intercept=True)
    for point in (None, objective.minimise()[1]):
        if point is not None:
            learn(bound, objective, point)
        resume = Resume(values={"lower_bound": json.loads(json.dumps(bound.resume()))})
        section = BatchGradient(**made["settings"], l2=0.1, scale="none")
        again = lower_bound_for(section, Columns(n_columns=D, intercept=True), resume)
        with pytest.raises(StopIteration) as end:
            next(again)
        assert end.value.value == bound
    assert bound.value > 0.0


@pytest.mark.parametrize("phase", ["curvature", "probe"])
def test_a_bound_with_a_stand_in_for_lost_examples_is_none(phase: str) -> None:
    """Members with other targets vanish while the loss along the intercept is asked for."""
    rng = np.random.default_rng(0)
    X = 0.1 * rng.normal(size=(120, 2))
    y = rng.normal(size=120) + np.repeat([8.0, 0.0], 60)
    least = Reference(X=X, y=y, loss="huber", l2=0.5, has_intercept=True).least
    world = World(
        settings={"loss": "huber", "l2": 0.5, "tolerance": 1e-12, "scale": "none"}
        | {"optimizer": "tron", "intercept": True},
        parts=split_rows(X, y, 6, chunk_rows=10),
        algorithm="batch_gradient",
        absent="auto",
        schedule=[Vanish(round=1, members=(3, 4, 5), during=phase), Return(round=3)],
    )
    run = world.run(30)
    assert any(row.gap is None for row in run.rows)
    for row in run.rows:
        assert row.gap is None or row.objective - least <= row.gap + 1e-9
    assert run.model.gap <= 1e-9
