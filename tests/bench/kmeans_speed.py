"""K-Means against scikit-learn: inertia and time of one process with one thread, as ratios.

    python tests/bench/kmeans_speed.py [seeds, 5 by default] [hog] [birch1]

Ours is one member's loop over its own chunks, start included: k-means++ on 30 rows a centre or
k-means||, then passes. By turns with ``MiniBatchKMeans`` as it comes, but for labels, which nobody
computes; ``KMeans`` runs once. Seconds are of the processor, so that a busy machine does not choose
the winner; medians over seeds.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sklearn.cluster import KMeans as Lloyd  # noqa: E402
from sklearn.cluster import MiniBatchKMeans  # noqa: E402

from elasticml.algorithms.async_sgd.baselines import lloyd  # noqa: E402
from elasticml.algorithms.async_sgd.kmeans import KMeans, inertia  # noqa: E402
from elasticml.algorithms.async_sgd.questions import ask_here  # noqa: E402
from elasticml.algorithms.async_sgd.sampler import Sampler  # noqa: E402
from elasticml.algorithms.async_sgd.starts import start  # noqa: E402
from elasticml.data.chunk import dense_chunk  # noqa: E402
from elasticml.terms import ChunkId  # noqa: E402
from tests.bench.kmeans_data import birch1, hog  # noqa: E402

K, CHUNK_BYTES = 100, 2**20


def chunked(X):
    """Cut rows into chunks of 1 MiB."""
    size = max(1, CHUNK_BYTES // (X.shape[1] * X.itemsize))
    dtype = "float32" if X.dtype == np.float32 else "float64"
    return [
        dense_chunk(ChunkId("rows", i, 0), np.zeros(len(part)), part, dtype=dtype)
        for i, part in enumerate(X[s : s + size] for s in range(0, len(X), size))
    ]


def ours(chunks, seed, *, how="kmeans++", passes=1, batch=None, last=0):
    """Start and loop; return the centres."""
    d, n = chunks[0].values.shape[1], sum(chunk.n_rows for chunk in chunks)
    for chunk in chunks:
        chunk.state = {}
    begun = ask_here(
        start(how, clusters=K, columns=d, n_rows=n, n_blocks=len(chunks), seed=seed), chunks
    )
    problem = KMeans(clusters=K, columns=d)
    state, sampler = problem.begin(begun), Sampler(chunks, seed=seed)
    while sampler.passes < passes:
        problem.step(state, sampler.next(max(3 * K, 256) if batch is None else batch))
    return ask_here(lloyd(state["centres"], last), chunks)["centres"]


def ways(X, chunks):
    """Name every way, and how it finds centres."""
    fitted = {"n_init": 1, "init": "k-means++"}
    return {
        "MiniBatchKMeans": lambda s: (
            MiniBatchKMeans(K, random_state=s, compute_labels=False, **fitted)
            .fit(X)
            .cluster_centers_
        ),
        "KMeans (Lloyd)": lambda s: Lloyd(K, random_state=s, **fitted).fit(X).cluster_centers_,
        "ours, 1 pass": lambda s: ours(chunks, s),
        "ours, 1 pass, b=1000": lambda s: ours(chunks, s, batch=1000),
        "ours, k-means||, 1 pass": lambda s: ours(chunks, s, how="kmeans||"),
        "ours, 1 pass + 1 Lloyd": lambda s: ours(chunks, s, last=1),
        "ours, 5 passes": lambda s: ours(chunks, s, passes=5),
        "ours, 5 passes + 3 Lloyd": lambda s: ours(chunks, s, passes=5, last=3),
    }


def measure(name, X, seeds):
    """Print the table of one data set."""
    chunks = chunked(X)
    found = {way: ([], []) for way in ways(X, chunks)}
    few = chunked(X[:5000])
    for run in ways(X[:5000], few).values():
        run(99)  # compiles, or loads what was compiled
    for seed in range(seeds):
        for way, run in ways(X, chunks).items():
            if way.startswith("KMeans") and seed:
                continue
            began = time.process_time()
            centres = run(seed)
            found[way][0].append(time.process_time() - began)
            found[way][1].append(inertia(np.ascontiguousarray(centres, np.float64), chunks))
    base_s, base = (np.median(some) for some in found["MiniBatchKMeans"])
    print(f"\n{name}: {len(X)} x {X.shape[1]}, {X.dtype}, k={K}, {seeds} seeds\n")
    print("way | seconds | time / MiniBatchKMeans | inertia over MiniBatchKMeans | KMeans")
    print("---|---|---|---|---")
    lloyds = np.median(found["KMeans (Lloyd)"][1])
    for way, (seconds, values) in found.items():
        s, v = np.median(seconds), np.median(values)
        print(f"{way} | {s:.3f} | {s / base_s:.2f} ", end="")
        print(f"| {100 * (v / base - 1):+.2f} % | {100 * (v / lloyds - 1):+.2f} %", flush=True)


def main(seeds, names):
    """Print all tables."""
    for name, read in (("hog", hog), ("birch1", birch1)):
        if names and name not in names:
            continue
        X = read()
        measure(name, X, seeds)
        measure(name, X.astype(np.float32), seeds)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:])
