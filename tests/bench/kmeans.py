"""K-Means against scikit-learn: curves of inertia over seconds in one process, by threads.

    python -m tests.bench kmeans [--data words ...] [--threads 1 2] [--seeds 5] [--json FILE]

Every setting is a point of its estimator's curve: medians over seeds of the seconds of ``fit``,
labels included, and of the inertia over all rows. All settings take turns. The second table has the
ratio of the seconds of ``em.KMeans`` with its defaults, and of its fastest setting that ends as
low, to those of each peer. Limit OpenMP and linear algebra with ``OMP_NUM_THREADS`` and
``OPENBLAS_NUM_THREADS``. Wall times, so nothing else should run.

    python -m tests.bench kmeans --table [--data wide ...] [--k 5 20 100] [--seeds 10]

The mean inertia, and the processor time, of ``em.KMeans`` over those of scikit-learn's ``KMeans``,
one thread each, seed by seed in turn.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from sklearn.cluster import KMeans as Lloyd
from sklearn.cluster import MiniBatchKMeans
from threadpoolctl import threadpool_limits

import elasticml as em
from tests.bench import harness
from tests.bench.kmeans_data import SETS, TABLE

OURS = {
    "seeding": {"max_iter": 0},
    "5 iterations": {"max_iter": 5},
    "default": {},
}
PEERS = {
    "MiniBatchKMeans": (MiniBatchKMeans, {}),
    "MiniBatchKMeans, 10 passes": (MiniBatchKMeans, {"max_iter": 10, "max_no_improvement": None}),
    "KMeans lloyd, 10": (Lloyd, {"max_iter": 10}),
    "KMeans lloyd": (Lloyd, {}),
    "KMeans elkan": (Lloyd, {"algorithm": "elkan"}),
}


def ways(k, n_threads):
    """Return every estimator that finds centres, by name."""
    ours = {
        name: lambda s, given=given: em.KMeans(k, random_state=s, n_jobs=n_threads, **given)
        for name, given in OURS.items()
    }
    peers = {
        name: lambda s, kind=kind, given=given: kind(k, random_state=s, n_init=1, **given)
        for name, (kind, given) in PEERS.items()
    }
    return {**ours, **peers}


def measure(name, seeds, n_threads):
    """Return rows of the table of one data set: set, threads, way, seconds, inertia, ratios."""
    make_rows, k = SETS[name]
    X = make_rows()
    every = ways(k, n_threads)
    times, ends = ({way: [] for way in every} for _ in range(2))
    with threadpool_limits(n_threads):
        every["default"](99).fit(X[:5000])  # compiles, or loads compiled code
        for seed in range(seeds):
            for way, make in every.items():
                model, seconds = harness.timed(lambda make=make, seed=seed: make(seed).fit(X))
                times[way].append(seconds)
                ends[way].append(model.inertia_)
    points = {way: (float(np.median(times[way])), float(np.median(ends[way]))) for way in every}
    rows = []
    for way, (seconds, inertia) in points.items():
        ratios = ["", ""]
        if way in PEERS:
            as_low = [points[own][0] for own in OURS if points[own][1] <= inertia]
            default = points["default"]
            ratios = [
                round(default[0] / seconds, 2) if default[1] <= inertia else "higher",
                round(min(as_low) / seconds, 2) if as_low else "never",
            ]
        rows.append([name, k, n_threads, way, round(seconds, 3), round(inertia, 3), *ratios])
    return rows


def ratios(names, numbers, seeds):
    """Print the table of ratios, by set and number of clusters."""
    harness.head("set", "k", "inertia", "error", "time", "seconds", "scikit-learn's", keys=2)
    for name in names:
        X = TABLE[name]()
        if sp.issparse(X):  # scikit-learn takes no other indices
            parts = (X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32))
            X = sp.csr_matrix(parts, X.shape)
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for k in numbers:
                ends, times = np.empty((2, seeds)), np.empty((2, seeds))
                for kind in (em.KMeans, Lloyd):
                    kind(k, random_state=0).fit(X[:3000])
                for seed in range(seeds):
                    for i, kind in enumerate((em.KMeans, Lloyd)):
                        made = kind(k, random_state=seed)
                        model, times[i, seed] = harness.timed(
                            lambda made=made, X=X: made.fit(X), time.process_time
                        )
                        ends[i, seed] = model.inertia_
                ours, theirs = ends.mean(axis=1)
                error = np.hypot(*ends.std(axis=1)) / theirs / np.sqrt(seeds)
                seconds = times.mean(axis=1)
                found = [f"{ours / theirs:.4f}", f"{error:.4f}", round(seconds[0] / seconds[1], 2)]
                harness.row(name, k, *found, *seconds.round(3))


COLUMNS = (
    *("set", "k", "threads", "estimator, setting"),
    *("seconds", "inertia", "default / peer", "first as low / peer"),
)


def main(
    *,
    seeds: int | None = None,
    data: Sequence[str] = (),
    threads: Sequence[int] = (1, 2),
    json: Path | None = None,
    table: bool = False,
    k: Sequence[int] = (5, 20, 100),
):
    """Print all tables."""
    if table:
        ratios(data or tuple(TABLE), k, seeds or 10)
        return
    rows = []
    harness.head(*COLUMNS, keys=4)
    for name in data or SETS:
        for n_threads in threads:
            for row in measure(name, seeds or 5, n_threads):
                harness.row(*row)
                rows.append(row)
    if json:
        harness.report({"columns": COLUMNS, "rows": rows}, json)
