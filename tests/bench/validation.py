"""Validation while training: the rounds that early stopping saves, and the cost of the scores.

    python tests/bench/validation.py [rows] [columns]

The data of the first job overfit: most columns are noise, and there is nearly no penalty. Cost: the
median seconds of a round that is scored, over those of the same job on the same training rows
without scores. The two jobs alternate.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from typing import Any

import numpy as np
from distributed import Client

import elasticml as em

MEMBERS, ROUNDS, REPEATS = 2, 60, 3
SHARE = 0.1


def seconds_of_rounds(result: Any) -> list[float]:
    """Return the seconds of each round but the first three, which compile and allocate."""
    times = [row["seconds"] for row in result.history[:-1]]
    return [after - before for before, after in itertools.pairwise(times[2:])]


def main(rows: int = 40_000, columns: int = 200) -> None:
    """Print the rounds saved, and the cost of scoring in per cent of a round."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, columns))
    informative = X[:, :5] @ rng.standard_normal(5)
    few = min(rows, 6 * columns)
    y = np.sign(informative + 3.0 * rng.standard_normal(rows))
    data, small = em.from_arrays(X, y), em.from_arrays(X[:few], y[:few])

    def run(client: Client, source: Any, validate: Any) -> Any:
        job = em.Job(
            em.BatchGradient(l2=1e-9, intercept=False, tolerance=0.0, scale="none"),
            source,
            stop=em.Stop(rounds=ROUNDS),
            validate=validate,
            evaluate=False,
        )
        return job.run(client)

    with em.LocalCluster(MEMBERS) as cluster, Client(cluster, set_as_default=False) as client:
        full = run(client, small, em.Validate(share=0.3, patience=0))
        early = run(client, small, em.Validate(share=0.3, patience=5))
        plain: list[float] = []
        scored: list[float] = []
        for _ in range(REPEATS):
            never = em.Validate(share=SHARE, every=10 * ROUNDS, patience=0)
            always = em.Validate(share=SHARE, patience=0)
            plain += seconds_of_rounds(run(client, data, never))
            scored += seconds_of_rounds(run(client, data, always))
    a, b = full.summary, early.summary
    saved = 1.0 - b["rounds"] / a["rounds"]
    print(
        f"rounds        {a['rounds']} without early stopping, {b['rounds']} with: {saved:.0%} saved"
    )
    print(f"best score    {a['validation']['score']:.6f}, {b['validation']['score']:.6f}")
    before, after = statistics.median(plain), statistics.median(scored)
    print(f"round         {1e3 * before:.2f} ms plain, {1e3 * after:.2f} ms scored every round")
    print(f"cost          {100.0 * (after / before - 1.0):+.1f} % of a round")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
