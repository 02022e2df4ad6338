"""Members are killed and replaced, and each algorithm still finds the optimum and certifies it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Lasso, LogisticRegression

import elasticml as em
from elasticml.sim.simulation import SimResult, simulate
from tests.reference import SETTINGS, Reference
from tests.unit.algorithms.linear import test_jobs as jobs
from tests.unit.algorithms.linear.test_jobs import L2, ROWS, X

MEMBERS = 4
KILLS = [
    {"round": 1, "lose": 1, "how": "kill", "phase": "compute"},
    {"round": 2, "lose": 1, "how": "kill", "phase": "reduce"},
    {"round": 3, "lose": 1, "how": "kill", "phase": "compute"},
    {"round": 4, "return": 3},
]


def fitted(
    algorithm: Any, data: Any, faults: Sequence[Any] = KILLS, size: int = 1024, **settings: Any
) -> SimResult:
    """Play a job to its tolerance; check that its members were lost and no example was."""
    settings |= {"faults": faults, "chunk_size": size, "stop": em.Stop(rounds=3000)}
    job = em.Job(algorithm, data, **settings)
    result = simulate(job.record("killed", MEMBERS), data, check_every_event=True)
    assert (result.error, result.summary["converged"]) == (None, True)
    assert result.summary["lost"] == sum(f.get("lose", 0) for f in faults)
    assert result.rows[-1]["absent_examples"] == 0
    return result


def check(result: SimResult, w: Any, objective: float) -> None:
    """Compare with a second implementation; the objective is strongly convex."""
    gap = result.summary.get("gap") or 0.0
    assert result.summary["objective"] == pytest.approx(objective, rel=1e-8)
    np.testing.assert_allclose(result.arrays["coef"], w, atol=max(1e-6, (2.0 * gap / L2) ** 0.5))


@pytest.mark.parametrize(
    ("name", "algorithm", "absent"),
    [
        ("huber", "cocoa", "reload"),
        ("quantile", "tron", "taylor"),
        ("poisson", "lbfgs", "auto"),
        ("gamma", "newton", "taylor"),
    ],
)
def test_three_kills_do_not_change_the_optimum(name: str, algorithm: Any, absent: Any) -> None:
    y, settings = jobs.TARGETS[name], {**SETTINGS.get(name, {}), "l2": L2}
    settings |= {"loss": name, "intercept": False, "scale": "none"}
    if algorithm == "cocoa":
        made: Any = em.CoCoA(**settings, tolerance=1e-12)
    else:
        made = em.BatchGradient(**settings, optimizer=algorithm, tolerance=1e-10)
    result = fitted(made, em.from_arrays(X, y), absent=absent)
    reference = Reference(X=X, y=y, loss=name, l2=L2)
    check(result, reference.best[0][None], reference.least)
    if algorithm == "cocoa":
        assert 0.0 <= result.summary["gap"] <= 1e-12


@pytest.mark.parametrize("algorithm", ["lbfgs", "cocoa"])
def test_three_kills_do_not_change_the_optimum_of_several_classes(algorithm: Any) -> None:
    settings: Any = {**jobs.OF_CLASSES, "intercept": False, "scale": "none"}
    data = em.from_arrays(X, jobs.CLASSES, jobs.S)
    if algorithm == "cocoa":
        result = fitted(em.CoCoA(loss="logistic", **settings, tolerance=4e-12), data)
        assert 0.0 <= result.summary["gap"] <= 4e-12
        check(result, *jobs.each_against_rest("logistic"))
        return
    result = fitted(em.BatchGradient(**settings, optimizer=algorithm, tolerance=1e-10), data)
    reference, objective = jobs.multinomial(fit_intercept=False)
    check(result, reference.coef_, objective)


def test_three_kills_do_not_change_the_optimum_with_an_offset() -> None:
    made = em.CoCoA(loss="logistic", l2=L2, offset=1, tolerance=1e-12, scale="none")
    result = fitted(made, em.from_arrays(X, jobs.SIGNS))
    here = em.LogisticRegression(C=1.0 / (L2 * ROWS), fit_intercept=False, tol=1e-13)
    here.fit(np.column_stack([X, np.ones(ROWS)]), jobs.SIGNS, offset=1)
    np.testing.assert_allclose(result.arrays["coef"], here.coef_[:, :-1], atol=1e-5)
    assert 0.0 <= result.summary["gap"] <= 1e-12


# --- columns ------------------------------------------------------------------------------------

L1, COLUMNS = 0.05, 240
RNG = np.random.default_rng(6)
WIDE = RNG.normal(size=(150, COLUMNS)) + RNG.normal(size=COLUMNS)
TARGET = WIDE[:, :10] @ RNG.normal(size=10) + 0.3 * RNG.normal(size=150) + 2.0
CLASSES = np.where(np.median(TARGET) < TARGET, 7.0, 3.0)


@cache
def sparse_reference(loss: str) -> tuple[Any, float]:
    """Return scikit-learn's coefficients and objective."""
    if loss == "squared":
        best: Any = Lasso(alpha=L1, tol=1e-14, max_iter=100_000, selection="random", random_state=0)
        best.fit(WIDE, TARGET)
        losses = 0.5 * (TARGET - best.predict(WIDE)) ** 2
    else:
        best = LogisticRegression(C=1.0 / (L1 * 150), l1_ratio=1.0, solver="saga", tol=1e-12)
        best.set_params(max_iter=100_000).fit(WIDE, CLASSES)
        losses = np.logaddexp(0, -np.sign(CLASSES - 5.0) * best.decision_function(WIDE))
    coef = np.atleast_2d(best.coef_)
    return coef, float(losses.mean() + L1 * np.abs(coef).sum())


@pytest.mark.parametrize(
    ("phase", "loss", "more"),
    [
        ("broadcast", "squared", {}),
        ("compute", "squared", {"absent": "freeze"}),
        ("move", "squared", {"holders": 2}),
        ("apply", "logistic", {"gather": True}),
        ("reduce", "logistic", {}),
    ],
)
def test_a_sparse_model_is_optimal_whenever_the_owner_of_columns_is_killed(
    phase: str, loss: Any, more: Any
) -> None:
    job = {"absent": "reload", "holders": 1, **more}
    # The round after which members are no longer needed comes early with gathering.
    gathers = job.pop("gather", False)
    at = 1 if gathers else 3
    faults = [{"round": at, "lose": 1, "how": "kill", "phase": phase}]
    faults += [{"round": at + 1, "return": 1}]
    y = TARGET if loss == "squared" else CLASSES
    result = fitted(
        em.PrimalCoCoA(loss=loss, l1=L1, gather=gathers, tolerance=5e-10),
        em.from_arrays(WIDE, y, by="columns"),
        faults,
        size=8192,
        **job,
    )
    coef, objective = sparse_reference(loss)
    gap = result.summary["gap"]
    assert 0.0 <= gap <= 1e-9 * result.rows[0]["objective"] + 1e-12
    assert objective - 1e-9 <= result.summary["objective"] <= objective + gap + 1e-9
    np.testing.assert_array_equal(result.arrays["coef"] != 0.0, np.abs(coef) > 1e-7)
    np.testing.assert_allclose(result.arrays["coef"], coef, atol=1e-3)
