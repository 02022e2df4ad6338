"""Stock workers with the preload: what ends them moves their chunks first."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import elasticml as em
from elasticml.jobs.handle import workers_of
from tests.http_server import serving
from tests.stock_cluster import StockCluster, stock_cluster

pytestmark = pytest.mark.cluster

WORKERS = ("a", "b", "c")
_rng = np.random.default_rng(3)
# Noise, nearly without a penalty: the gap does not become zero before the story is over.
DATA = em.from_arrays(_rng.normal(size=(600, 12)), np.sign(_rng.normal(size=600)))

PRELOAD = ("--preload", "elasticml.preload")
NANNY = (*PRELOAD, "--preload-nanny", "elasticml.preload")
NO_NANNY = ("--no-nanny", *PRELOAD)


def lost_after(client: Client, end_one: Callable[[], None]) -> list[dict[str, Any]]:
    """Run a job, end a worker in it, and return its story from then until a member is lost."""
    job = em.Job(em.CoCoA(loss="hinge", l2=1e-9), DATA, stop=em.Stop(rounds=100_000))
    handle = job.start(client)
    story: list[dict[str, Any]] = []
    for record in handle:
        if record["event"] == "RoundEnded" and record["round"] == 3:
            end_one()
        if record.get("round", 0) >= 3:
            story.append(record)
        if record["event"] == "MemberLost":
            handle.cancel()
    return story


def interrupted_in_two_minutes() -> dict[str, str]:
    at = time.gmtime(time.time() + 119)
    return {"action": "terminate", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", at)}


def one(story: list[dict[str, Any]], event: str) -> dict[str, Any]:
    return next(record for record in story if record["event"] == event)


def check_drained(story: list[dict[str, Any]], reason: str) -> None:
    assert one(story, "MemberNoticed")["reason"] == reason
    lost = one(story, "MemberLost")
    assert (lost["chunks"], lost["reason"]) == (0, reason)
    assert not any(record["event"] == "ChunksAbsent" for record in story)


def started(cluster: StockCluster, client: Client, options: tuple[str, ...]) -> None:
    for name in WORKERS:
        cluster.worker(name, *options)
    cluster.await_workers(client, len(WORKERS))


@pytest.mark.parametrize(
    ("options", "whom"),
    [(NANNY, "nanny"), (NANNY, "worker"), (NO_NANNY, "worker"), (NANNY, "all")],
    ids=["nanny", "worker below a nanny", "worker without a nanny", "process group"],
)
def test_sigterm_drains_a_stock_worker(tmp_path: Path, options: tuple[str, ...], whom: str) -> None:
    with stock_cluster(tmp_path) as cluster, cluster.client() as client:
        started(cluster, client, options)
        inner, outer = cluster.pid(client, "b"), cluster.processes["b"].pid

        def terminate() -> None:
            if whom == "all":
                os.killpg(outer, signal.SIGTERM)
            else:
                os.kill(outer if whom == "nanny" else inner, signal.SIGTERM)

        story = lost_after(client, terminate)
        check_drained(story, "terminated")
        status, seconds = cluster.ended("b")
        assert status == 0, cluster.log("b")
        assert seconds < 10.0, cluster.log("b")
        assert len(workers_of(client)) == len(WORKERS) - 1


def test_sigusr1_drains_a_stock_worker_and_lets_it_live(tmp_path: Path) -> None:
    with stock_cluster(tmp_path) as cluster, cluster.client() as client:
        started(cluster, client, NANNY)
        outer = cluster.processes["b"].pid
        check_drained(lost_after(client, lambda: os.kill(outer, signal.SIGUSR1)), "preempted")
        assert cluster.processes["b"].poll() is None
        assert len(workers_of(client)) == len(WORKERS)


def test_a_spot_notice_of_aws_drains_its_worker(tmp_path: Path) -> None:
    action: dict[str, str] = {}

    def ec2(method: str, path: str, headers: Any, body: bytes) -> tuple[int, dict, bytes]:
        if method == "PUT":
            return 200, {}, b"token"
        if headers.get("X-aws-ec2-metadata-token") != "token":
            return 401, {}, b""
        return (200, {}, json.dumps(action).encode()) if action else (404, {}, b"")

    with serving(ec2) as url, stock_cluster(tmp_path) as cluster, cluster.client() as client:
        for name in ("a", "c"):
            cluster.worker(name)
        environment = {"ELASTICML_NOTICES": "aws", "ELASTICML_METADATA_URL": url}
        cluster.worker("b", *PRELOAD, environment=environment)
        cluster.await_workers(client, len(WORKERS))
        story = lost_after(client, lambda: action.update(interrupted_in_two_minutes()))
        check_drained(story, "preempted")
