"""Paths of the lasso against scikit-learn's ``lasso_path``: time for 100 penalties, as ratios.

    python -m tests.bench lasso_path [--repeats 5]

Both get the same centred data (Fortran order) and grid, and end at the same relative gap; runs take
turns, in CPU seconds with one thread, medians over repeats. Both warm up first.
"""

from __future__ import annotations

import time
import warnings

from tests.bench import harness

harness.one_thread()

import numpy as np  # noqa: E402
import pandas  # noqa: E402
from sklearn import linear_model  # noqa: E402

import elasticml as em  # noqa: E402

DATA = harness.DATA


def housing():
    """California housing, standardised."""
    table = pandas.read_csv(DATA / "california_housing" / "housing.csv.gz")
    table = table.select_dtypes("number")
    y = table.pop("median_house_value").to_numpy() / 1e5
    return table.fillna(table.mean()).to_numpy(), y


def protein():
    """A set of the UCI regression collection."""
    table = np.loadtxt(DATA / "uci_regression" / "protein.csv.gz", delimiter=",")
    return table[:, :-1], table[:, -1]


def wide(n, d):
    """Rows of a normal distribution; twenty columns make up the targets."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, X[:, :20] @ rng.standard_normal(20) + 0.1 * rng.standard_normal(n)


def main(*, repeats: int = 5):
    """Print a line for each data set and tolerance."""
    sets = {
        "california_housing": housing(),
        "protein": protein(),
        "wide 200 x 10000": wide(200, 10_000),
        "wide 500 x 5000": wide(500, 5_000),
    }
    warnings.simplefilter("ignore")
    columns = ("data", "tol", "elasticml ms", "scikit-learn ms", "ratio", "supports that differ")
    harness.head(*columns, "gap", keys=2)
    for name, (X, y) in sets.items():
        X = np.asfortranarray((X - X.mean(axis=0)) / X.std(axis=0))
        y = y - y.mean()
        for tol in (1e-4, 1e-8):
            compare(name, X, y, tol, repeats)


def compare(name, X, y, tol, repeats):
    """Print one line."""
    settings = {"alphas": 100, "eps": 1e-2, "tol": tol, "max_iter": 10_000}
    em.lasso_path(X, y, **settings)
    makers = {"ours": em.lasso_path, "theirs": linear_model.lasso_path}
    runs = harness.interleaved(
        {
            name: lambda make=make: harness.timed(lambda: make(X, y, **settings), time.process_time)
            for name, make in makers.items()
        },
        repeats,
    )
    medians = harness.medians({name: [s for _, s in each] for name, each in runs.items()})
    one, other = (1e3 * medians[name] for name in makers)
    _, coefs, gaps = runs["ours"][0][0]
    differ = ((coefs != 0.0) != (runs["theirs"][0][0][1] != 0.0)).any(axis=0).sum()
    gap = gaps.max() / np.mean(y * y)
    ratio, support = f"{one / other:.2f}", f"{differ} of 100"
    harness.row(name, f"{tol:g}", f"{one:.1f}", f"{other:.1f}", ratio, support, f"{gap:.1e}")
