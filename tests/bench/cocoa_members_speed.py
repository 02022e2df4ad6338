"""A CoCoA job as users run it, on 1 and 2 members: seconds to certified gaps on large data.

    python tests/bench/cocoa_members_speed.py [--rows 2050000] [--l2 1e-4]

The data have RCV1's shape, 73 stored float32 values a row, and are generated on the members. The
clock runs from the first pass; certificates and the exchange between processes are in it. Gaps are
relative to the objective.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from distributed import Client

import elasticml as em
from elasticml.data.synthetic.sparse import synthetic

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import harness

TARGETS = (1e-3, 1e-5)


def main() -> None:
    """Run the study."""
    parser = harness.parser(__doc__)
    parser.add_argument("--rows", type=int, default=2_050_000)
    parser.add_argument("--l2", type=float, default=1e-4)
    options = parser.parse_args()
    data = synthetic("rcv1", options.rows, seed=1, dtype="float32")
    harness.head("members", "threads each", "rounds", "s to 1e-3", "s to 1e-5")
    for members, threads in ((1, 1), (1, 2), (2, 1)):
        with em.LocalCluster(members, threads=threads) as cluster, Client(cluster) as client:
            job = em.Job(
                em.CoCoA(
                    loss="hinge", l2=options.l2, tolerance=1e-6, intercept=False, scale="none"
                ),
                data,
                stop=em.Stop(rounds=60, seconds=120),
                evaluate=False,
            )
            records: list[Any] = list(job.start(client).events())
        began_s = next(r["start_t"] for r in records if r.get("operation") == "pass")
        ended = [r for r in records if r["event"] == "RoundEnded"]
        ended.append({**ended[-1], **next(r for r in records if r["event"] == "FinalModel")})
        reached = []
        for target in TARGETS:
            # A round's row has the gap at the end of the previous round.
            near = (
                ended[k - 1]["t"]
                for k, r in enumerate(ended)
                if k and r["gap"] is not None and r["gap"] <= target * r["objective"]
            )
            result = next(near, None)
            reached.append("-" if result is None else f"{result - began_s:.2f}")
        print(
            f"| {members} | {threads} | {len(ended) - 1} | {reached[0]} | {reached[1]} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
