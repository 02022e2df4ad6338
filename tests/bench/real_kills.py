"""Many runs of real worker processes under random SIGKILLs: no hang, no double count.

    python tests/bench/real_kills.py --runs 30

Every run's objective, where all examples are there, is compared with one computed anew from the
source. The driver checks its invariants whenever somebody joins or goes; a broken one fails a run.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from pathlib import Path

import numpy as np
from distributed import Client

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import elasticml as em
from elasticml.data.synthetic import synthetic_splice
from tests.real_kills import run_with_random_kills

MODES = ("taylor", "stall", "reload", "ignore")


def main() -> int:
    """Run the study; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--members", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    data = synthetic_splice(rows=1500, length=30, seed=5)
    totals: collections.Counter[str] = collections.Counter()
    began_s = time.monotonic()
    with em.LocalCluster(options.members) as cluster, Client(cluster) as client:
        for seed in range(options.runs):
            outcome = run_with_random_kills(
                cluster,
                client,
                data,
                seed=seed,
                members=options.members,
                rounds=options.rounds,
                absent=MODES[seed % len(MODES)],
                topology=("tree", "star")[seed // len(MODES) % 2],
            )
            summary = outcome.result.summary
            totals["runs"] += 1
            totals["kills"] += outcome.kills
            totals["returns"] += outcome.returns
            totals["lost"] += summary["lost"]
            for row in outcome.result.history:
                if row["objective_kind"] == "exact" and row.get("objective_full") is not None:
                    totals["rows compared"] += 1
                    if not np.isclose(row["objective"], row["objective_full"], rtol=1e-9):
                        totals["wrong rows"] += 1
            print(f"seed {seed}: {summary['rounds']} rounds, {outcome.kills} killed", flush=True)
    took_s = time.monotonic() - began_s
    print(", ".join(f"{name} {count}" for name, count in totals.items()), f"{took_s:.0f} s")
    return 1 if totals["wrong rows"] else 0


if __name__ == "__main__":
    sys.exit(main())
