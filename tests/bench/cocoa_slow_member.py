"""A worker made 1.5 times slower by real extra work: how soon the load follows.

    python tests/bench/cocoa_slow_member.py [--members 2] [--rows 60000] [--factor 1.5]

Prints slowest / mean compute time of each round, without balancing and with each policy that
balances. The data are generated on the members, in the shape of RCV1.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from distributed import Client

import elasticml as em
from elasticml.data.shapes import synthetic


def imbalances(records: list[dict[str, Any]]) -> list[float]:
    """Slowest over mean compute time of the pass of each round."""
    found = []
    for record in records:
        if record["event"] == "ExchangeEnded" and record["operation"] == "pass":
            seconds = list(record["compute_s"].values())
            found.append(max(seconds) * len(seconds) / sum(seconds))
    return found


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--rows", type=int, default=60_000)
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
    print("| way | median of rounds 11 on | slowest / mean, round by round |")
    print("|---|---|---|")
    with em.LocalCluster(options.members, slowdown=slow) as cluster, Client(cluster) as client:
        for way, policies in ways.items():
            job = em.Job(
                em.CoCoA(loss="hinge", l2=1e-4, shrink=False),
                data,
                policies=policies,
                stop=em.Stop(rounds=options.rounds),
                evaluate=False,
            )
            records = [dict(record) for record in job.start(client).events()]
            found = imbalances(records)
            each = " ".join(f"{x:.2f}" for x in found)
            print(f"| {way} | {statistics.median(found[10:]):.3f} | {each} |", flush=True)


if __name__ == "__main__":
    main()
