"""Exchanges between several hosts: network namespaces on one machine, joined by shaped links.

    python -m tests.bench hosts [--hosts 4] [--rate 1gbit] [--fan-outs 1 2] [--kill]

Every member and the driver have separate hosts. A job of long vectors (8 MB) runs with segmented
and with whole vectors in turns; every value of every sum is checked (``tests/wide_toy.py``). With
``--kill`` a member in the middle of the tree is killed while vectors are in flight. Needs root and
iproute2. The processes still share memory, so streams are requested.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
from collections.abc import Sequence
from typing import Any

from distributed import Client

import elasticml as em
from elasticml.clusters.process_setup import configure_dask, load_for_worker
from elasticml.collective import dask_transport
from elasticml.data.synthetic.splice_sites import synthetic_splice
from tests.bench import harness
from tests.bench.namespaces import SCHEDULER, in_fork, serving
from tests.bench.namespaces import hosts as shaped_hosts

WIDTH = 1_000_000
#: A round's time counts from this one on: the first ones set up links and buffers.
FIRST_ROUND = 3


def train(fan_out: int, rounds: int, members: int, kill: int) -> dict[str, Any]:
    """Run the job as its client; kill a worker's process in mid-round if one is named."""
    with Client(SCHEDULER, set_as_default=False) as client:
        client.wait_for_workers(members)
        job = em.Job(
            em.ImportedAlgorithm(name="tests.wide_toy:ALGORITHM", rounds=rounds, width=WIDTH),
            synthetic_splice(rows=600, length=30, seed=5),
            absent="ignore",
            stop=em.Stop(rounds=rounds),
            collective=em.settings.Collective(topology="tree", transport="stream", fan_out=fan_out),
            chunk_size=1024,
        )
        handle = job.start(client)
        for record in handle if kill else ():
            if record["event"] == "RoundEnded" and record["round"] == rounds // 2:
                os.kill(kill, signal.SIGKILL)
        result = handle.result()
    ends = [row["seconds"] for row in result.history][FIRST_ROUND:rounds]
    spent = [b - a for a, b in itertools.pairwise(ends)]
    return {
        "rounds": len([row for row in result.history if row.get("checked")]),
        "lost": result.summary["lost"],
        "median_ms": 1e3 * statistics.median(spent),
        "min_ms": 1e3 * min(spent),
    }


def one_run(
    names: list[str], fan_out: int, rounds: int, kill: bool, piece_bytes: int | None
) -> dict[str, Any]:
    """Start all processes, each on its host, and run one job."""
    dask_transport.PIECE_BYTES = piece_bytes  # of the processes that are forked
    members = len(names) - 1
    with serving(names, members) as [_, *workers]:
        victim = workers[0] if kill else 0
        return in_fork(names[0], lambda: train(fan_out, rounds, members, victim))


def main(
    *,
    hosts: int = 4,
    rate: str = "1gbit",
    fan_outs: Sequence[int] = (1, 2),
    rounds: int = 20,
    repeats: int = 2,
    kill: bool = False,
) -> None:
    """Print a line for each job; ``rate`` is of every host's link, each way."""
    configure_dask(dashboard=False)
    load_for_worker([])
    ways = {"pieces": dask_transport.PIECE_BYTES, "whole": None}
    harness.head("fan-out", "vectors", "repeat", "rounds", "lost", "median ms", "min ms", keys=3)
    with shaped_hosts(hosts + 1, rate) as names:
        for fan_out in fan_outs:
            for repeat in range(repeats):
                for way, piece_bytes in ways.items():
                    figures = one_run(names, fan_out, rounds, kill, piece_bytes)
                    times = (f"{figures[key]:.1f}" for key in ("median_ms", "min_ms"))
                    harness.row(fan_out, way, repeat, figures["rounds"], figures["lost"], *times)
