"""Batch gradients from start to end: scaling, stopping rules and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from elasticml.errors import JobFailedError
from tests.serial_world import Return, Run, Vanish, World, split_rows

RNG = np.random.default_rng(8)
X = RNG.normal(size=(120, 5)) * [1.0, 3.0, 0.2, 1.0, 1.0] + [0.0, 2.0, 1.0, 0.0, 0.0]
SIGNAL = X @ [0.5, -0.4, 2.0, 0.0, 1.0] + RNG.normal(size=120)
Y = np.where(SIGNAL > 1.5, 7.0, 3.0)
L2 = 0.02


def train(y: np.ndarray = Y, rounds: int = 3000, **settings: Any) -> Run:
    schedule = settings.pop("schedule", ())
    world = World(
        settings={"l2": L2, "tolerance": 1e-9, "optimizer": "gd", **settings},
        parts=split_rows(X, y, 4, chunk_rows=10),
        schedule=schedule,
    )
    return world.run(rounds)


def solution(run: Run) -> np.ndarray:
    assert run.model.converged, run.model.reason
    return np.append(run.model.arrays["coef"][0], run.model.arrays["intercept"])


@pytest.mark.parametrize("intercept", [True, False])
def test_auto_scales_all_columns_but_binary_ones(intercept: bool) -> None:
    seconds = 1.7e9 + np.floor(50.0 * RNG.normal(size=120))
    table = np.column_stack([X[:, :3], seconds, X[:, 0] > 0.0, np.full(120, 3.0)])
    away = table - table.mean(axis=0) if intercept else table
    sizes = np.sqrt((away**2).mean(axis=0))
    scaled = np.where([1, 1, 1, 1, 0, 1], away / np.where(sizes > 0.0, sizes, 1.0), table)
    model = Ridge(alpha=L2 * 120, tol=1e-14, fit_intercept=intercept).fit(scaled, SIGNAL)
    job = {"l2": L2, "loss": "squared", "scale": "auto", "intercept": intercept}
    world = World(
        settings={**job, "tolerance": 1e-9}, parts=split_rows(table, SIGNAL, 4, chunk_rows=10)
    )
    run = world.run(200)
    coef, offset = run.model.arrays["coef"][0], run.model.arrays["intercept"][0]
    np.testing.assert_allclose(table @ coef + offset, model.predict(scaled), atol=1e-5)
    assert intercept or offset == 0.0
    residuals = SIGNAL - model.predict(scaled)
    objective = 0.5 * (residuals @ residuals / 120 + L2 * model.coef_ @ model.coef_)
    assert run.model.objective == pytest.approx(objective, rel=1e-9)


def test_the_default_step_size_is_safe() -> None:
    for scale in ("none", "standard"):
        run = train(step="constant", scale=scale, intercept=True, rounds=40)
        objectives = [row.objective for row in run.rows]
        assert np.all(np.diff(objectives) < 0)


def test_a_job_without_a_tolerance_ends_when_its_gradient_is_small() -> None:
    run = train(tolerance=None, optimizer="lbfgs", intercept=True)
    assert run.model.converged
    assert len(run.rows) < 100
    assert run.model.reason == (
        "gradient norm <= 1e-06 of the first, the default of algorithm.tolerance"
    )


def test_convergence_is_declared_only_when_no_example_is_absent() -> None:
    schedule = (Vanish(round=5, members=(1,)), Return(round=60))
    run = train(schedule=schedule, tolerance=1e-4, optimizer="lbfgs")
    assert 60 < len(run.rows) < 100
    assert run.model.converged
    assert run.model.reason == "gradient norm <= 0.0001 of the first"


def test_a_stopped_run_reports_its_final_objective() -> None:
    for settings in ({}, {"step": "constant", "step_size": 0.05}):
        run = train(rounds=4, **settings)
        w = np.append(run.model.arrays["coef"][0], 0.0)
        y = np.where(Y == 7.0, 1.0, -1.0)
        expected = np.logaddexp(0, -y * (X @ w[:5])).mean() + L2 / 2 * w @ w
        assert run.model.objective == pytest.approx(expected, rel=1e-12)
        assert not run.model.converged


def test_a_run_that_is_stopped_while_examples_are_absent_has_no_exact_objective() -> None:
    for settings in ({}, {"step": "constant", "step_size": 0.05}):
        run = train(rounds=4, schedule=(Vanish(round=2, members=(1,)),), **settings)
        kept = run.model.kept
        assert run.model.objective == (None if kept is None or kept.is_bound else kept.objective)


def test_a_diverging_step_is_an_error_that_names_the_remedy() -> None:
    with pytest.raises(JobFailedError, match=r"lower algorithm\.step_size"):
        train(y=SIGNAL, loss="squared", step="constant", step_size=1e3, rounds=500)


def test_a_line_search_without_possible_gain_ends_the_run() -> None:
    run = train(tolerance=0.0, rounds=3000, scale="standard")
    assert len(run.rows) < 3000
    assert run.model.reason.startswith("no step lowers the objective")
    gradient = run.rows[-1].extra["gradient_norm"]
    assert gradient < 1e-13
