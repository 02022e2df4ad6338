"""Shared memory between real, really killed processes: no stale sums, no leaked memory."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Generator
from pathlib import Path

import numpy as np
import psutil
import pytest
from distributed import Client

import elasticml as em
from elasticml.data.synthetic.splice_sites import synthetic_splice
from tests.process_faults import disturbed
from tests.waiting import until

pytestmark = pytest.mark.cluster

DATA = synthetic_splice(rows=600, length=30, seed=5)
N_MEMBERS = 4
#: Prefix of the link of a slot's descriptor in /proc.
SLOT = "/memfd:elasticml"


@pytest.fixture
def cluster() -> Generator[em.LocalCluster]:
    with em.LocalCluster(N_MEMBERS) as cluster:
        yield cluster


def wide_job(name: str, rounds: int, topology: str = "tree", transport: str = "shm") -> em.Job:
    return em.Job(
        em.ImportedAlgorithm(name="tests.wide_toy:ALGORITHM", rounds=rounds),
        DATA,
        name=name,
        absent="ignore",
        stop=em.Stop(rounds=rounds),
        collective=em.Collective(topology=topology, transport=transport, fan_out=2, deadline=3.0),
        chunk_size=1024,
    )


def pids_of(cluster: em.LocalCluster) -> list[int]:
    scheduler = psutil.Process(cluster.scheduler_pid)
    return [scheduler.pid, *(child.pid for child in scheduler.children(recursive=True))]


def open_files(pid: int) -> list[str]:
    """List a process's open and mapped files; empty if it has ended."""
    results = []
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                results.append(os.readlink(entry))
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        results += [line.split(maxsplit=5)[5] for line in maps if len(line.split(maxsplit=5)) > 5]
    return results


@pytest.mark.parametrize("topology", ["tree", pytest.param("star", marks=pytest.mark.slow)])
def test_every_value_of_every_sum_is_right_under_random_kills(
    cluster: em.LocalCluster, topology: str
) -> None:
    with Client(cluster, set_as_default=False) as client:
        job = wide_job(f"wide-{topology}", 150, topology)
        outcome = disturbed(cluster, client, job, seed=3, members=N_MEMBERS)

        rows = outcome.result.history
        assert outcome.kills > 0
        assert outcome.result.summary["lost"] > 0
        # The trainer has checked one sum per row, each value of it.
        assert max(row.get("checked") or 0 for row in rows) == 150


@pytest.mark.parametrize("victims", [pytest.param("driver", marks=pytest.mark.slow), "everybody"])
def test_killed_job_leaves_no_memory_behind(victims: str) -> None:
    with em.LocalCluster(N_MEMBERS) as cluster:
        with Client(cluster, set_as_default=False) as client:
            handle = wide_job("long", 100_000).start(client)
            until(lambda: handle.status().round > 5, "the job does not reach round 5")
            pids = pids_of(cluster)
            held = [p for p in pids if any(f.startswith(SLOT) for f in open_files(p))]
            assert len(held) > N_MEMBERS
            assert [f for p in pids for f in open_files(p) if f.startswith("/dev/shm")] == []

            for pid in pids if victims == "everybody" else [cluster.scheduler_pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            processes = [psutil.Process(pid) for pid in held if psutil.pid_exists(pid)]
            psutil.wait_procs(processes, timeout=30)
        # A slot has no name and lives in the processes that map it, and none of them is left.
        assert [p for p in held if open_files(p)] == []


@pytest.mark.slow
def test_shared_memory_changes_no_bit_of_a_model(cluster: em.LocalCluster) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 9_000)), rng.choice([-1.0, 1.0], size=300)
    models = {}
    with Client(cluster, set_as_default=False) as client:
        for transport in ("stream", "shm", "auto"):
            result = em.Job(
                em.BatchGradient(
                    loss="logistic", l2=1e-3, intercept=False, tolerance=0.0, scale="none"
                ),
                em.from_arrays(X, y),
                name=transport,
                stop=em.Stop(rounds=8),
                collective=em.Collective(topology="tree", transport=transport),
            ).run(client)
            models[transport] = result.model.coef_.tobytes()
    assert models["shm"] == models["auto"] == models["stream"]
