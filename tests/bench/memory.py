"""Memory of a worker process of a local cluster, before data and after a small job.

    python tests/bench/memory.py [--workers 3] [--algorithm cocoa]

Linux. Megabytes (10^6 bytes), medians over the workers: resident (all pages that a process maps),
proportional (shared pages divided among those that map them) and private (pages that only it has),
from ``/proc/PID/smaps_rollup``; also the threads. Workers are forked from a process that has
imported everything, whose own row is what they share. A cluster is started before, so that compiled
code is in the cache.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from distributed import Client

import elasticml as em
from tests.bench import harness

_KEYS = ("Rss", "Pss", "Private_Clean", "Private_Dirty")


def memory(pid):
    """Return megabytes of a process: resident, proportional and private; and its threads."""
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key in _KEYS:
            sizes[key] = int(rest.split()[0]) * 1024 / 1e6
    private = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return sizes["Rss"], sizes["Pss"], private, len(list(Path(f"/proc/{pid}/task").iterdir()))


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def show(name, when, pids):
    harness.row(name, when, *(f"{x:.0f}" for x in harness.column_medians([*map(memory, pids)])))


def measure(options):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 20))
    y = np.where(X[:, :5].sum(axis=1) > 0.0, 1.0, -1.0)
    with em.LocalCluster(options.workers, algorithms=[options.algorithm]) as cluster:
        pids = [worker.pid for worker in cluster.workers()]
        show("worker", "before data", pids)
        with Client(cluster) as client:
            section = {"name": options.algorithm, "loss": "logistic", "l2": 1e-3}
            algorithm = {"cocoa": em.CoCoA, "batch_gradient": em.BatchGradient}[section.pop("name")]
            job = em.Job(algorithm(**section), em.from_arrays(X, y), stop=em.Stop(rounds=5))
            job.run(client)
            show("worker", "after a job of 2,000 x 20", pids)
        show("scheduler", "after the job", [cluster.scheduler_pid])
        show("fork server", "after the job", [parent_of(pids[0])])


def main():
    harness.one_thread()  # of the processes that are started
    parser = harness.parser(__doc__)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--algorithm", default="cocoa", choices=["cocoa", "batch_gradient"])
    options = parser.parse_args()
    with em.LocalCluster(1, algorithms=[options.algorithm]):
        pass
    harness.head("process", "when", "resident", "proportional", "private", "threads")
    measure(options)


if __name__ == "__main__":
    main()
