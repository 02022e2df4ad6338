"""Certified gaps of CoCoA on real worker processes, and its objective beside LIBLINEAR's.

    python tests/bench/cocoa_certified.py [--sets rcv1 ijcnn1] [--members 1 2 4 8] [--gap 1e-6]
        [--hard]

For every set, loss and number of members a job runs until its certified gap is 1e-6 at lambda =
0.01. The objective of the model is recomputed from the data, and compared with LIBLINEAR's at a
tight tolerance. ``--hard`` uses lambda = 1/n instead, for 60 seconds a job, with chunks reshuffled
in every round and with a fixed partition. Exits with status 1 if a gap is not reached (except
``--hard``), is below zero, or does not bound the distance to LIBLINEAR's objective.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from distributed import Client
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

import elasticml as em

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "papers"))
from support.cocoa_data import SETS

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import harness

F64 = NDArray[np.float64]


def objective(loss: str, X: Any, y: F64, w: F64, l2: float) -> float:
    """Mean loss plus penalty, by numpy alone."""
    z = y * (X @ w)
    losses = np.maximum(0.0, 1.0 - z) if loss == "hinge" else np.logaddexp(0.0, -z)
    return float(losses.mean() + 0.5 * l2 * (w @ w))


def liblinear(loss: str, X: Any, y: F64, l2: float) -> float:
    """LIBLINEAR's objective at a tight tolerance."""
    C = 1.0 / (l2 * y.size)
    if sp.issparse(X):  # LIBLINEAR takes indices of 32 bits only
        X = X.copy()
        X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if loss == "hinge":
            model: Any = LinearSVC(
                C=C, loss="hinge", dual=True, fit_intercept=False, tol=1e-9, max_iter=200_000
            )
        else:
            model = LogisticRegression(
                C=C, solver="liblinear", fit_intercept=False, tol=1e-12, max_iter=10_000
            )
        model.fit(X, y)
    return objective(loss, X, y, model.coef_[0], l2)


def main() -> int:
    """Run the study; return the exit code."""
    parser = harness.parser(__doc__)
    names = ["rcv1", "reuters", "ijcnn1", "a9a", "covtype"]
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=names)
    parser.add_argument("--losses", nargs="+", default=["hinge", "logistic"])
    parser.add_argument("--members", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--gap", type=float, default=1e-6)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--hard", action="store_true", help="lambda = 1/n, with and without redeal")
    options = parser.parse_args()
    data = {name: SETS[name]() for name in options.sets}
    best: dict[tuple[str, str], float] = {}
    if not options.hard:
        for name, (X, y) in data.items():
            for loss in options.losses:
                best[name, loss] = liblinear(loss, X, y, 0.01)
    deals: list[tuple[str, list[Any]]] = [("", [])]
    if options.hard:
        deals = [("dealt anew", []), ("fixed", [{"name": "redeal", "share": 0}])]
    harness.head(
        "set", "loss", "K", "deal", "rounds", "seconds", "gap", "objective", "over LIBLINEAR (rel.)"
    )
    wrong = 0
    for members in options.members:
        with em.LocalCluster(members) as cluster, Client(cluster) as client:
            for name, (X, y) in data.items():
                for loss in options.losses:
                    l2 = 1.0 / y.size if options.hard else 0.01
                    for deal, policies in deals:
                        job = em.Job(
                            em.CoCoA(
                                loss=loss, l2=l2, intercept=False, tolerance=0.0, scale="none"
                            ),
                            em.from_arrays(X, y),
                            policies=policies,
                            stop=em.Stop(gap=options.gap, seconds=options.seconds, rounds=100_000),
                            evaluate=False,
                        )
                        result = job.run(client)
                        summary = result.summary
                        value = objective(loss, X, y, np.ravel(result.model.coef_), l2)
                        gap = summary["gap"]
                        over = float("nan")
                        if not options.hard:
                            over = value / best[name, loss] - 1.0
                            bounded = value - best[name, loss] <= gap + 1e-9
                            wrong += not (0 <= gap <= options.gap and bounded)
                        harness.row(
                            name,
                            loss,
                            members,
                            deal,
                            summary["rounds"],
                            f"{summary['seconds']:.2f}",
                            f"{gap:.2e}",
                            f"{value:.9f}",
                            f"{over:.1e}",
                        )
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
