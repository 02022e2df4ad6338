"""A real SLURM takes a node from a job of elasticml, and gives it back."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

import elasticml as em
from tests import mini_slurm
from tests.stock_cluster import stock_cluster

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


#: Records that tell the story.
SHOWN = ("MemberJoined", "MemberNoticed", "MemberLost", "MemberActive", "ChunksAbsent")


def test_slurm_takes_a_node_from_a_job_and_gives_it_back(slurm, tmp_path) -> None:
    rng = np.random.default_rng(3)
    # Noise, nearly without a penalty: the gap does not become zero before the story is over.
    data = em.from_arrays(rng.normal(size=(600, 12)), np.sign(rng.normal(size=600)))
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
        handle = em.Job(
            em.CoCoA(loss="hinge", l2=1e-9, intercept=False, tolerance=0.0, scale="none"),
            data,
            stop=em.Stop(rounds=10_000_000, seconds=200),
            chunk_size=2048,  # several for each member: one without chunks never becomes active
        ).start(client)
        story = []
        for record in handle:
            event = record["event"]
            if event == "RoundEnded" and record["round"] == 3:
                slurm.submit("sleep 5", "-p", "high", "-w", mini_slurm.NODES[0], "--time=1")
            if event in SHOWN:
                story.append(record)
                # Others may come and go meanwhile: both that left are back when two became active.
                gone = next((k for k, r in enumerate(story) if r["event"] == "MemberLost"), None)
                since = [] if gone is None else [r["event"] for r in story[gone:]]
                if since.count("MemberActive") >= 2:
                    handle.cancel()
        restarts = slurm.show(taken)["Restarts"]
    noticed = [record for record in story if record["event"] == "MemberNoticed"]
    lost = [record for record in story if record["event"] == "MemberLost"]
    # Both workers of the job leave, and one scontrol was asked.
    assert [record["reason"] for record in noticed] == ["preempted"] * 2
    assert all(0 < record["grace_s"] <= mini_slurm.GRACE_S for record in noticed)
    assert [(record["reason"], record["chunks"]) for record in lost] == [("preempted", 0)] * 2
    assert not any(record["event"] == "ChunksAbsent" for record in story)
    assert restarts == "1"
