"""Estimators on Dask collections while three of four stock workers get SIGKILL, one by one.

Dask's own ``LocalCluster`` with nannies: a worker that is killed comes back, empty. Partitions are
lazy, so that each worker can make each of them again.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.base import clone

import elasticml as em
from elasticml.jobs.handle import jobs_on, workers_of
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

MEMBERS, KILLS, PARTS, ROWS, COLUMNS = 4, 3, 8, 10_000, 20
#: Fits in which the kills may happen: a fast machine may end one before the third.
FITS_MAX = 10
W = np.random.default_rng(7).normal(size=COLUMNS) / 4.0


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    with (
        # Dask's cluster gives a killed worker up that is not back within 15 s: on a busy machine.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
        LocalCluster(
            n_workers=MEMBERS, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def part(seed: int) -> tuple[Any, Any, Any]:
    """Return rows, targets and weights of one partition."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, COLUMNS))
    y = rng.poisson(np.exp(X @ W + 0.3)).astype(float)
    return X, y, rng.integers(0, 4, ROWS).astype(float)


def collections() -> list[Any]:
    """Return lazy rows, targets and weights."""
    parts = [dask.delayed(part, nout=3)(seed) for seed in range(PARTS)]
    shapes = ((ROWS, COLUMNS), (ROWS,), (ROWS,))
    return [
        da.concatenate([da.from_delayed(one[k], shape, float) for one in parts])
        for k, shape in enumerate(shapes)
    ]


def is_in_a_round(client: Client) -> bool:
    """Whether a job has ended its first round, and works."""
    return any(job["state"] == "running" and (job["round"] or 0) >= 1 for job in jobs_on(client))


def kill_in_turn(client: Client, killed: list[str], ends: threading.Event) -> None:
    """Kill a worker whenever the fit works and all workers are there, until there are enough."""
    while len(killed) < KILLS and not ends.is_set():
        workers = workers_of(client)
        if len(workers) == MEMBERS and is_in_a_round(client):
            victim = sorted(workers)[len(killed)]
            pids = client.run(os.getpid, workers=[victim], on_error="ignore")
            os.kill(pids[victim], signal.SIGKILL)
            killed.append(victim)
            until(lambda gone=victim: gone not in workers_of(client), "the end of a killed worker")
        ends.wait(0.05)


def value_of(model: Any, rows: list[Any]) -> float:
    """Return an estimator's objective in units of the mean."""
    X, y, s = rows
    z = X @ model.coef_ + model.intercept_
    total, w = s.sum(), model.coef_
    return float(s @ (np.exp(z) - y * z) / total + 0.5 * model.alpha * w @ w)


def test_three_kills_do_not_change_a_model(client: Client, capsys: Any) -> None:
    model = em.PoissonRegressor(alpha=0.1, tol=1e-12)
    lazy = collections()
    rows = list(dask.compute(*lazy, scheduler="sync"))
    here = clone(model).fit(*rows)
    killed: list[str] = []
    for _ in range(FITS_MAX):
        until(lambda: len(workers_of(client)) == MEMBERS, "the return of all workers")
        ends = threading.Event()
        killer = threading.Thread(target=kill_in_turn, args=(client, killed, ends))
        killer.start()
        try:
            there = clone(model).set_params(client=client).fit(*lazy)
        finally:
            ends.set()
            killer.join()
        assert value_of(there, rows) == pytest.approx(value_of(here, rows), rel=1e-8)
        np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-4)
        if len(killed) == KILLS:
            break
    assert len(killed) == KILLS
    excess = value_of(there, rows) / value_of(here, rows) - 1.0
    with capsys.disabled():
        print(
            f"\n{type(model).__name__}: {len(killed)} kills, objective "
            f"{excess:+.1e} relative, coefficients {np.abs(there.coef_ - here.coef_).max():.1e}, "
            f"gap {there.dual_gap_:.1e}"
        )
