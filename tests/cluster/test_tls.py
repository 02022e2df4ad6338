"""A job on a cluster with TLS; no secret is in its run directory or in the logs."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security

import elasticml as em
from elasticml.runtime import driver_agent

pytestmark = pytest.mark.cluster


def test_a_job_runs_with_tls_and_writes_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    keys: list[str] = []

    def token_hex(nbytes: int) -> str:
        keys.append(secrets.token_hex(nbytes))
        return keys[-1]

    monkeypatch.setattr(driver_agent, "token_hex", token_hex)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 5))
    y = np.sign(X @ np.arange(1.0, 6.0))
    security = Security.temporary()
    job = em.Job(
        em.BatchGradient(loss="logistic", l2=1e-2, tolerance=0, scale="none"),
        em.from_arrays(X, y),
        stop=em.Stop(rounds=5),
        collective=em.settings.Collective(transport="stream"),
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
        result = job.run(client, run_dir=tmp_path / "run")
    assert result.summary["rounds"] == 5
    (key,) = keys
    hidden = [key, *security.tls_client_key.splitlines()[1:-1]]
    texts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    texts.append(caplog.text.encode())
    assert any(b'"JobStarted"' in text for text in texts)
    for secret in hidden:
        assert not any(secret.encode() in text for text in texts)
