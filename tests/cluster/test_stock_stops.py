"""Stock workers move their chunks before they end: signals, notices by hand, clouds' metadata.

One cluster of `dask scheduler` and `dask worker` for all tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from typing import Any

import pytest
from distributed import Client

import elasticml as em
from elasticml.jobs.handle import workers_of
from tests.http_server import serving
from tests.play.stock_workers import kill_session
from tests.stock_cluster import Course, StockCluster, endless, stock_cluster
from tests.unit.clusters.test_stop_notices import Ec2, azure, azure_event
from tests.waiting import until

pytestmark = pytest.mark.cluster


#: What AWS and Azure say of the machine of the worker ``spot``.
AWS, EVENTS = Ec2(), []
AZURE = azure(EVENTS)


def metadata(method: str, path: str, headers: Any, body: bytes) -> Any:
    return (AWS if path.startswith("/latest/") else AZURE)(method, path, headers, body)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[StockCluster]:
    """A scheduler and the workers ``stays`` and ``spot``, the one with the preload."""
    with (
        serving(metadata) as url,
        stock_cluster(tmp_path_factory.mktemp("stock")) as cluster,
    ):
        cluster.worker("stays")
        environment = {"ELASTICML_NOTICES": "aws,azure", "ELASTICML_METADATA_URL": url}
        cluster.worker("spot", "--preload", "elasticml.preload", environment=environment)
        yield cluster


@pytest.fixture
def client(cluster: StockCluster) -> Generator[Client]:
    with cluster.client() as client:
        cluster.await_workers(client, 2)
        yield client


def handle_signals(client: Client) -> bool:
    """Whether all nannies have the plugin: it arrives a moment after the job's start."""

    def has_plugin(dask_worker: Any) -> bool:
        return "elasticml-nanny-signals" in dask_worker.plugins

    with_nanny = [a for a, worker in workers_of(client).items() if worker["nanny"]]
    return all(client.run(has_plugin, workers=with_nanny, nanny=True).values())


def running(client: Client) -> Course:
    """Start a job, and wait until it is in training and all nannies have the plugin."""
    course = Course(endless().start(client))
    course.await_members(len(workers_of(client)))
    until(lambda: handle_signals(client), "all nannies have the plugin")
    return course


@pytest.mark.slow
def test_announced_workers_are_emptied_and_used_again(
    cluster: StockCluster, client: Client
) -> None:
    address = next(a for a, w in workers_of(client).items() if w["name"] == "spot")
    inner = cluster.pid(client, "spot")

    def by_command(*options: str) -> str:
        command = [sys.executable, "-m", "elasticml", "announce", *options]
        command += ["--scheduler-file", str(cluster.file), "spot"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    outputs: list[str] = []
    outer = cluster.processes["spot"].pid
    course = running(client)
    for announce, reason, withdraw in (
        (
            lambda: em.announce(client, "spot", grace_s=20.0, reason="maintenance"),
            "maintenance",
            lambda: em.withdraw(client, [address]),
        ),
        (
            lambda: outputs.append(by_command("--grace", "20")),
            "preempted",
            lambda: outputs.append(by_command("--withdraw")),
        ),
        *(
            (
                lambda pid=pid: os.kill(pid, signal.SIGUSR1),
                "preempted",
                lambda: em.withdraw(client, "spot"),
            )
            for pid in (outer, inner)
        ),
    ):
        course.drain(announce, reason)
        course.step(withdraw, "MemberActive")
    course.end()
    assert outputs == [f"announced, 20 s: {address}\n", f"withdrawn: {address}\n"]
    assert len(workers_of(client)) == 2
    with pytest.raises(em.errors.ConfigError, match=r"got 'spto' \(did you mean 'spot'\?\)"):
        em.announce(client, ["spto"], grace_s=60.0)


@pytest.mark.slow
def test_metadata_of_clouds_drain_a_worker_and_a_cancelled_event_brings_it_back(
    client: Client,
) -> None:
    course, now_s = running(client), time.time()
    event = azure_event("Redeploy", ["worker_3"], 60, now_s=now_s)
    course.drain(lambda: EVENTS.append(event), "maintenance")
    course.step(EVENTS.clear, "MemberActive")
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 25))
    course.drain(lambda: setattr(AWS, "action", {"action": "terminate", "time": at}), "preempted")
    course.end()
    AWS.action = None


def stop_like_kubernetes(cluster: StockCluster, name: str, grace_s: float) -> None:
    """Stop a pod as the kubelet does: preStop, SIGTERM to its first process, SIGKILL at the end."""
    process = cluster.processes[name]
    until_s = time.monotonic() + grace_s
    subprocess.run(["sleep", "1"], check=True)  # preStop counts against the grace
    process.terminate()
    try:
        process.wait(until_s - time.monotonic())
    except subprocess.TimeoutExpired:
        kill_session(process)


def close_soon(dask_worker: Any) -> None:
    """Close a worker without a notice, as a program with nannies of its own does."""
    dask_worker.loop.add_callback(dask_worker.close, reason="test")


@pytest.mark.parametrize(
    "names",
    [
        ("below", "alone"),
        # Two nannies in one process are a pair.
        pytest.param(("nanny", "group", "pod", "closed", "pair"), marks=pytest.mark.slow),
    ],
)
def test_sigterm_drains_a_stock_worker_whoever_gets_it(
    cluster: StockCluster, client: Client, names: tuple[str, ...]
) -> None:
    known = len(workers_of(client))
    options = {"alone": ["--no-nanny"], "pair": ["--nworkers", "2"]}
    for name in names:
        cluster.worker(name, *options.get(name, []))
    cluster.await_workers(client, known + len(names) + ("pair" in names))

    def address(name: str) -> str:
        return next(a for a, w in workers_of(client).items() if w["name"] == name)

    def end(name: str) -> Any:
        outer = cluster.processes[name].pid
        match name:
            case "below":
                return os.kill(cluster.pid(client, name), signal.SIGTERM)
            case "group":
                return os.killpg(outer, signal.SIGTERM)
            case "pod":
                return stop_like_kubernetes(cluster, name, 30.0)
            case "closed":
                return client.run(close_soon, workers=[address(name)])
            case _:
                return os.kill(outer, signal.SIGTERM)

    course = running(client)
    for name in names:
        former = "" if name == "pair" else address(name)
        story = course.drain(lambda name=name: end(name), "terminated")
        if name != "closed":  # only a signal is told ahead
            stopping = {r["member"] for r in story if r["event"] == "ContainerStopping"}
            lost = next(r["member"] for r in story if r["event"] == "MemberLost")
            assert lost in stopping
        if name == "below":  # its nanny has not been told to stop
            until(
                lambda former=former: any(
                    w["name"] == "below" and a != former for a, w in workers_of(client).items()
                ),
                "another process below the nanny",
            )
            assert cluster.processes["below"].poll() is None
        else:
            assert cluster.ended(name) == 0, cluster.log(name)
    course.end()
    assert {record["chunks"] for record in course.of("MemberLost")} == {0}
    until(
        lambda: len(workers_of(client)) == known + ("below" in names),
        "the workers from before, and the one that was started again",
    )
