"""A worker slowed down 1.5 times by real extra work: how soon the load is rebalanced.

    python tests/bench/cocoa_slow_member.py [--members 2] [--rows 600000] [--factor 1.5]

Prints slowest / mean compute time, without balancing and with each balancing policy: over rounds 11
onwards together, which averages the noise of a shared machine, and for each round. The data are
generated on the members, in the shape of RCV1.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from distributed import Client

import elasticml as em
from elasticml.data.synthetic.sparse import synthetic

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import harness


def passes(records: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Compute seconds of each member's pass, round by round."""
    return [
        record["compute_s"]
        for record in records
        if record["event"] == "ExchangeEnded" and record["operation"] == "pass"
    ]


def imbalance(rounds: list[dict[str, float]]) -> float:
    """Slowest over mean of the members' total times in these rounds."""
    seconds = [sum(each[member] for each in rounds) for member in rounds[0]]
    return max(seconds) * len(seconds) / sum(seconds)


def main() -> None:
    """Run the study."""
    parser = harness.parser(__doc__)
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--factor", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    data = synthetic("rcv1", options.rows, seed=1)
    fixed: dict[str, Any] = {"name": "redeal", "share": 0}
    ways: dict[str, list[Any]] = {
        "no balancing": [fixed],
        "rebalance": [fixed, {"name": "rebalance"}],
        "redeal": [{"name": "redeal"}],
    }
    slow = {0: options.factor}
    harness.head(
        "way", "rounds 11 on, together", "median of them", "slowest / mean, round by round"
    )
    with em.LocalCluster(options.members, slowdown=slow) as cluster, Client(cluster) as client:
        for way, policies in ways.items():
            job = em.Job(
                em.CoCoA(
                    loss="hinge",
                    l2=1e-4,
                    shrink=False,
                    intercept=False,
                    tolerance=0.0,
                    scale="none",
                ),
                data,
                policies=policies,
                stop=em.Stop(rounds=options.rounds),
                evaluate=False,
            )
            records = [dict(record) for record in job.start(client).events()]
            rounds = passes(records)
            results = [imbalance([each]) for each in rounds]
            together, median = imbalance(rounds[10:]), statistics.median(results[10:])
            each = " ".join(f"{x:.2f}" for x in results)
            harness.row(way, f"{together:.3f}", f"{median:.3f}", each)


if __name__ == "__main__":
    main()
