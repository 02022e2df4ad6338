"""``stop.seconds`` on stock clusters: without workers, and after all of them are gone.

When such jobs end is asserted in virtual time: ``tests/sim/test_moments.py``.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import elasticml as em
from elasticml.report.status import JobStatus
from tests.stock_cluster import stock_cluster
from tests.waiting import until

pytestmark = pytest.mark.cluster

_rng = np.random.default_rng(3)
DATA = em.from_arrays(_rng.normal(size=(600, 12)), np.sign(_rng.normal(size=600)))


def job(start: int, seconds: float) -> em.Job:
    # Noise, nearly without a penalty: the gap does not become zero before the time is over.
    solver = em.CoCoA(loss="hinge", l2=1e-9, intercept=False, tolerance=0.0, scale="none")
    return em.Job(solver, DATA, members=em.Members(start=start), stop=em.Stop(seconds=seconds))


def waiting(handle: em.Handle) -> JobStatus:
    """Return the first status that says what is waited for."""

    def told() -> JobStatus | None:
        status = handle.status()
        return status if status.waiting is not None or status.is_over else None

    return until(told, "a status that says what is waited for")


@pytest.mark.slow
def test_a_job_ends_in_time_on_an_empty_cluster_and_after_all_workers_are_gone(
    tmp_path: Path,
) -> None:
    with stock_cluster(tmp_path) as cluster, cluster.client() as client:
        handle = job(2, 4.0).start(client)
        empty = waiting(handle).waiting
        assert empty is not None
        assert (empty.what, empty.have, empty.need) == ("members", 0, 2)
        assert "no worker is connected" in empty.remedy
        with pytest.raises(em.NotEnoughMembersError, match="0 of 2 members") as raised:
            handle.result()
        assert raised.value.need == 2

        for name in ("a", "b"):
            cluster.worker(name, "--no-nanny")
        cluster.await_workers(client, 2)
        handle = job(2, 30.0).start(client)
        remedies = []
        for record in handle:
            if record["event"] == "RoundEnded" and record["round"] == 3:
                for name in ("a", "b"):
                    os.kill(cluster.processes[name].pid, signal.SIGKILL)
            if record["event"] == "Waiting" and (record["what"], record["have"]) == ("members", 0):
                remedies.append(record["remedy"])
        assert any("no worker is connected" in remedy for remedy in remedies)
        result = handle.result()
        assert result.summary["stopped_by"] == "30 seconds"
