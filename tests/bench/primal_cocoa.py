"""The lasso on members: rounds and seconds to a relative gap, for 1, 2 and 4 members.

    python tests/bench/primal_cocoa.py [data ...]

Columns are standardised; the penalty is a hundredth of the one above which all coefficients are 0.
A gap counts relative to half the targets' variance. Members are processes of one machine, with one
thread each; a first job, which warms them up, is not counted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402
from distributed import Client  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import elasticml as em  # noqa: E402
from tests.bench.lasso_path import housing, protein, wide  # noqa: E402

SETS = {
    "california_housing": housing,
    "protein": protein,
    "wide 500 x 5000": lambda: wide(500, 5_000),
}
GAPS = (1e-6, 1e-8)
ROUNDS = 400


def problem(name):
    """The data by columns, the penalty, and the objective of no model."""
    X, y = SETS[name]()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = y - y.mean()
    l1 = 0.01 * float(np.abs(X.T @ y).max()) / len(y)
    return em.from_arrays(X, y, by="columns"), l1, 0.5 * float(np.mean(y * y))


def reached(result, gap):
    """The first round, and its seconds, that ended with such a gap."""
    for row in result.history:
        known = row.get("gap_best")
        if known is not None and known <= gap:
            return row["round"] + 1, row["seconds"]
    return None


def main():
    """Print a line for each data set and number of members."""
    names = sys.argv[1:] or list(SETS)
    print("| data | members | rounds, s to 1e-6 | rounds, s to 1e-8 |")
    for members in (1, 2, 4):
        with (
            em.LocalCluster(members) as cluster,
            Client(cluster.scheduler_address, set_as_default=False) as client,
        ):
            for name in names:
                source, l1, scale = problem(name)
                for rounds in (3, ROUNDS):
                    job = em.Job(
                        em.PrimalCoCoA(l1=l1, tolerance=GAPS[-1] * scale),
                        source,
                        stop=em.Stop(rounds=rounds),
                        evaluate=False,
                    )
                    result = job.run(client)
                found = [reached(result, gap * scale) for gap in GAPS]
                cells = ["–" if f is None else f"{f[0]}, {f[1]:.2f}" for f in found]
                print(f"| {name} | {members} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
