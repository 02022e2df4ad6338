"""Stock workers move their chunks before they end: signals, notices by hand, clouds' metadata.

One cluster of `dask scheduler` and `dask worker` for all tests; `pytest -s` prints the seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from email.utils import formatdate
from typing import Any

import numpy as np
import pytest
from distributed import Client

import elasticml as em
from elasticml.jobs.handle import workers_of
from tests.http_server import serving
from tests.play.stock_workers import kill_session
from tests.stock_cluster import StockCluster, stock_cluster
from tests.waiting import until

pytestmark = pytest.mark.cluster

_rng = np.random.default_rng(3)
# Noise, nearly without a penalty: the gap does not become zero before the story is over.
DATA = em.from_arrays(_rng.normal(size=(600, 12)), np.sign(_rng.normal(size=600)))

Record = dict[str, Any]


class Metadata:
    """A metadata server that speaks AWS's and Azure's protocols."""

    MACHINE = "worker_3"

    def __init__(self) -> None:
        self.action: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []

    def __call__(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, dict, Any]:
        if (method, path) == ("PUT", "/latest/api/token"):
            return 200, {}, b"token"
        if path == "/latest/meta-data/spot/instance-action":
            if headers.get("X-aws-ec2-metadata-token") != "token":
                return 401, {}, b""
            return (200, {}, json.dumps(self.action).encode()) if self.action else (404, {}, b"")
        if headers.get("Metadata") != "true":
            return 400, {}, b""
        if path.startswith("/metadata/instance/compute/name?"):
            return 200, {}, self.MACHINE.encode()
        return 200, {}, json.dumps({"DocumentIncarnation": 1, "Events": self.events}).encode()

    def interrupt(self) -> None:
        """Announce the end of the machine, as AWS does two minutes ahead."""
        at = time.gmtime(time.time() + 25)
        self.action = {"action": "terminate", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", at)}

    def schedule(self) -> None:
        """Schedule a maintenance of the machine, as Azure does; it may be cancelled."""
        event = {
            "EventId": "A1",
            "EventType": "Redeploy",
            "ResourceType": "VirtualMachine",
            "Resources": [self.MACHINE],
            "EventStatus": "Scheduled",
            "NotBefore": formatdate(time.time() + 60, usegmt=True),
        }
        self.events = [event]

    def cancel(self) -> None:
        """Cancel the maintenance: its event disappears."""
        self.events = []


@pytest.fixture(scope="module")
def metadata() -> Metadata:
    return Metadata()


@pytest.fixture(scope="module")
def cluster(
    metadata: Metadata, tmp_path_factory: pytest.TempPathFactory
) -> Generator[StockCluster]:
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


class Course:
    """A job's story while things are done to its cluster, one after the other.

    Parameters
    ----------
    steps : list
        Pairs of what to do and the event after which the next step begins.
    """

    def __init__(self, client: Client, steps: list[tuple[Callable[[], Any], str]]) -> None:
        job = em.Job(
            em.CoCoA(loss="hinge", l2=1e-9, intercept=False, tolerance=0.0, scale="none"),
            DATA,
            stop=em.Stop(rounds=10_000_000),
        )
        handle = job.start(client)
        #: The records of each step.
        self.steps: list[list[Record]] = []
        #: Seconds that each step took.
        self.seconds: list[float] = []
        self.cancelled = False
        awaited, rounds, began_s = "", 0, 0.0
        for record in handle:
            if self.steps:
                self.steps[-1].append(record)
            event = record["event"]
            if event == awaited:
                awaited, rounds = "", 0
                self.seconds.append(time.monotonic() - began_s)
            rounds += event == "RoundEnded"
            if awaited or rounds < 3 or self.cancelled:
                continue
            if len(self.steps) == len(steps):
                self.cancelled = True
                handle.cancel()
                continue
            if not self.steps:
                until(lambda: handle_signals(client), "all nannies have the plugin")
            act, awaited = steps[len(self.steps)]
            self.steps.append([])
            began_s = time.monotonic()
            act()

    def one(self, step: int, event: str) -> Record:
        return next(record for record in self.steps[step] if record["event"] == event)

    def check_drained(self, step: int, reason: str) -> None:
        story = self.steps[step]
        assert self.one(step, "MemberNoticed")["reason"] == reason
        lost = self.one(step, "MemberLost")
        assert (lost["chunks"], lost["reason"]) == (0, reason)
        assert not any(record["event"] == "ChunksAbsent" for record in story)


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
    course = Course(
        client,
        [
            (lambda: em.announce(client, "spot", grace_s=20.0, reason="maintenance"), "MemberLost"),
            (lambda: em.withdraw(client, [address]), "MemberActive"),
            (lambda: outputs.append(by_command("--grace", "20")), "MemberLost"),
            (lambda: outputs.append(by_command("--withdraw")), "MemberActive"),
            (lambda: os.kill(cluster.processes["spot"].pid, signal.SIGUSR1), "MemberLost"),
            (lambda: em.withdraw(client, "spot"), "MemberActive"),
            (lambda: os.kill(inner, signal.SIGUSR1), "MemberLost"),
            (lambda: em.withdraw(client, "spot"), "MemberActive"),
        ],
    )
    for step, reason in ((0, "maintenance"), (2, "preempted"), (4, "preempted"), (6, "preempted")):
        course.check_drained(step, reason)
    assert outputs == [f"announced, 20 s: {address}\n", f"withdrawn: {address}\n"]
    assert len(workers_of(client)) == 2
    print("announced, back, command, back, SIGUSR1 x2:", [round(s, 2) for s in course.seconds])
    with pytest.raises(em.ConfigError, match=r"got 'spto' \(did you mean 'spot'\?\)"):
        em.announce(client, ["spto"], grace_s=60.0)


@pytest.mark.slow
def test_metadata_of_clouds_drain_a_worker_and_a_cancelled_event_brings_it_back(
    metadata: Metadata, client: Client
) -> None:
    course = Course(
        client,
        [
            (metadata.schedule, "MemberLost"),
            (metadata.cancel, "MemberActive"),
            (metadata.interrupt, "MemberLost"),
        ],
    )
    course.check_drained(0, "maintenance")
    course.check_drained(2, "preempted")
    metadata.action = {}
    print("Azure, cancelled, AWS:", [round(seconds, 2) for seconds in course.seconds])


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


def test_sigterm_drains_a_stock_worker_whoever_gets_it(
    cluster: StockCluster, client: Client
) -> None:
    names = ("nanny", "below", "alone", "group", "pod", "closed")
    for name in names:
        cluster.worker(name, *(["--no-nanny"] if name == "alone" else []))
    # Two nannies in one process.
    cluster.worker("pair", "--nworkers", "2")
    cluster.await_workers(client, 2 + len(names) + 2)
    outer = {name: cluster.processes[name].pid for name in (*names, "pair")}
    below = cluster.pid(client, "below")
    former = next(a for a, w in workers_of(client).items() if w["name"] == "below")
    closed = next(a for a, w in workers_of(client).items() if w["name"] == "closed")
    course = Course(
        client,
        [
            (lambda: os.kill(outer["nanny"], signal.SIGTERM), "MemberLost"),
            (lambda: os.kill(below, signal.SIGTERM), "MemberLost"),
            (lambda: os.kill(outer["alone"], signal.SIGTERM), "MemberLost"),
            (lambda: os.killpg(outer["group"], signal.SIGTERM), "MemberLost"),
            (lambda: stop_like_kubernetes(cluster, "pod", 30.0), "MemberLost"),
            (lambda: client.run(close_soon, workers=[closed]), "MemberLost"),
            (lambda: os.kill(outer["pair"], signal.SIGTERM), "MemberLost"),
        ],
    )
    for step, name in enumerate((*names, "pair")):
        course.check_drained(step, "terminated")
        if name != "closed":  # only a signal is told ahead
            stopping = {
                r["member"] for r in course.steps[step] if r["event"] == "ContainerStopping"
            }
            assert course.one(step, "MemberLost")["member"] in stopping
        if name == "below":  # its nanny has not been told to stop
            until(
                lambda: any(
                    w["name"] == "below" and a != former for a, w in workers_of(client).items()
                ),
                "another process below the nanny",
            )
            assert cluster.processes["below"].poll() is None
        else:
            assert cluster.ended(name) == 0, cluster.log(name)
        print(f"SIGTERM to {name}: member released after {course.seconds[step]:.2f} s")
    lost = [r for r in course.steps[-1] if r["event"] == "MemberLost"]
    assert {record["chunks"] for record in lost} == {0}
    until(lambda: len(workers_of(client)) == 3, "two workers and the one that was started again")
