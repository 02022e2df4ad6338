"""Validation while training on real processes: SIGKILL in a round, returns, the report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed import Client

import elasticml as em
from elasticml.data.validation import held_out_rows

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(11)
N, D = 1200, 60
X = RNG.normal(size=(N, D))
Y = np.sign(X[:, 0] + 1.5 * RNG.normal(size=N))
DATA = em.from_arrays(X, Y)
COLUMN = "validation_neg_log_loss"


def scores(result: Any) -> list[float | None]:
    return [row.get(COLUMN) for row in result.history[:-1]]


@pytest.mark.slow
def test_a_killed_member_costs_scores_but_never_bends_one(tmp_path):
    def run(client: Client, name: str, **changes: Any) -> Any:
        job = em.Job(
            em.BatchGradient(l2=1e-8, intercept=False, tolerance=0.0, scale="none"),
            DATA,
            name=name,
            stop=em.Stop(rounds=30),
            chunk_size=16384,
            **changes,
        )
        return job.run(client, run_dir=tmp_path / name)

    whole = em.Validate(share=0.25, patience=0)
    with em.LocalCluster(3) as cluster, Client(cluster, set_as_default=False) as client:
        still = run(client, "still", validate=whole)
        faults = [
            {"round": 4, "lose": 1, "how": "kill", "phase": "compute"},
            {"round": 9, "return": 1},
        ]
        killed = run(client, "killed", validate=whole, faults=faults)
        stopped = run(client, "stopped", validate=em.Validate(share=0.25, patience=3))
        cancelled = cancel_after(client, 24)
    full, disturbed = scores(still), scores(killed)
    total = still.summary["validation"]["rows"]
    assert killed.summary["lost"] >= 1
    assert disturbed[1:4] == pytest.approx(full[1:4])
    assert disturbed[5:9] == [None] * 4
    assert killed.summary["validation"]["withheld"] >= 1
    rows = {row["validation_rows"] for row in killed.history if row.get(COLUMN) is not None}
    assert rows == {total}
    assert None not in disturbed[11:]
    # The best model is the one that is returned, also by the run that ended early.
    exact = [row["objective_full"] for row in still.history if row.get("objective_full")]
    assert still.summary["objective"] == pytest.approx(exact[-1], rel=1e-9)
    best = max(score for score in full if score is not None)
    assert still.summary["validation"]["score"] == best
    assert stopped.summary["validation"]["score"] == pytest.approx(best)
    assert stopped.summary["rounds"] == full.index(best) + 4 < still.summary["rounds"]
    assert "has not improved in 3 scores" in stopped.summary["stopped_by"]
    assert "Validation neg log loss by round" in (tmp_path / "stopped/report.html").read_text()
    kept = cancelled.summary["validation"]
    assert kept["score"] == pytest.approx(best)
    assert cancelled.summary["rounds"] >= 24 > kept["round"]
    np.testing.assert_allclose(cancelled.model.coef_, stopped.model.coef_, rtol=1e-6)


def cancel_after(client: Client, rounds: int) -> Any:
    algorithm, rule = (
        em.BatchGradient(l2=1e-8, tolerance=0.0, scale="none"),
        em.Validate(share=0.25, patience=0),
    )
    stop = em.Stop(rounds=100_000)
    handle = em.Job(algorithm, DATA, validate=rule, chunk_size=16384, stop=stop).start(client)
    for record in handle:
        if record["event"] == "RoundEnded" and record["round"] >= rounds:
            handle.cancel()
    return handle.result()


def test_members_without_barriers_and_members_of_columns_are_validated(tmp_path):
    algorithm = em.AsyncSGD("linear", batch=16, rate=0.1, report_every=0.05, scale="none")
    rule = em.Validate(share=0.25, patience=2, min_delta=0.05)
    with em.LocalCluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        job = em.Job(algorithm, DATA, validate=rule, chunk_size=16384, stop=em.Stop(seconds=60))
        result = job.run(client, run_dir=tmp_path / "free")
        lasso = em.Job(
            em.PrimalCoCoA(l1=1e-4, loss="logistic"),
            em.from_arrays(X, Y, by="columns"),
            validate=em.Validate(share=0.25, patience=3),
            chunk_size=65536,
        )
        owners = lasso.run(client, run_dir=tmp_path / "columns")
    kept = result.summary["validation"]
    assert kept["score"] == max(score for score in scores(result) if score is not None)
    assert "has not improved in 2 scores" in result.summary["stopped_by"]
    assert result.summary["examples"] + kept["rows"] == N
    kept = owners.summary["validation"]
    held = held_out_rows(0, 0, N, 0.25)
    assert kept["rows"] == held.sum()
    margins = Y[held] * owners.model.decision_function(X[held])
    assert kept["score"] == pytest.approx(-np.logaddexp(0.0, -margins).mean())
