"""Asynchronous SGD on real workers and a slow network: batch sizes, stalls and link use.

    python tests/bench/asgd_network.py --bandwidth "8 MB"

K-Means whose states take 81 kB each, on uplinks that are limited to a rate: fixed mini-batches with
a queue that blocks stall below the critical size, adaptive ones find it, and one slot for the
newest state needs neither. Members generate their own data; there must be many more rows than a
mini-batch has, or passes end in short ones. ``b/bc`` is the mean batch over the critical one, with
the seconds per example while the member was not stalled.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from distributed import Client

import elasticml as em
from elasticml.data.synthetic.clusters import synthetic_clusters
from elasticml.ids import parse_size
from elasticml.jobs.result import Result

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import harness

CLUSTERS = COLUMNS = 100
#: A centre's coordinates and its mass.
STATE_BYTES = 8 * CLUSTERS * (COLUMNS + 1)
#: Batch controllers, and the queue that blocks for each.
WAYS: tuple[dict[str, Any], ...] = (
    {"batch": 300, "mode": "paper", "queue": 16},
    {"batch": 1000, "mode": "paper", "queue": 16},
    {"batch": 3000, "mode": "paper", "queue": 16},
    {"batch": 10_000, "mode": "paper", "queue": 16},
    {"batch": "adaptive", "mode": "paper", "queue": 16},
    {"batch": "auto", "queue": 2},
    {"batch": 300},
    {"batch": 3000},
)
#: Initial seconds that do not count: controllers settle.
SETTLING_S = 5.0


def measured(result: Result, members: int, bandwidth: float) -> str:
    """Describe what each member did in a second of the counted time."""
    rows = [row for row in result.history[:-1] if row["batch"] is not None]
    begun_s = float(rows[0]["seconds"])
    first = next(row for row in rows if row["seconds"] >= begun_s + SETTLING_S)
    last = rows[-1]
    seconds = (last["seconds"] - first["seconds"]) * members

    def rate(name: str) -> float:
        return float(last[name] - first[name]) / seconds

    return (
        f"{rate('examples'):9.0f} {rate('batches'):7.1f} {rate('sent'):6.1f} "
        f"{rate('merged'):6.1f} {rate('overwritten'):11.1f} {rate('stalled_s'):7.2f} "
        f"{rate('sent') * STATE_BYTES / bandwidth:5.2f} {last['batch']:8.0f} "
        f"{bandwidth * (1.0 - rate('stalled_s')) / STATE_BYTES / rate('batches'):5.2f} "
        f"{result.summary['objective']:.5f}"
    )


def main() -> int:
    """Run the study; return the exit code."""
    parser = harness.parser(__doc__)
    parser.add_argument("--bandwidth", default="8 MB", help="bytes per second of an uplink")
    parser.add_argument("--latency", type=float, default=1e-4, help="seconds")
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--ways", nargs="*", help="batches to try: 300, auto, ...; all by default")
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    bandwidth = float(parse_size(options.bandwidth))
    data = synthetic_clusters(options.rows, clusters=CLUSTERS, columns=COLUMNS, seed=1)
    print("per member and second; a state of the paper's mode has no masses and is 1 % shorter")
    print(
        "way               examples batches   sent merged overwritten stalled  use    batch  b/bc J"
    )
    with em.LocalCluster(options.members) as cluster, Client(cluster) as client:
        for way in WAYS:
            if options.ways and str(way["batch"]) not in options.ways:
                continue
            job = em.Job(
                em.AsyncSGD("kmeans", k=CLUSTERS, report_every=0.5, **way),
                data,
                name="network",
                stop=em.Stop(seconds=options.seconds),
                collective=em.Collective(bandwidth=bandwidth, latency_s=options.latency),
                chunk_size="256 KiB",
                evaluate=False,
            )
            name = f"{way['batch']} {'blocks' if 'queue' in way else 'newest'}"
            print(f"{name:16s}", measured(job.run(client), options.members, bandwidth), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
