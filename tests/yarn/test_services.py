"""Jobs in YARN's containers: their reactions to pre-emption, kills and new containers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import elasticml as em
from tests.yarn_jobs import GAP, WAIT_S, Running, make_cluster

pytestmark = [pytest.mark.yarn, pytest.mark.slow]

MEMBERS = 6
#: What prod requests of the cluster's 12 GiB: more than is free, less than it is guaranteed.
PROD = 7
PROBLEM = {"l2": 1e-2, "intercept": False, "tolerance": 0.0, "scale": "none"}


@pytest.fixture(scope="module")
def cluster(skein_client: Any) -> Iterator[em.YarnCluster]:
    with make_cluster(skein_client, MEMBERS, name="services") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: em.YarnCluster) -> Iterator[Client]:
    with Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(MEMBERS, timeout=WAIT_S)
        yield client


def test_a_job_is_certified_while_containers_are_taken_and_gets_them_back(
    cluster: em.YarnCluster, client: Client, prod: Any
) -> None:
    # Shorter steps than necessary: the containers are taken long before the target gap.
    short = {"aggregation": "fixed", "sigma": 60.0}
    cocoa = em.CoCoA(loss="hinge", **PROBLEM, **short)
    job = Running(client, "preempted", algorithm=cocoa)
    job.until_whole(MEMBERS)
    prod.take(PROD)
    job.until_recorded("MemberLost")
    job.until_recorded("ContainerEnded")
    job.until_certified()
    assert job.is_whole
    prod.wait(PROD, WAIT_S)
    prod.give_back()
    job.until_whole(MEMBERS)
    last = job.stop()
    assert last["gap"] <= GAP
    assert (last["gap_is_bound"], last["absent_examples"]) == (False, 0)
    # Marked and taken, or released in place of a marked one; none has failed.
    assert {record["reason"] for record in job.of("ContainerEnded")} <= {"preempted", "released"}
    assert len(job.processes()) == MEMBERS + len(job.of("MemberLost"))


def test_a_job_continues_while_the_resource_manager_is_restarted(
    cluster: em.YarnCluster, client: Client, mini_yarn: Any
) -> None:
    job = Running(client, "restarted")
    job.until_whole(MEMBERS)
    mini_yarn.kill_resource_manager()
    job.until_whole(MEMBERS)
    mini_yarn.start_resource_manager()
    job.until_whole(MEMBERS)
    assert job.of("MemberLost") == []
    # The application has found the new one: it gets a container to replace a killed one.
    os.kill(job.processes()["3.1"], signal.SIGKILL)
    job.until_recorded("ContainerEnded")
    job.until_recorded("MemberLost")
    job.until_whole(MEMBERS)
    job.stop()
    [ended] = job.of("ContainerEnded")
    assert (ended["reason"], ended["status"]) == ("killed", 128 + signal.SIGKILL)
    assert len(set(job.processes().values())) == MEMBERS + 1


def test_no_secret_is_in_a_run_or_in_a_log(
    cluster: em.YarnCluster, client: Client, mini_yarn: Any, tmp_path: Path
) -> None:
    def keys_of(dask_worker: Any, job: str) -> list[str]:
        # Defined here, because the containers cannot import the tests.
        hosts = [plugin.host for plugin in dask_worker.plugins.values() if hasattr(plugin, "host")]
        return [host.agents[job].key for host in hosts]

    X = np.random.default_rng(0).normal(size=(600, 5))
    job = em.Job(
        em.BatchGradient(loss="logistic", l2=1e-2, tolerance=0.0, optimizer="gd", scale="none"),
        em.from_arrays(X, np.sign(X[:, 0])),
        stop=em.Stop(rounds=10**6),
        checkpoint=em.settings.Checkpoint(path=str(tmp_path / "checkpoint"), every=0.1),
    )
    handle = job.start(client, run_dir=tmp_path / "run")
    story = iter(handle)
    next(record for record in story if record["event"] == "CheckpointWritten")
    job_keys = {key for keys in client.run(keys_of, job=handle.job_id).values() for key in keys}
    handle.cancel()
    handle.result().save(tmp_path / "saved")
    security = cluster.security
    assert security is not None
    assert security.tls_client_key is not None
    private = security.tls_client_key.splitlines()[1].encode()
    # An application's folder on a node has the private key until the application ends.
    places = [path for root in (tmp_path, mini_yarn.root) for path in root.rglob("*")]
    texts = {path: path.read_bytes() for path in places if path.is_file()}
    assert any(b'"JobStarted"' in text for text in texts.values())
    assert any(path.name == "dask.worker.log" for path in texts)
    assert len(job_keys) == 1
    for key in job_keys:
        assert [path for path, text in texts.items() if key.encode() in text] == []
    holders = [path for path, text in texts.items() if private in text]
    assert {path.name for path in holders if "blk_" not in path.name} == {".skein.pem"}
    for path in holders:
        if path.name == ".skein.pem":
            assert path.stat().st_mode & 0o077 == 0


def test_a_job_follows_when_the_cluster_is_scaled(cluster: em.YarnCluster, client: Client) -> None:
    job = Running(client, "scaled")
    job.until_whole(MEMBERS)
    cluster.scale(MEMBERS - 2)
    job.until_whole(MEMBERS - 2)
    cluster.scale(MEMBERS)
    job.until_whole(MEMBERS)
    job.stop()
    assert job.of("ChunksAbsent") == []


def test_a_decommissioned_node_is_told_with_its_time_and_when_it_stays(
    cluster: em.YarnCluster, client: Client, mini_yarn: Any
) -> None:
    job = Running(client, "decommissioned")
    job.until_whole(MEMBERS)
    mini_yarn.decommission(1, 3600)
    job.until_recorded("NodeChanged")
    mini_yarn.recommission()
    job.until_recorded("NodeChanged", 2)
    job.stop()
    cluster.scale(MEMBERS)  # members that had left are not replaced
    leaving, staying = job.of("NodeChanged")
    assert (leaving["state"], leaving["grace_s"]) == ("decommissioning", 3600.0)
    assert len(leaving["members"]) > 0
    assert {record["member"] for record in job.of("MemberNoticed")} == {*leaving["members"]}
    assert staying["state"] == "running"
