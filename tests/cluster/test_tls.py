"""A job on a cluster with TLS; no secret is in its run directory, its checkpoints or the logs."""

from __future__ import annotations

import gc
import logging
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security

import elasticml as em
from elasticml.runtime.member_agent import MemberAgent

pytestmark = pytest.mark.cluster


def keys_of_jobs() -> set[str]:
    """Return the keys that members of this process hold."""
    agents = [one for one in gc.get_objects() if isinstance(one, MemberAgent)]
    return {key for agent in agents if (key := vars(agent).get("key"))}


@pytest.mark.parametrize("transport", ["stream", pytest.param("shm", marks=pytest.mark.slow)])
def test_a_job_runs_with_tls_and_writes_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, transport: str
) -> None:
    caplog.set_level(logging.INFO)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 5))
    y = np.sign(X @ np.arange(1.0, 6.0))
    security = Security.temporary()
    keys = set[str]()
    job = em.Job(
        em.CoCoA(loss="squared_hinge", l2=1e-2),
        em.from_arrays(X, y),
        stop=em.Stop(rounds=200, gap=1e-6),
        collective=em.Collective(transport=transport),
        checkpoint={"path": str(tmp_path / "checkpoint"), "every": 0.0},
    )
    cluster = LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=False,
        protocol="tls",
        security=security,
        dashboard_address=":0",
    )
    with cluster, Client(cluster) as client:
        assert cluster.scheduler_address.startswith("tls://")
        result = job.run(
            client, run_dir=tmp_path / "run", callbacks=[lambda row: keys.update(keys_of_jobs())]
        )
    assert result.summary["gap"] <= 1e-6
    (key,) = keys
    secrets = [key, *security.tls_client_key.splitlines()[1:-1]]
    texts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    texts.append(caplog.text.encode())
    assert len(texts) > 5
    for secret in secrets:
        assert not any(secret.encode() in text for text in texts)
