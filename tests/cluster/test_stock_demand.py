"""Clusters that grow, shrink and retire workers while a job runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from distributed import Client, LocalCluster

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
