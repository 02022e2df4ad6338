"""The end of a SLURM job, from a real SLURM: its limit, its preemption, the signals that come."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

import elasticml as em
from elasticml.clusters.stop_notices import SlurmJob, StopNotice
from tests import mini_slurm
from tests.stock_cluster import stock_cluster
from tests.waiting import until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(bool(mini_slurm.missing()), reason=mini_slurm.missing()),
]

GRACE_S = 15


@pytest.fixture(scope="module")
def daemons() -> Generator[mini_slurm.MiniSlurm]:
    # pytest's folders are too deep for a Unix socket.
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as folder,
        mini_slurm.mini_slurm(Path(folder), GRACE_S) as slurm,
    ):
        yield slurm


@pytest.fixture
def slurm(daemons) -> Generator[mini_slurm.MiniSlurm]:
    yield daemons
    daemons.cancel_all()


LISTENER = """
import signal
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda n, f: print(signal.Signals(n).name, flush=True))
print("ready", flush=True)
while True:
    signal.pause()
"""


def listener(slurm: mini_slurm.MiniSlurm, node: str, *options: str) -> str:
    """Submit a job whose process says which signals it gets; returns its id once it runs."""
    program = slurm.folder / "listener.py"
    program.write_text(LISTENER)
    # exec: signals to the batch script reach the program, which otherwise is its child.
    script = f"exec {sys.executable} {program}"
    job = slurm.submit(script, "-p", "low", "-w", node, "--time=5", "--requeue", *options)
    until(lambda: "ready" in slurm.output(job), "the listener is ready")
    return job


def poll(slurm: mini_slurm.MiniSlurm, job: str, monkeypatch) -> StopNotice | None:
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    return SlurmJob(job).poll(time.time())


def seconds(slurm: mini_slurm.MiniSlurm, job: str, field: str) -> float:
    """Return a time that SLURM states, in Unix seconds."""
    return time.mktime(time.strptime(slurm.show(job)[field], "%Y-%m-%dT%H:%M:%S"))


def heard(slurm: mini_slurm.MiniSlurm, job: str) -> list[str]:
    words = slurm.output(job).split()
    return [word for word in words if word in ("ready", "SIGTERM", "SIGUSR1")]


def test_the_end_of_a_job_is_its_limit_until_it_is_preempted(slurm, monkeypatch) -> None:
    asking = listener(slurm, "n0", "--signal=B:USR1@10")
    silent = listener(slurm, "n1")
    limit = poll(slurm, asking, monkeypatch)
    assert limit is not None
    assert (limit.reason, limit.source) == ("walltime", "slurm")
    assert limit.deadline_s == seconds(slurm, asking, "StartTime") + 300

    for node in mini_slurm.NODES:
        slurm.submit("sleep 3", "-p", "high", "-w", node, "--time=1")

    for job in (asking, silent):

        def preempted(job: str = job) -> StopNotice | None:
            told = poll(slurm, job, monkeypatch)
            return told if told is not None and told.reason == "preempted" else None

        told = until(preempted, "the job is pre-empted")
        assert told.deadline_s == seconds(slurm, job, "PreemptTime") + GRACE_S
    # A job that asked for a signal gets it at the beginning of the grace; others get none.
    until(lambda: len(heard(slurm, asking)) >= 3, "SIGUSR1 and SIGTERM")
    assert heard(slurm, asking)[:3] == ["ready", "SIGUSR1", "SIGTERM"]
    until(lambda: len(heard(slurm, silent)) >= 2, "SIGTERM")
    assert heard(slurm, silent)[:2] == ["ready", "SIGTERM"]
    # Both come back, under the same ids.
    for job in (asking, silent):
        until(lambda job=job: slurm.show(job).get("Restarts") == "1", "a restart")
        until(
            lambda job=job: heard(slurm, job).count("ready") == 2,
            "the listener is ready again",
        )


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
    assert all(0 < record["grace_s"] <= GRACE_S for record in noticed)
    assert [(record["reason"], record["chunks"]) for record in lost] == [("preempted", 0)] * 2
    assert not any(record["event"] == "ChunksAbsent" for record in story)
    assert restarts == "1"
