"""Sparse models on members that own columns: rounds and seconds to a relative gap.

    python tests/bench/primal_cocoa.py [--members 1 2 4] [--plain] [data ...]

For the lasso columns are standardised and the penalty is a hundredth of the one above which all
coefficients are 0; the others are L1-logistic regression without an intercept, which the columns of
a9a and ijcnn1 include. Gaps are relative to the zero model's objective. The last columns compare
with the in-process estimator's model at a gap of 1e-11: the largest difference of a coefficient,
relative to the largest, and whether the same coefficients are 0. ``--plain``: without gathering
columns at the driver. Members are processes of one machine, with one thread each; a first job,
which warms them up, is not counted.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import numpy as np  # noqa: E402
from distributed import Client  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import elasticml as em  # noqa: E402
from tests.bench import harness  # noqa: E402
from tests.bench.lasso_path import housing, protein, wide  # noqa: E402

GAPS = (1e-6, 1e-8)
ROUNDS = 400


@dataclass(frozen=True, kw_only=True)
class Case:
    """A problem, and the in-process estimator's solution."""

    source: Any
    loss: Any
    l1: float
    #: The zero model's objective.
    scale: float
    best: Any


def lasso(make):
    """The lasso of standardised columns."""
    X, y = make()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = y - y.mean()
    l1 = 0.01 * float(np.abs(X.T @ y).max()) / len(y)
    best = em.Lasso(l1, tol=1e-11, max_iter=100_000).fit(X, y).coef_
    scale = 0.5 * float(np.mean(y * y))
    source = em.from_arrays(X, y, by="columns")
    return Case(source=source, loss="squared", l1=l1, scale=scale, best=best)


def logistic(make, C):
    """L1-logistic regression."""
    X, y = make()
    settings = {"C": C, "l1_ratio": 1.0, "tol": 1e-11, "max_iter": 10_000}
    best = em.LogisticRegression(**settings, fit_intercept=False).fit(X, y).coef_[0]
    source = em.from_arrays(X, y, by="columns")
    l1 = 1.0 / (C * len(y))
    return Case(source=source, loss="logistic", l1=l1, scale=float(np.log(2.0)), best=best)


def wide_classes():
    """500 rows of 5000 columns, of two classes."""
    X, y = wide(500, 5_000)
    return X, (y > np.median(y)).astype(int)


SETS = {
    "california_housing": lambda: lasso(housing),
    "protein": lambda: lasso(protein),
    "wide 500 x 5000": lambda: lasso(lambda: wide(500, 5_000)),
    "a9a, logistic": lambda: logistic(lambda: harness.labelled("a9a/a9a.svm.gz"), 0.1),
    "ijcnn1, logistic": lambda: logistic(lambda: harness.labelled("ijcnn1/ijcnn1.trn.svm.gz"), 1.0),
    "wide 500 x 5000, logistic": lambda: logistic(wide_classes, 0.2),
}


def reached(result, gap):
    """The first round that ended with such a gap, and its seconds."""
    for row in result.history:
        known = row.get("gap_best")
        if known is not None and known <= gap:
            return row["round"] + 1, row["seconds"]
    return None


def main():
    """Print a line for each number of members and data set."""
    parser = harness.parser(__doc__)
    parser.add_argument("data", nargs="*", default=list(SETS))
    parser.add_argument("--members", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    cases = {name: SETS[name]() for name in options.data}
    harness.head("data", "members", "rounds, s to 1e-6", "rounds, s to 1e-8", "off by", "support")
    for members in options.members:
        with (
            em.LocalCluster(members) as cluster,
            Client(cluster.scheduler_address, set_as_default=False) as client,
        ):
            for name, case in cases.items():
                for rounds in (3, ROUNDS):
                    job = em.Job(
                        em.PrimalCoCoA(
                            loss=case.loss,
                            l1=case.l1,
                            intercept=case.loss == "squared",
                            tolerance=GAPS[-1] * case.scale,
                            gather=not options.plain,
                        ),
                        case.source,
                        stop=em.Stop(rounds=rounds),
                        evaluate=False,
                    )
                    result = job.run(client)
                results = [reached(result, gap * case.scale) for gap in GAPS]
                cells = ["–" if f is None else f"{f[0]}, {f[1]:.2f}" for f in results]
                coef = result.model.coef_[0]
                off = float(np.abs(coef - case.best).max() / np.abs(case.best).max())
                same = np.array_equal(coef != 0.0, case.best != 0.0)
                support = f"{np.count_nonzero(case.best)}, {'same' if same else 'other'}"
                harness.row(name, members, *cells, f"{off:.0e}", support)


if __name__ == "__main__":
    main()
