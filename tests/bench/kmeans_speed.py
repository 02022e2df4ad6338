"""K-Means against scikit-learn: inertia and time in one process, as ratios, by number of threads.

    python tests/bench/kmeans_speed.py [--seeds 5] [--data hog birch1] [--threads 1 2] [--dtype ...]

``em.KMeans`` takes turns with ``MiniBatchKMeans`` with its defaults, both including labels; Lloyd's
``KMeans`` runs once. scikit-learn's OpenMP and linear algebra are limited to the same number of
threads. Wall times, so nothing else should run; medians over seeds. Inertia is over all rows.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

MOST = 2
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(MOST)

import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sklearn.cluster import KMeans as Lloyd  # noqa: E402
from sklearn.cluster import MiniBatchKMeans  # noqa: E402
from threadpoolctl import threadpool_limits  # noqa: E402

import elasticml as em  # noqa: E402
from tests.bench import harness  # noqa: E402
from tests.bench.kmeans_data import birch1, hog  # noqa: E402

K = 100
BASE, LLOYD = "MiniBatchKMeans", "KMeans (Lloyd)"
FITTED = {"n_init": 1, "init": "k-means++"}
#: Settings of ours, by name.
OURS = {
    "1 pass": {"max_iter": 1, "lloyd_iter": 0},
    "1 pass from k-means||": {"init": "k-means||", "max_iter": 1, "lloyd_iter": 0},
    "1 pass and 1 of Lloyd's": {"max_iter": 1},
    "5 passes and 1 of Lloyd's (default)": {},
    "5 passes, batches of 2000, 3 of Lloyd's": {"batch_size": 2000, "lloyd_iter": 3},
}


def ways(n_threads):
    """Return every estimator that finds centres, by name."""
    return {
        BASE: lambda s: MiniBatchKMeans(K, random_state=s, **FITTED),
        LLOYD: lambda s: Lloyd(K, random_state=s, **FITTED),
        **{
            way: lambda s, given=given: em.KMeans(K, random_state=s, n_jobs=n_threads, **given)
            for way, given in OURS.items()
        },
    }


def measure(name, X, seeds, n_threads):
    """Print the table of one data set."""
    results = {way: ([], []) for way in ways(n_threads)}
    with threadpool_limits(n_threads):
        for make in ways(n_threads).values():
            make(99).fit(X[:5000])  # compiles, or loads compiled code
        for seed in range(seeds):
            for way, make in ways(n_threads).items():
                if way == LLOYD and seed:
                    continue
                model, seconds = harness.timed(lambda make=make, seed=seed: make(seed).fit(X))
                results[way][0].append(seconds)
                results[way][1].append(model.inertia_)
    base_s, base = (np.median(some) for some in results[BASE])
    lloyd_s, lloyds = (np.median(some) for some in results[LLOYD])
    print(f"\n{name}: {len(X)} x {X.shape[1]}, {X.dtype}, k={K}, {seeds} seeds, ", end="")
    print(f"{n_threads} thread{'s' * (n_threads > 1)}\n")
    print("way | seconds | / MiniBatchKMeans | / KMeans | inertia / MiniBatchKMeans | / KMeans")
    print("---|---|---|---|---|---")
    for way, (seconds, values) in results.items():
        s, v = np.median(seconds), np.median(values)
        print(f"{way} | {s:.3f} | {s / base_s:.2f} | {s / lloyd_s:.3f} ", end="")
        print(f"| {100 * (v / base - 1):+.2f} % | {100 * (v / lloyds - 1):+.2f} %", flush=True)


def main():
    """Print all tables."""
    parser = harness.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", nargs="*", default=["hog", "birch1"])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, MOST])
    parser.add_argument("--dtype", default="float64")
    options = parser.parse_args()
    for name in options.data:
        X = {"hog": hog, "birch1": birch1}[name]().astype(options.dtype)
        for n_threads in options.threads:
            measure(name, X, options.seeds, n_threads)


if __name__ == "__main__":
    main()
