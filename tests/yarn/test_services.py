"""Jobs in YARN's containers: what YARN takes, kills and gives, and what a job makes of it."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from distributed import Client

import elasticml as em
from elasticml.clusters.on_yarn.surroundings import STARTUP_KEY

pytestmark = pytest.mark.yarn

GAP = 1e-6
MEMBERS, ROWS = 6, 1800
WAIT_S = 150.0
#: What prod asks for of the cluster's 12 GiB: more than is free, less than it is guaranteed.
PROD = 7

_rng = np.random.default_rng(3)
_X = _rng.normal(size=(ROWS, 12)) / np.sqrt(12)
DATA = em.from_arrays(_X, np.sign(_X @ _rng.normal(size=12) + 0.1 * _rng.normal(size=ROWS)))

#: What is looked at of a story.
EVENTS = (
    "ExchangeEnded",
    "RoundEnded",
    "MemberJoined",
    "MemberLost",
    "MemberNoticed",
    "Reclaimed",
    "ContainerEnded",
    "ChunksAbsent",
    "MembersRefused",
    "JobEnded",
)

Story = list[dict[str, Any]]


def make_cluster(skein_client: Any, n_workers: int, **options: Any) -> em.YarnCluster:
    return em.YarnCluster(
        environment=f"venv://{sys.prefix}",
        n_workers=n_workers,
        worker_memory="1 GiB",
        scheduler_memory="1 GiB",
        queue="ml",
        skein_client=skein_client,
        **options,
    )


@pytest.fixture(scope="module")
def cluster(skein_client: Any) -> Iterator[em.YarnCluster]:
    with make_cluster(skein_client, MEMBERS, name="services") as cluster:
        yield cluster


@pytest.fixture
def client(cluster: em.YarnCluster) -> Iterator[Client]:
    with Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(MEMBERS, timeout=WAIT_S)
        yield client


class Running:
    """A job that runs until it is told to stop, and what has happened in it so far."""

    def __init__(self, client: Client, name: str, **changes: Any) -> None:
        settings = {"stop": em.Stop(rounds=10**6), "chunk_size": 2048, "holders": 2, **changes}
        # Steps far too short to arrive: what the job lives through is the matter, not where to.
        slow = em.BatchGradient(loss="logistic", optimizer="gd", step="constant", step_size=1e-7)
        job = em.Job(settings.pop("algorithm", slow), DATA, name=name, **settings)
        #: Without what there is of every round.
        self.story: Story = []
        #: Members in the last round, and whether they had all examples between them.
        self.members, self.is_whole = 0, False
        self._handle = job.start(client)
        self._records: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for record in self._handle:
            if record["event"] in EVENTS:
                self._records.put(record)
        self._records.put(None)

    def _note(self, record: dict[str, Any]) -> None:
        match record["event"]:
            case "ExchangeEnded":
                self.is_whole = (record["examples"], record["absent_examples"]) == (ROWS, 0)
            case "RoundEnded":
                self.members = record["members"]
            case _:
                self.story.append(record)

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Follow the story until something is so."""
        deadline_s = time.monotonic() + WAIT_S
        while not is_so():
            left_s = deadline_s - time.monotonic()
            try:
                record = self._records.get(timeout=max(0.0, left_s))
            except queue.Empty:
                record, left_s = None, 0.0
            if record is None or left_s <= 0.0:
                pytest.fail(f"not within {WAIT_S:g} s: {what}; {self.members}, {self.story}")
            self._note(record)

    def until_whole(self, members: int = MEMBERS) -> None:
        """Follow the story until so many members have all examples between them."""
        self.members = 0
        self.until(
            lambda: self.members == members and self.is_whole, f"{members} with all examples"
        )

    def until_told(self, event: str, count: int = 1) -> None:
        """Follow the story until something has happened so often."""
        self.until(lambda: len(self.of(event)) >= count, f"{count} x {event}")

    def stop(self) -> dict[str, Any]:
        """End the job; return the last row of its history."""
        self._handle.cancel()
        return dict(self._handle.result().history[-1])

    def of(self, *events: str) -> Story:
        return [record for record in self.story if record["event"] in events]

    def processes(self) -> dict[str, int]:
        """The members that there were, with their process ids."""
        return {record["member"]: record["pid"] for record in self.of("MemberJoined")}


