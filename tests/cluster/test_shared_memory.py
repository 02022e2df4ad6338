"""Shared memory of processes that are killed ends with them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
from distributed import Client

import elasticml as em
from tests.waiting import until

pytestmark = pytest.mark.cluster

N_MEMBERS = 4
#: Prefix of the link of a slot's descriptor in /proc.
SLOT = "/memfd:elasticml"


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


def test_a_job_that_is_killed_leaves_no_memory_behind() -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(40, 20_000))  # vectors of 160 kB go through slots
    algorithm = em.BatchGradient(optimizer="gd", l2=1e-6, tolerance=0.0, scale="none")
    data = em.from_arrays(X, np.sign(rng.normal(size=40)))
    job = em.Job(algorithm, data, stop=em.Stop(rounds=10**6), chunk_size=2**19, evaluate=False)
    with em.LocalCluster(N_MEMBERS) as cluster:
        with Client(cluster, set_as_default=False) as client:
            handle = job.start(client)
            until(lambda: handle.status().round > 5, "the job does not reach round 5")
            pids = pids_of(cluster)
            held = [p for p in pids if any(f.startswith(SLOT) for f in open_files(p))]
            assert len(held) > N_MEMBERS
            assert [f for p in pids for f in open_files(p) if f.startswith("/dev/shm")] == []

            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            processes = [psutil.Process(pid) for pid in held if psutil.pid_exists(pid)]
            psutil.wait_procs(processes, timeout=30)
        # A slot has no name and lives in the processes that map it, and none of them is left.
        assert [p for p in held if open_files(p)] == []
