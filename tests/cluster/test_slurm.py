"""A real SLURM takes a node from a job of elasticml, and gives it back."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tests import mini_slurm
from tests.stock_cluster import Course, endless, stock_cluster
from tests.waiting import until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(bool(mini_slurm.missing()), reason=mini_slurm.missing()),
]


@pytest.fixture
def slurm() -> Generator[mini_slurm.MiniSlurm]:
    # pytest's folders are too deep for a Unix socket.
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        mini_slurm.mini_slurm(Path(folder)) as slurm,
    ):
        yield slurm


def test_slurm_takes_a_node_from_a_job_and_gives_it_back(slurm, tmp_path) -> None:
    with stock_cluster(tmp_path) as cluster, cluster.client() as client:
        cluster.worker("own")
        # exec: SLURM's signals to the batch script reach the worker's process.
        script = (
            f"exec {sys.executable} -m distributed.cli.dask_worker --scheduler-file {cluster.file} "
            "--host 127.0.0.1 --no-dashboard --nthreads 1 --nworkers 2 --preload elasticml.preload"
        )
        taken, _ = (
            slurm.submit(script, "-p", "low", "-w", node, "--time=60", "--requeue")
            for node in mini_slurm.NODES
        )
        cluster.await_workers(client, 5)
        course = Course(endless().start(client))
        course.await_members(5)
        slurm.submit("sleep 5", "-p", "high", "-w", mini_slurm.NODES[0], "--time=1")

        def are_back() -> bool:
            """Others may come and go meanwhile: two became active since the first loss."""
            events = [record["event"] for record in course.records]
            lost = events.index("MemberLost") if "MemberLost" in events else len(events)
            return events[lost:].count("MemberActive") >= 2

        until(are_back, "both workers of the node are back")
        restarts = slurm.show(taken)["Restarts"]
        course.end()
    noticed, lost = course.of("MemberNoticed"), course.of("MemberLost")
    # Both workers of the job leave, and one scontrol was asked.
    assert [record["reason"] for record in noticed] == ["preempted"] * 2
    assert all(0 < record["grace_s"] <= mini_slurm.GRACE_S for record in noticed)
    assert [(record["reason"], record["chunks"]) for record in lost] == [("preempted", 0)] * 2
    assert course.of("ChunksAbsent") == []
    assert restarts == "1"