def test_a_job_lives_through_preemption_and_gets_its_containers_back(
    cluster: em.YarnCluster, client: Client, prod: Any
) -> None:
    job = Running(client, "preempted")
    job.until_whole()
    prod.take(PROD)
    prod.wait(PROD, WAIT_S)
    job.until_told("ContainerEnded")
    job.until_told("MemberLost")
    prod.give_back()
    job.until_whole()
    job.stop()
    ended = job.of("ContainerEnded")
    # Marked and taken, or given in place of a marked one; none has failed.
    assert {record["reason"] for record in ended} <= {"preempted", "released"}
    assert len(job.processes()) == MEMBERS + len(job.of("MemberLost"))


def test_a_killed_container_is_replaced(cluster: em.YarnCluster, client: Client) -> None:
    job = Running(client, "killed")
    job.until_whole()
    os.kill(job.processes()["2.1"], signal.SIGKILL)
    job.until_told("ContainerEnded")
    job.until_told("MemberLost")
    job.until_whole()
    job.stop()
    [ended] = job.of("ContainerEnded")
    assert (ended["reason"], ended["status"]) == ("killed", 128 + signal.SIGKILL)
    assert len(set(job.processes().values())) == MEMBERS + 1


def test_a_job_follows_when_the_cluster_is_scaled(cluster: em.YarnCluster, client: Client) -> None:
    job = Running(client, "scaled")
    job.until_whole()
    cluster.scale(MEMBERS - 2)
    job.until_whole(MEMBERS - 2)
    cluster.scale(MEMBERS)
    job.until_whole()
    job.stop()
    assert job.of("ChunksAbsent") == []


def test_a_policy_gives_containers_back_at_the_knee(
    cluster: em.YarnCluster, client: Client
) -> None:
    knee = {"name": "knee", "gap": "linear", "to": [2], "minimum": 2}
    cocoa = em.CoCoA(loss="squared_hinge", l2=1e-2)
    job = Running(client, "knee", algorithm=cocoa, stop=em.Stop(gap=GAP), policies=[knee])
    job.until_whole(2)
    deadline_s = time.monotonic() + WAIT_S
    while len(cluster.workers()) > 2:
        assert time.monotonic() < deadline_s, cluster.workers()
        time.sleep(0.1)
    job.until_told("JobEnded")
    assert (job.is_whole, job.of("ChunksAbsent")) == (True, [])
    assert job.stop()["gap"] <= GAP


def test_workers_of_a_lost_node_are_fenced_and_replaced(skein_client: Any, mini_yarn: Any) -> None:
    with make_cluster(skein_client, 4, name="lost-node", deploy_mode="local") as cluster:
        master = skein_client.application_report(cluster.app_id).host
        other = next(i for i in range(2) if not master.endswith(f".{i + 2}"))
        with Client(cluster, set_as_default=False) as client:
            client.wait_for_workers(4, timeout=WAIT_S)
            workers = client.scheduler_info(n_workers=-1)["workers"].values()
            there = {w["name"] for w in workers if f".{other + 2}:" in w[STARTUP_KEY]["node"]}
            pids = client.run(os.getpid)
            orphans = [
                psutil.Process(pids[a])
                for a, w in client.scheduler_info(n_workers=-1)["workers"].items()
                if w["name"] in there
            ]
            job = Running(client, "lost-node")
            job.until_whole(4)
            mini_yarn.kill_node(other)
            job.until_told("MemberLost", len(orphans))
            _, alive = psutil.wait_procs(orphans, timeout=WAIT_S)
            assert alive == [], "a worker that its scheduler has removed ends"
            job.until_whole(4)
            job.stop()
    assert len(job.processes()) == 4 + len(orphans)
