"""Shared memory of processes that are really killed: no stale sums, and it ends with them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client

import elasticml as em
from elasticml.data.synthetic.splice_sites import synthetic_splice
from tests.waiting import until

pytestmark = pytest.mark.cluster

N_MEMBERS = 4
#: Prefix of the link of a slot's descriptor in /proc.
SLOT = "/memfd:elasticml"


def wide_job(rounds: int, faults: Sequence[dict[str, Any]] = ()) -> em.Job:
    """Make a job whose vectors of 480 kB go through slots; each of their values is checked."""
    return em.Job(
        em.ImportedAlgorithm(name="tests.wide_toy:ALGORITHM", rounds=rounds),
        synthetic_splice(rows=600, length=30, seed=5),
        absent="ignore",
        stop=em.Stop(rounds=rounds),
        collective=em.settings.Collective(
            topology="tree", transport="shm", fan_out=2, deadline=3.0
        ),
        faults=faults,
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


def test_every_value_of_every_sum_is_right_while_members_are_killed() -> None:
    """The trainer checks each value of a sum, and reports how many sums it has checked."""
    faults = [
        {"round": at, "lose": [slot], "how": "kill", "phase": phase}
        # The first two have others below them, which get the model from another, and send to it.
        for at, slot, phase in [(5, 0, "broadcast"), (15, 1, "compute"), (25, 2, "reduce")]
    ]
    with em.LocalCluster(N_MEMBERS) as cluster, Client(cluster, set_as_default=False) as client:
        result = wide_job(40, faults).run(client)
    assert result.summary["lost"] >= 3
    assert max(row.get("checked") or 0 for row in result.history) == 40


@pytest.mark.parametrize("victims", [pytest.param("scheduler", marks=pytest.mark.slow), "all"])
def test_a_job_that_is_killed_leaves_no_memory_behind(victims: str) -> None:
    with em.LocalCluster(N_MEMBERS) as cluster:
        with Client(cluster, set_as_default=False) as client:
            handle = wide_job(10**6).start(client)
            until(lambda: handle.status().round > 5, "the job does not reach round 5")
            pids = pids_of(cluster)
            held = [p for p in pids if any(f.startswith(SLOT) for f in open_files(p))]
            assert len(held) > N_MEMBERS
            assert [f for p in pids for f in open_files(p) if f.startswith("/dev/shm")] == []

            for pid in pids if victims == "all" else [cluster.scheduler_pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            processes = [psutil.Process(pid) for pid in held if psutil.pid_exists(pid)]
            psutil.wait_procs(processes, timeout=30)
        # A slot has no name and lives in the processes that map it, and none of them is left.
        assert [p for p in held if open_files(p)] == []
