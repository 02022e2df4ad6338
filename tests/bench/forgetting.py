"""Memory of 1,000 forgotten jobs: of a stock scheduler, its workers and the client.

    python -m tests.bench.forgetting [--jobs 1000] [--keep]

Most jobs are tiny, with their data in memory; each 20th has 50,000 columns, each 20th 8 MB of data.
Every 100 jobs a line of JSON: resident megabytes of each process, and how many objects of the kinds
that a job consists of are alive, without a garbage collection before. With ``--keep`` no job is
forgotten: then the limits of finished jobs bound the memory.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import elasticml as em
from tests.stock_cluster import stock_cluster

#: What a job consists of on the scheduler, on workers and at the client.
KINDS = (
    *("DriverAgent", "DriverSession", "Driver", "JobState", "Buffers", "TrainerRunner", "Journal"),
    *("FinishedJob", "LiveJob", "ArraySource", "MemberAgent", "CollectiveAgent", "ChunkStore"),
    *("BatchGradientSolver", "Handle", "Peer"),
)


def state(kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    """Return a process's resident megabytes, and the objects of these kinds that are alive."""
    import gc

    import psutil

    names = [type(one).__name__ for one in gc.get_objects()]
    counts = {kind: names.count(kind) for kind in kinds}
    return {
        "rss": round(psutil.Process().memory_info().rss / 2**20, 1),
        "alive": {kind: n for kind, n in counts.items() if n},
    }


def job(k: int) -> em.Job:
    """Make a job: mostly a tiny one."""
    rng = np.random.default_rng(k)
    X: Any = rng.normal(size=(200, 5))
    if k % 20 == 7:
        X = sp.random(200, 50_000, density=1e-3, format="csr", random_state=k)
    if k % 20 == 13:
        X = rng.normal(size=(20_000, 50))
    y = np.where(rng.normal(size=X.shape[0]) > 0, 1.0, -1.0)
    algorithm = em.BatchGradient(l2=1e-2, optimizer="gd", scale="none")
    return em.Job(algorithm, em.from_arrays(X, y), stop=em.Stop(rounds=3), evaluate=False)


def main() -> None:
    """Run the jobs and print what is left of them."""
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, default=1000)
    options.add_argument("--every", type=int, default=100)
    options.add_argument("--keep", action="store_true")
    given = options.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        stock_cluster(Path(folder)) as cluster,
    ):
        for name in ("one", "two"):
            cluster.worker(name, "--no-nanny")
        with cluster.client() as client:
            cluster.await_workers(client, 2)
            began_s = time.monotonic()
            for k in range(given.jobs + 1):
                if k % given.every == 0:
                    line = {
                        "jobs": k,
                        "seconds": round(time.monotonic() - began_s, 1),
                        "scheduler": client.run_on_scheduler(state),
                        "workers": list(client.run(state).values()),
                        "client": state(),
                    }
                    print(json.dumps(line), flush=True)
                handle = job(k).start(client)
                handle.result()
                if not given.keep:
                    handle.forget()
                del handle


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
