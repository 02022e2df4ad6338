"""The lasso on real processes: kills leave the certified optimum, with scikit-learn's support."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from distributed import Client
from sklearn.linear_model import Lasso

import elasticml as em

pytestmark = pytest.mark.cluster

GAP, L1 = 1e-8, 0.05
MEMBERS, ROWS, COLUMNS = 3, 150, 240
_rng = np.random.default_rng(6)
X = _rng.normal(size=(ROWS, COLUMNS)) + _rng.normal(size=COLUMNS)
Y = X[:, :10] @ _rng.normal(size=10) + 0.3 * _rng.normal(size=ROWS) + 2.0


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    with (
        em.LocalCluster(MEMBERS, workers_max=MEMBERS) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def fitted(client: Client, name: str, **changes: Any) -> tuple[em.Result, list[dict[str, Any]]]:
    """Run a job to its gap, over chunks of a few columns."""
    job = em.Job(
        em.PrimalCoCoA(l1=L1),
        em.from_arrays(X, Y, by="columns"),
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
    # As the evaluator reads it from the data again.
    assert result.history[-1]["objective_full"] == pytest.approx(result.summary["objective"])
    np.testing.assert_array_equal(result.model.coef_[0] != 0.0, best.coef_ != 0.0)
    np.testing.assert_allclose(result.model.coef_[0], best.coef_, atol=1e-4)
    np.testing.assert_allclose(result.model.predict(X), best.predict(X), atol=1e-3)


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


def test_with_frozen_columns_a_job_goes_on_until_they_are_back(client: Client) -> None:
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
        em.Job(em.PrimalCoCoA(l1=L1), em.from_arrays(X, Y)).start(client)
    columns = em.from_arrays(X, Y, by="columns")
    with pytest.raises(em.ConfigError, match="cocoa works on rows"):
        em.Job(em.CoCoA(loss="squared"), columns).start(client)
