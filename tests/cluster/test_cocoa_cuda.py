"""CoCoA on real worker processes that use numba's simulator as their GPU."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import Client

import elasticml as em

pytestmark = pytest.mark.cluster


@pytest.mark.slow
def test_workers_with_a_gpu_solve_on_it_and_report_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    X = rng.normal(size=(24, 3))
    data = em.from_arrays(X, X @ rng.normal(size=3))
    job = em.Job(
        em.CoCoA(
            loss="squared", l2=1.0, device="cuda", intercept=False, tolerance=0.0, scale="none"
        ),
        data,
        name="cuda",
        chunk_size=512,
        stop=em.Stop(rounds=60, gap=1e-3),
    )
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with em.LocalCluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        result = job.run(client)
    assert result.summary["gap"] <= 1e-3
    rounds = result.summary["rounds"]
    assert result.summary["cuda_rounds"] == rounds > 0
    assert [row["on_cuda"] for row in result.history[:rounds]] == [24.0] * rounds
