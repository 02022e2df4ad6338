"""The two big generated sets: seconds and objective of fits with more and more effort.

    PEERS_VENV/bin/python tests/bench/big_linear.py --peer snapml --efforts 10 13 17
    python tests/bench/big_linear.py --peer elasticml --efforts 5e-4 3e-4 2e-4 [--threads 2]
        [--set rcv1_shaped | criteo_shaped] [--model hinge | logistic] [--folder KEPT]

The effort is the tolerance of elasticml's estimators, and the epochs of Snap ML. Each run is a
process of its own with the data in memory; the clock covers ``fit`` alone, after one on 200 rows
that loads what is compiled. l2 is 1/n. The sets, 1.6 GB, are made in the folder where they are not.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from tests.bench.peers.problems import Data, Problem  # noqa: E402


def ours(model: str, threads: int, tol: float) -> Any:
    """Make an estimator of elasticml."""
    import elasticml as em

    common: dict[str, Any] = {"fit_intercept": False, "C": 1.0, "n_jobs": threads, "tol": tol}
    if model == "hinge":
        return em.LinearSVC(loss="hinge", **common)
    return em.LogisticRegression(**common)


def theirs(model: str, threads: int, epochs: float) -> Any:
    """Make an estimator of Snap ML."""
    import snapml

    common: dict[str, Any] = {"fit_intercept": False, "n_jobs": threads, "max_iter": int(epochs)}
    common |= {"regularizer": 1.0, "tol": 1e-30}
    if model == "hinge":
        return snapml.SupportVectorMachine(loss="hinge", **common)
    return snapml.LogisticRegression(**common)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", choices=["elasticml", "snapml"], default="elasticml")
    parser.add_argument("--set", default="rcv1_shaped")
    parser.add_argument("--model", choices=["hinge", "logistic"], default="hinge")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--efforts", type=float, nargs="+", required=True)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/elasticml-big"))
    options = parser.parse_args()
    if not (options.folder / f"{options.set}-values.npy").exists():
        from tests.bench.peers.big_sets import write_big

        options.folder.mkdir(parents=True, exist_ok=True)
        write_big(options.folder, options.set)
    data = Data(options.folder, options.set)
    is_ours = options.peer == "elasticml"
    labels = data.labels if is_ours else data.labels.astype(np.float32)
    problem = Problem(model=options.model, l2=1.0 / data.n)
    make = ours if is_ours else theirs
    warnings.simplefilter("ignore")
    small = np.resize(np.array([1.0, -1.0], labels.dtype), 200)
    make(options.model, options.threads, 1.0).fit(data.X[:200], small)
    for effort in options.efforts:
        fitted = make(options.model, options.threads, effort)
        began = time.perf_counter()
        fitted.fit(data.X, labels)
        seconds = time.perf_counter() - began
        w = np.ravel(fitted.coef_).astype(np.float64)
        gap = f", certified gap {fitted.dual_gap_ / data.n:.3g}" if is_ours else ""
        objective = data.objective(problem, w)
        print(f"{options.peer} {effort:g}: {seconds:.2f} s, {objective:.7f}{gap}", flush=True)


if __name__ == "__main__":
    main()
