"""CoCoA on real worker processes under SIGKILL: what is certified, and what it is worth.

    PYTHONPATH=. python tests/bench/cocoa_kills.py [--members 6] [--set reuters] [--gap 1e-6]

1, 2 and half of the members are killed in every phase of round 2, with the chunks taken over at
once (``auto``) and with their duals frozen until as many members are back in round 12
(``freeze``; in ``mode: paper``, too, where a round reports its own model's certificate and not the
best one so far). Every round's model is kept and its objective computed anew from all examples:
where examples were absent the certificate must not be below it. Ends with status 1 where a run
does not end at the gap, an example is lost, or a certificate is wrong.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from distributed import Client

import elasticml as em

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "papers"))
from support.cocoa_data import SETS, load

PHASES = ("broadcast", "compute", "reduce", "move", "apply")
#: Rounding of two ways to add up the same losses.
SLACK = 1e-9


def main() -> int:
    """Run the study; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=6)
    parser.add_argument("--set", choices=list(SETS), default="reuters")
    parser.add_argument("--loss", default="hinge")
    parser.add_argument("--gap", type=float, default=1e-6)
    options = parser.parse_args()
    data = load(options.set)
    wrong = 0
    print("| absent | phase | killed | rounds | gap | bounds (from, to) | v off A alpha | wrong |")
    print("|---|---|---|---|---|---|---|---|")
    with em.LocalCluster(options.members) as cluster, Client(cluster) as client:
        for absent, mode in (("auto", "default"), ("freeze", "default"), ("freeze", "paper")):
            # Nothing moves where chunks stay with their owners.
            for phase in PHASES if absent == "auto" else [p for p in PHASES if p != "move"]:
                for lose in sorted({1, 2, options.members // 2}):
                    outcome = one(client, data, options, absent, mode, phase, lose)
                    cluster.scale(options.members)  # a run may end before its return
                    client.wait_for_workers(options.members)
                    wrong += outcome["wrong"]
                    print("| " + " | ".join(str(v) for v in outcome.values()) + " |", flush=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


def one(
    client: Client,
    data: Any,
    options: argparse.Namespace,
    absent: Any,
    mode: Any,
    phase: str,
    lose: int,
) -> dict[str, Any]:
    """Run one job and judge it."""
    job = em.Job(
        em.CoCoA(loss=options.loss, l2=0.01, gap_every=1, mode=mode),
        data,
        absent=absent,
        holders=2,
        # Chunks that change owners in every round have no share of the last certificate.
        policies=["redeal"] if absent == "auto" else [],
        faults=[
            {"round": 2, "phase": phase, "lose": lose, "how": "kill"},
            {"round": 12, "return": lose},
        ],
        stop=em.Stop(gap=options.gap, rounds=400, seconds=120),
        members=em.Members(start=options.members),
        evaluate=em.Evaluate(every=1),
    )
    result = job.run(client)
    summary = result.summary
    wrong = 0
    ratios = []
    drift = max(float(row.get("drift") or 0.0) for row in result.history)
    wrong += drift > 1e-10
    for row in result.history:
        full, claimed = row.get("objective_full"), row.get("objective")
        if full is None or claimed is None:
            continue
        if row["gap"] is not None and row["gap"] < 0:
            wrong += 1
        if row.get("gap_is_bound"):
            wrong += claimed < full - SLACK
            dual = claimed - row["gap"]
            ratios.append(row["gap"] / max(full - dual, 1e-300))
        elif not math.isclose(claimed, full, rel_tol=SLACK):
            wrong += 1
    ended = summary["gap"] is not None and 0 <= summary["gap"] <= options.gap
    whole = summary["lost"] == lose and not summary["gap_is_bound"]
    wrong += not (ended and whole)
    bounds = f"{min(ratios):.4f}, {max(ratios):.4f} of {len(ratios)}" if ratios else "none"
    return {
        "absent": f"{absent}, {mode}",
        "phase": phase,
        "killed": summary["lost"],
        "rounds": summary["rounds"],
        "gap": f"{summary['gap']:.2e}" if summary["gap"] is not None else None,
        "bounds": bounds,
        "drift": f"{drift:.0e}",
        "wrong": wrong,
    }


if __name__ == "__main__":
    sys.exit(main())
