"""Sparse models on real processes: kills leave the certified optimum, and its support."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from distributed import Client
from sklearn.linear_model import Lasso, LogisticRegression

import elasticml as em

pytestmark = pytest.mark.cluster

GAP, L1 = 1e-8, 0.05
MEMBERS, ROWS, COLUMNS = 3, 150, 240
_rng = np.random.default_rng(6)
X = _rng.normal(size=(ROWS, COLUMNS)) + _rng.normal(size=COLUMNS)
Y = X[:, :10] @ _rng.normal(size=10) + 0.3 * _rng.normal(size=ROWS) + 2.0
CLASSES = np.where(np.median(Y) < Y, 7.0, 3.0)


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    with (
        em.LocalCluster(MEMBERS, workers_max=MEMBERS) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def fitted(
    client: Client, name: str, loss: Any = "squared", gather: bool = False, **changes: Any
) -> tuple[em.Result, list[dict[str, Any]]]:
    """Run a job to its gap, over chunks of a few columns."""
    job = em.Job(
        em.PrimalCoCoA(loss=loss, l1=L1, gather=gather, tolerance=0.0),
        em.from_arrays(X, Y if loss == "squared" else CLASSES, by="columns"),
        name=name,
        stop=em.Stop(gap=GAP, rounds=2000),
        chunk_size=8 * 1024,
        **changes,
    )
    handle = job.start(client)
    return handle.result(), list(handle)


def assert_is_optimal(result: em.Result) -> None:
    best = Lasso(alpha=L1, tol=1e-14, max_iter=100_000).fit(X, Y)
    error = Y - best.predict(X)
    optimum = 0.5 * float(np.mean(error**2)) + L1 * float(np.abs(best.coef_).sum())
    assert result.summary["gap"] <= GAP
    assert optimum - 1e-12 <= result.summary["objective"] <= optimum + GAP
    # As the evaluator reads it from the data.
    assert result.history[-1]["objective_full"] == pytest.approx(result.summary["objective"])
    np.testing.assert_array_equal(result.model.coef_[0] != 0.0, best.coef_ != 0.0)
    np.testing.assert_allclose(result.model.coef_[0], best.coef_, atol=1e-4)
    np.testing.assert_allclose(result.model.predict(X), best.predict(X), atol=1e-3)


def assert_is_optimal_classifier(result: em.Result) -> None:
    best = LogisticRegression(C=1.0 / (L1 * ROWS), l1_ratio=1.0, solver="saga", tol=1e-12)
    best.set_params(max_iter=100_000).fit(X, CLASSES)
    losses = np.logaddexp(0.0, np.where(CLASSES == 7.0, -1.0, 1.0) * best.decision_function(X))
    optimum = float(losses.mean()) + L1 * float(np.abs(best.coef_).sum())
    assert result.summary["gap"] <= GAP
    assert optimum - 1e-9 <= result.summary["objective"] <= optimum + GAP
    assert result.history[-1]["objective_full"] == pytest.approx(result.summary["objective"])
    np.testing.assert_array_equal(result.model.coef_ != 0.0, np.abs(best.coef_) > 1e-7)
    np.testing.assert_allclose(result.model.coef_, best.coef_, atol=1e-3)
    np.testing.assert_array_equal(result.model.classes_, [3.0, 7.0])
    accuracy = float((result.model.predict(X) == CLASSES).mean())
    assert result.summary["train"]["accuracy"] == pytest.approx(accuracy)


#: The round after which members are no longer needed comes later without gathering.
CASES = [
    ("logistic", False, 3),
    pytest.param("logistic", True, 1, marks=pytest.mark.slow),
    ("squared", True, 1),
]


@pytest.mark.parametrize(("loss", "gather", "round"), CASES)
@pytest.mark.parametrize("phase", ["broadcast", "compute", "reduce", "apply"])
def test_a_model_is_optimal_whenever_a_member_is_killed(
    client: Client, phase: str, loss: str, gather: bool, round: int
) -> None:
    faults = [
        {"round": round, "lose": 1, "how": "kill", "phase": phase},
        {"round": round + 1, "return": 1},
    ]
    name = f"{loss}-{phase}-{gather}"
    result, story = fitted(client, name, loss, gather, faults=faults, holders=1)
    lost = [record for record in story if record["event"] == "MemberLost"]
    last = [record for record in story if record["event"] == "ExchangeEnded"][-1]
    assert (len(lost), last["examples"], last["absent_examples"]) == (1, COLUMNS + 1, 0)
    (assert_is_optimal if loss == "squared" else assert_is_optimal_classifier)(result)


@pytest.mark.parametrize("holders", [1, 2])
@pytest.mark.parametrize("phase", ["broadcast", "compute", "reduce", "apply", "move"])
def test_a_killed_member_s_columns_are_taken_over(client: Client, phase: str, holders: int) -> None:
    faults = [
        {"round": 3, "lose": 1, "how": "kill", "phase": phase},
        {"round": 5, "return": 1},
    ]
    result, story = fitted(client, f"kill-{phase}-{holders}", faults=faults, holders=holders)
    lost = [record for record in story if record["event"] == "MemberLost"]
    last = [record for record in story if record["event"] == "ExchangeEnded"][-1]
    assert (len(lost), last["examples"], last["absent_examples"]) == (1, COLUMNS + 1, 0)
    assert_is_optimal(result)


def test_with_frozen_columns_a_job_continues_until_they_return(client: Client) -> None:
    faults = [
        {"round": 2, "lose": 1, "how": "kill", "phase": "compute"},
        {"round": 6, "return": 1},
    ]
    result, story = fitted(client, "freeze", faults=faults, absent="freeze", holders=1)
    absent = {r["round"] for r in story if r["event"] == "RoundEnded" and r["absent_examples"]}
    assert {3, 4, 5} <= absent
    assert_is_optimal(result)


def test_data_by_rows_are_refused_before_anything_starts(client: Client) -> None:
    with pytest.raises(em.ConfigError, match=r"data: format arrays is by rows.*by='columns'"):
        em.Job(em.PrimalCoCoA(l1=L1, tolerance=0.0), em.from_arrays(X, Y)).start(client)
    columns = em.from_arrays(X, Y, by="columns")
    with pytest.raises(em.ConfigError, match="cocoa works on rows"):
        em.Job(
            em.CoCoA(loss="squared", intercept=False, tolerance=0.0, scale="none"), columns
        ).start(client)
