"""Memory of a worker process of a local cluster, before data and after a small job.

    python -m tests.bench memory [--workers 3] [--algorithm cocoa]

Linux. Megabytes (10^6 bytes), medians over the workers: resident (all pages that a process maps),
proportional (shared pages divided among those that map them) and private (pages that only it has),
from ``/proc/PID/smaps_rollup``; also the threads. Workers are forked from a process that has
imported everything, whose own row is what they share. A cluster is started before, so that compiled
code is in the cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from distributed import Client

import elasticml as em
from tests.bench import harness


def memory(pid):
    """Return megabytes of a process: resident, proportional and private; and its threads."""
    sizes, tasks = harness.memory_mb(pid), Path(f"/proc/{pid}/task")
    return sizes["Rss"], sizes["Pss"], harness.private_mb(pid), len(list(tasks.iterdir()))


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def show(name, when, pids):
    harness.row(name, when, *(f"{x:.0f}" for x in harness.column_medians([*map(memory, pids)])))


def measure(workers, algorithm):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 20))
    y = np.where(X[:, :5].sum(axis=1) > 0.0, 1.0, -1.0)
    with em.LocalCluster(workers, algorithms=[algorithm]) as cluster:
        pids = [worker.pid for worker in cluster.workers()]
        show("worker", "before data", pids)
        with Client(cluster) as client:
            make = {"cocoa": em.CoCoA, "batch_gradient": em.BatchGradient}[algorithm]
            made = make(loss="logistic", l2=1e-3)
            job = em.Job(made, em.from_arrays(X, y), stop=em.Stop(rounds=5))
            job.run(client)
            show("worker", "after a job of 2,000 x 20", pids)
        show("scheduler", "after the job", [cluster.scheduler_pid])
        show("fork server", "after the job", [parent_of(pids[0])])


def main(*, workers: int = 3, algorithm: Literal["cocoa", "batch_gradient"] = "cocoa"):
    """Print the table."""
    harness.one_thread()  # of the processes that are started
    with em.LocalCluster(1, algorithms=[algorithm]):
        pass
    harness.head("process", "when", "resident", "proportional", "private", "threads", keys=2)
    measure(workers, algorithm)
