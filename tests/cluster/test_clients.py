"""What a job runs on: a client, a cluster, an address, the current client; and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

import elasticml as em
from elasticml.errors import ConfigError
from elasticml.jobs import cluster_client
from elasticml.jobs.handle import jobs_on
from tests.waiting import until

pytestmark = pytest.mark.cluster

STOP = em.Stop(rounds=3)
FOREVER = em.Stop(rounds=10**9)


def job(stop: em.Stop = STOP) -> em.Job:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    rows = em.from_arrays(X, np.sign(X[:, 0] + rng.normal(size=200)))
    return em.Job(em.CoCoA(loss="hinge", tolerance=0), rows, stop=stop)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None
    ) as made:
        yield made


def test_a_job_runs_on_what_names_a_cluster(cluster: LocalCluster, tmp_path: Any) -> None:
    address = cluster.scheduler_address
    with Client(cluster, set_as_default=False) as client:
        for target in (client, cluster, address):
            assert job().run(target).summary["rounds"] == 3
            handle = job().start(target)
            assert em.Job.attach(target, handle.job_id).result().summary["rounds"] == 3
        model = em.LinearSVC(client=cluster).fit(np.array([[1.0], [2], [3], [4]]), [0, 0, 1, 1])
        assert model.classes_.tolist() == [0, 1]
        with client.as_current():
            handle = job().start()
            assert em.Job.attach(handle.job_id).result().summary["rounds"] == 3
            with pytest.raises(ConfigError, match="no readable checkpoint"):
                em.Job.resume(tmp_path)


def test_faults_on_a_cluster_of_others_are_refused(cluster: LocalCluster) -> None:
    made = em.Job(em.CoCoA(), job().source, faults=[{"round": 1, "lose": 1}])
    with pytest.raises(ConfigError, match=r"cluster\.kind: local"):
        made.start(cluster)


def test_elasticmls_own_cluster_is_a_target() -> None:
    cluster = em.LocalCluster(workers=1, algorithms=["cocoa"])
    with pytest.raises(ConfigError, match="start"):
        job().run(cluster)
    with cluster:
        assert job().run(cluster).summary["rounds"] == 3


def test_what_is_no_cluster_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_client, "CONNECT_S", 1)
    with pytest.raises(ConfigError, match=r"client: this process has none, wanted one; give a"):
        job().run()
    with pytest.raises(ConfigError, match=r"client: got 5, wanted a distributed\.Client, a clu"):
        job().run(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"client: no scheduler answers at 'tcp://127\.0\.0"):
        job().start("tcp://127.0.0.1:9")


def test_an_asynchronous_client_is_awaited(cluster: LocalCluster, tmp_path: Any) -> None:
    async def use() -> None:
        async with Client(cluster.scheduler_address, asynchronous=True) as client:
            result = await job().run(client, progress=True, run_dir=tmp_path / "run")  # type: ignore[misc]
            assert result.summary["rounds"] == 3
            handle: Any = await job().start()  # type: ignore[misc]
            assert [record["event"] async for record in handle][-1] == "JobEnded"
            assert (await handle.status()).state == "done"
            again: Any = await em.Job.attach(client, handle.job_id)  # type: ignore[misc]
            assert (await again.result()).summary["job"] == handle.job_id
            with pytest.raises(ConfigError, match="no readable checkpoint"):
                await em.Job.resume(tmp_path)  # type: ignore[misc]
            with pytest.raises(ConfigError, match=r"await asyncio\.to_thread\(model\.fit"):
                em.LinearSVC(client=client).fit(np.eye(2), [0, 1])

    asyncio.run(use())


def test_a_cancelled_wait_cancels_the_job(cluster: LocalCluster, tmp_path: Any) -> None:
    async def use() -> None:
        async with Client(cluster.scheduler_address, asynchronous=True) as client:
            running = asyncio.create_task(
                job(FOREVER).run(client, run_dir=tmp_path / "run")  # type: ignore[arg-type]
            )
            history = tmp_path / "run" / "history.csv"
            # Before a round has ended there is nothing to keep.
            while not history.exists() or history.read_text().count("\n") < 2:
                await asyncio.sleep(0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(use())
    assert (tmp_path / "run" / "summary.json").exists()
    with Client(cluster.scheduler_address, set_as_default=False) as client:
        until(lambda: jobs_on(client)[0]["state"] == "cancelled", "the job's end")
