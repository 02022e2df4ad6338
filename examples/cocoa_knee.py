"""Certified training in four cells: fixed partition, reshuffled chunks, warm start, knee.

Run it as a script, or cell by cell in an editor that supports ``# %%``; it takes a few seconds::

    ELASTICML_DATA=/folder/with/data/sets python examples/cocoa_knee.py
"""

# %% Data, and a cluster of four worker processes on this machine.
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dask.distributed import Client

import elasticml as em

GAP = 1e-6
FOLDER = Path(os.environ.get("ELASTICML_DATA", "../shared/data")) / "reuters21578"


def train(client: Client, name: str, **settings: Any) -> em.Result:
    """Train to the gap and print rounds and time."""
    data = em.read_svmlight(str(FOLDER / "reuters21578.train.svm.gz"))
    stop = em.Stop(rounds=300, gap=GAP)
    # Compute a gap after every round: the knee is detected from gaps, and rounds are few here.
    algorithm = em.CoCoA(
        loss="hinge", l2=1e-2, gap_every=1, intercept=False, tolerance=0.0, scale="none"
    )
    job = em.Job(algorithm, data, name=name, stop=stop, **settings)
    result = job.run(client)
    report = result.summary
    print(
        f"{name:<12} {report['rounds']:4d} rounds   gap {report['gap']:.1e}   "
        f"{report['container_seconds']:6.2f} container-seconds   {report['members']['end']} members"
    )
    return result


def main() -> dict[str, em.Result]:
    """Run the cells and return their results by name."""
    results: dict[str, em.Result] = {}
    with em.LocalCluster(workers=4) as cluster, Client(cluster) as client:
        # %% Every member keeps its chunks: the partition is fixed.
        results["fixed"] = train(client, "fixed", holders=1)

        # %% Two members hold each chunk, and its owner is drawn before each round: only the dual
        # variables travel. CoCoA does this by default if memory allows.
        results["re-dealt"] = train(client, "re-dealt", holders=2)

        # %% The same, starting from the previous model, that is, from the optimum.
        results["warm"] = train(client, "warm", holders=2, warm_start=results["re-dealt"].model)

        # %% With a policy that releases members once fewer members make faster progress. It comes
        # last, because released workers are gone. The story has the reasons.
        knee = em.policies.ScaleInAtKnee(factor=4)
        results["knee"] = train(client, "knee", holders=2, policies=[knee])
        for record in results["knee"].story:
            if record["event"] == "PolicyDecided" and record["policy"] == "knee":
                print(f"  round {record['round']}: {record['why']}")
    return results


# %%
if __name__ == "__main__":
    main()
