"""Many runs of real processes that share memory, under random SIGKILLs: is anything stale summed?

    python tests/bench/shared_kills.py --runs 100 [--members 5] [--rounds 80]

Models and partials are 480 kB and lie in slots. Each value of each sum is compared with what the
examples in it make it, each value of each model with what was sent (``tests/wide_toy.py``); a wrong
one fails its run. Afterwards nothing may be left: no name in /dev/shm, no process with a slot.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import sys
import time
from pathlib import Path

import psutil
from distributed import Client

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import elasticml as em
from elasticml.data.synthetic import synthetic_splice
from elasticml.errors import ElasticmlError
from tests.real_kills import disturbed

WAIT_S = 120
SLOT = "/memfd:elasticml"


def slot_holders(pids: set[int]) -> set[int]:
    """Find those of some processes that have a slot open."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                if os.readlink(entry).startswith(SLOT):
                    found.add(pid)
    return found


def family(pid: int) -> set[int]:
    """List a process and all that descend from it."""
    return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}


def main() -> int:
    """Run the study; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=80)
    options = parser.parse_args()
    data = synthetic_splice(rows=600, length=30, seed=5)
    totals: collections.Counter[str] = collections.Counter()
    names, pids = set(os.listdir("/dev/shm")), set[int]()
    began_s = time.monotonic()
    with em.LocalCluster(options.members) as cluster, Client(cluster) as client:
        for seed in range(options.runs):
            topology = ("tree", "star")[seed % 2]
            job = em.Job(
                em.ImportedAlgorithm(name="tests.wide_toy:ALGORITHM", rounds=options.rounds),
                data,
                name=f"shared-{seed}",
                absent="ignore",
                stop=em.Stop(rounds=options.rounds),
                collective=em.Collective(
                    topology=topology, transport="shm", fan_out=2, deadline=3.0
                ),
                chunk_size=1024,
            )
            # Those that the last run started may still be on their way.
            client.wait_for_workers(options.members, timeout=WAIT_S)
            try:
                outcome = disturbed(cluster, client, job, seed=seed, members=options.members)
            except ElasticmlError as error:
                totals["failed"] += 1
                print(f"seed {seed}: {error.message}", flush=True)
                continue
            pids |= family(cluster.scheduler_pid)
            rows = outcome.result.history
            totals["runs"] += 1
            totals["kills"] += outcome.kills
            totals["lost"] += outcome.result.summary["lost"]
            totals["sums checked"] += max(row.get("checked") or 0 for row in rows)
            print(f"seed {seed}: {topology}, {outcome.kills} killed", flush=True)
    left = set(os.listdir("/dev/shm")) - names
    still = slot_holders(pids)
    took_s = time.monotonic() - began_s
    print(", ".join(f"{name} {count}" for name, count in totals.items()), f"{took_s:.0f} s")
    print(
        f"new names in /dev/shm: {sorted(left)}; processes that still have slots: {sorted(still)}"
    )
    return 1 if totals["failed"] or still else 0


if __name__ == "__main__":
    sys.exit(main())
