"""Clusters that grow, shrink, retire workers and count idle time while a job runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from distributed import Client, LocalCluster, Nanny, Scheduler, SpecCluster

import elasticml as em
from elasticml.jobs.handle import workers_of
from tests.run_command import end_run, start_run
from tests.stock_cluster import Course, Record, endless, stock_cluster
from tests.waiting import until

pytestmark = pytest.mark.cluster


def local(n_workers: int) -> LocalCluster:
    return LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        dashboard_address=":0",
        silence_logs=50,
        memory_limit=None,
    )


def check_retired(losses: Sequence[Record], story: Course) -> None:
    assert {(r["reason"], r["chunks"]) for r in losses} == {("retired", 0)}
    assert story.of("ChunksAbsent") == []


def test_adaptive_cluster_follows_a_job_up_and_down() -> None:
    with local(0) as cluster, Client(cluster, set_as_default=False) as client:
        cluster.adapt(minimum=0, maximum=2, interval="100ms")
        # No worker is there: the job itself is the reason that they come.
        course = Course(endless(members=em.settings.Members(max=2)).start(client))
        course.await_members(2)
        cluster.adapt(minimum=0, maximum=1)
        course.await_members(1)
        assert len(workers_of(client)) == 1
        cluster.adapt(minimum=0, maximum=2)
        course.await_members(2)
        losses = course.losses()
        course.end()
        check_retired(losses, course)
        summary = course.handle.outcome().summary
        assert (summary["retired"], summary["lost"]) == (1, 0)
        until(lambda: not workers_of(client), "the workers are closed after the job")


@pytest.mark.slow
def test_retired_scaled_and_expired_workers_are_emptied_first(tmp_path: Path) -> None:
    with stock_cluster(tmp_path) as cluster, cluster.client() as client:
        for name in ("a", "b"):
            cluster.worker(name)
        cluster.worker("alone", "--no-nanny")
        cluster.await_workers(client, 3)
        course = Course(endless().start(client))
        course.await_members(3)
        names = {worker["name"]: address for address, worker in workers_of(client).items()}
        client.retire_workers([names["a"]])
        assert names["a"] not in workers_of(client)
        course.await_members(2)
        client.retire_workers(names=["alone"])
        assert cluster.ended("alone") == 0
        course.await_members(1)
        # On a busy machine a short life ends before its worker is a member: the next is longer.
        for life_s in (6, 24, 96):
            name = f"for {life_s} s"
            cluster.worker(name, "--lifetime", f"{life_s}s")
            process = cluster.processes[name]
            until(lambda process=process: course.members() == 2 or process.poll() is not None, name)
            if course.members() == 2:
                break
        assert cluster.ended(name) == 0
        course.await_members(1)
        losses = course.losses()
        assert len(losses) == 3
        course.end()
        check_retired(losses, course)


@pytest.mark.slow
def test_scaling_a_cluster_object_empties_the_workers_that_go() -> None:
    """``SpecCluster`` names them where addresses are wanted: Dask itself would retire none."""
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": ":0", "port": 0}}
    worker = {"cls": Nanny, "options": {"nthreads": 1}}
    with (
        SpecCluster({}, scheduler, worker, silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        cluster.scale(3)
        client.wait_for_workers(3)
        course = Course(endless().start(client))
        course.await_members(3)
        cluster.scale(1)
        course.await_members(1)
        losses = course.losses()
        course.end()
        check_retired(losses, course)


@pytest.mark.slow
def test_a_running_job_is_not_idle(tmp_path: Path) -> None:
    with stock_cluster(tmp_path, ["--idle-timeout", "10m"]) as cluster, cluster.client() as client:
        cluster.worker("a")
        cluster.await_workers(client, 1)
        course = Course(endless().start(client))
        course.await_members(1)
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "idle_timeout", 0.5))
        began_s = course.records[-1]["t"]
        until(lambda: course.records[-1]["t"] > began_s + 2.0, "the job goes on")
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "idle_timeout", 600))
        course.end()

        def is_idle(dask_scheduler: Scheduler) -> bool:
            return dask_scheduler.idle_since is not None and not dask_scheduler.tasks

        until(lambda: client.run_on_scheduler(is_idle), "the scheduler is idle after the job")


@pytest.mark.slow
def test_a_policy_gets_members_up_to_the_clusters_maximum() -> None:
    job = endless(holders=2, policies=[{"name": "tests.scaling_policies:Grow"}])
    with (
        em.LocalCluster(4, workers_max=5) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        course = Course(job.start(client))
        course.await_members(5)
        until(lambda: course.of("MembersRefused"), "a request beyond the maximum")
        course.end()
    assert [record["count"] for record in course.of("MembersRefused")] == [2]
    assert course.of("ChunksAbsent") == []


@pytest.mark.slow
def test_a_cluster_from_a_function_grows_for_a_policy_and_the_command_closes_it(
    tmp_path: Path,
) -> None:
    job = {
        "data": {"format": "synthetic_splice", "rows": 500, "length": 60},
        "algorithm": {
            "name": "cocoa",
            "loss": "hinge",
            "l2": 1e-3,
            "intercept": False,
            "tolerance": 0,
        },
        "cluster": {
            "kind": "factory",
            "call": "distributed:LocalCluster",
            "arguments": {"n_workers": 0, "threads_per_worker": 1, "dashboard_address": ":0"},
            "workers": 1,
            "workers_max": 2,
        },
        "policies": ["tests.scaling_policies:Grow", "tests.scaling_policies:UntilAll"],
        "stop": {"rounds": 1_000_000, "objective": -1.0},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    code, _, err = end_run(start_run(tmp_path, "job.yaml", "--out", "run"))
    lines = (tmp_path / "run" / "story.jsonl").read_text().splitlines()
    story = [json.loads(line) for line in lines]
    events = [record["event"] for record in story]
    assert (code, events.count("MemberJoined")) == (3, 2), err
    assert "enough" in err
    decided = next(r for r in story if r["event"] == "PolicyDecided")
    assert (decided["suggestion"], decided["count"]) == ("Request", 1)  # at most workers_max
