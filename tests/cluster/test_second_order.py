"""Batch gradient on real processes: workers are killed, and what that may change in the model."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from distributed import Client
from sklearn.linear_model import LogisticRegression

import elasticml as em

pytestmark = pytest.mark.cluster

MEMBERS, ROWS, L2 = 5, 2000, 1e-4
_rng = np.random.default_rng(9)
X = _rng.normal(size=(ROWS, 15)) * np.geomspace(1.0, 20.0, 15)
Y = np.where(
    X @ (_rng.normal(size=15) / np.geomspace(1.0, 20.0, 15)) > _rng.normal(size=ROWS), 1, 0
)


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    with em.LocalCluster(MEMBERS) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def least() -> float:
    """Return scikit-learn's optimal objective."""
    model = LogisticRegression(C=1 / (L2 * ROWS), fit_intercept=False, tol=1e-12)
    w = model.set_params(solver="newton-cholesky").fit(X, Y).coef_[0]
    return float(np.logaddexp(0.0, -(2 * Y - 1) * (X @ w)).mean() + L2 / 2 * w @ w)


@pytest.mark.parametrize("absent", ["auto", "taylor"])
@pytest.mark.parametrize("optimizer", ["lbfgs", "tron", "newton"])
def test_killed_workers_do_not_change_the_optimum(
    client: Client, optimizer: str, absent: Any
) -> None:
    faults = [
        {"round": 1, "lose": 1, "how": "kill", "phase": "compute"},
        {"round": 3, "lose": 1, "how": "kill", "phase": "reduce"},
        {"round": 12, "return": 2},
    ]
    job = em.Job(
        em.BatchGradient(l2=L2, optimizer=optimizer, tolerance=1e-8, intercept=False, scale="none"),
        em.from_arrays(X, Y),
        name=f"{optimizer}-{absent}",
        absent=absent,
        stop=em.Stop(rounds=300),
        faults=faults,
        chunk_size="16 KiB",
    )
    handle = job.start(client)
    lost = [record for record in handle if record["event"] == "MemberLost"]
    summary = handle.result().summary
    assert len(lost) == 2
    assert summary["converged"], summary
    assert summary["rounds"] > 12, "convergence is declared when all members are back"
    assert abs(summary["objective"] / least() - 1.0) < 1e-8


def objective(coef: Any) -> float:
    w = np.asarray(coef)[0]
    return float(np.logaddexp(0.0, -(2 * Y - 1) * (X @ w)).mean() + L2 / 2 * w @ w)


def test_four_of_five_workers_killed_for_good_leave_the_best_model_that_is_known(
    client: Client,
) -> None:
    """The tangents of the absent examples alone would let the model run away.

    Each worker has other rows than the others, so that the survivor's curvature is no help.
    """
    order = np.argsort(np.abs(X[:, -1]))
    handle = em.Job(
        em.BatchGradient(l2=L2, optimizer="gd", intercept=False, tolerance=0.0, scale="none"),
        em.from_arrays(X[order], Y[order]),
        absent="taylor",
        stop=em.Stop(rounds=80),
        faults=[{"round": 5, "lose": 4, "how": "kill"}],
        evaluate=em.Evaluate(every=1),
        chunk_size="16 KiB",
    ).start(client)
    (kept,) = [record for record in handle if record["event"] == "EarlierModelKept"]
    result = handle.result()
    assert result.summary["lost"] >= 4
    assert result.summary["model_round"] == kept["round"]
    assert any("the model is that with which round" in note for note in result.summary["notes"])
    exact = {row["round"]: row["objective_full"] for row in result.history[:-1]}
    assert result.summary["objective"] <= exact[5] * (1 + 1e-12)
    assert result.summary["objective"] == pytest.approx(objective(result.arrays["coef"]), rel=1e-9)
    assert kept["objective"] >= result.summary["objective"] - 1e-12
