"""Newton, TRON and L-BFGS on tables: rounds, and seconds once the data are read.

    python tests/bench/linear_engines.py [--sets bike diamonds ...] [--cluster local|stock]
        [--optimizers newton tron lbfgs] [--repeats 3]

Each set is written as a CSV table with a header, the synthetic one as arrays. Jobs of all
optimizers run by turns on one cluster of two workers. The seconds begin when the data are read; a
job that has not converged after 1000 rounds or 90 s is stopped.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from distributed import Client
from distributed import LocalCluster as StockCluster

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import elasticml as em  # noqa: E402
from tests.bench import harness  # noqa: E402


def _table(path: str, **options: Any) -> pd.DataFrame:
    frame = pd.read_csv(harness.DATA / path, **options)
    frame.columns = [str(name) for name in frame.columns]
    return frame


def _with_label(path: str, label: Callable[[pd.Series], Any] = lambda last: last, **options: Any):
    frame = _table(path, header=None, **options)
    last = frame.columns[-1]
    return frame.assign(**{last: label(frame[last])}).rename(columns={last: "label"})


def kddcup(label: Callable[[pd.Series], Any]) -> pd.DataFrame:
    return _with_label("kddcup99/kddcup.data_10_percent.gz", label)


#: The loss of each set, its table, and the column of the label.
SETS: dict[str, tuple[str, Callable[[], pd.DataFrame], str]] = {
    "california_housing": (
        "squared",
        lambda: _table("california_housing/housing.csv.gz").dropna(),
        "median_house_value",
    ),
    "diamonds": ("squared", lambda: _table("diamonds/diamonds.csv.gz"), "price"),
    "bike": ("squared", lambda: _with_label("uci_regression/bike.csv.gz"), "label"),
    "protein": ("squared", lambda: _with_label("uci_regression/protein.csv.gz"), "label"),
    "higgs": ("logistic", lambda: _table("higgs/higgs_sas_10984.csv.gz"), "label"),
    "covtype": (
        "logistic",
        lambda: _with_label("covtype_20k/covtype-min.data.gz", lambda y: y == 2),
        "label",
    ),
    "covtype, 7 classes": (
        "logistic",
        lambda: _with_label("covtype_20k/covtype-min.data.gz"),
        "label",
    ),
    "kddcup99": ("logistic", lambda: kddcup(lambda y: y == "normal."), "label"),
    "kddcup99, 23 classes": ("logistic", lambda: kddcup(lambda y: y), "label"),
}


def wide() -> tuple[np.ndarray, np.ndarray]:
    """Return 300,000 correlated rows of 258 columns, and classes."""
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(300_000, 20)) @ rng.normal(size=(20, 258))
    X = factors + rng.normal(size=factors.shape)
    return X, np.where(X @ rng.normal(size=258) + 20 * rng.normal(size=len(X)) > 0, 1.0, 0.0)


def sources(names: list[str], folder: Path) -> dict[str, tuple[str, Any]]:
    """Write the tables, and return each set's loss and source."""
    made: dict[str, tuple[str, Any]] = {}
    for name in names:
        if name == "wide":
            X, y = wide()
            made["wide"] = ("logistic", em.from_arrays(X, y))
            made["wide, squared"] = ("squared", em.from_arrays(X, X @ np.ones(258) + y))
            continue
        loss, read, label = SETS[name]
        frame, path = read(), folder / f"{name}.csv"
        frame.to_csv(path, index=False)
        made[name] = (loss, em.read_csv(str(path), label=label))
    return made


def run(
    client: Client, loss: str, source: Any, optimizer: str, given: argparse.Namespace
) -> dict[str, Any]:
    """Run a job; return its figures."""
    algorithm = em.BatchGradient(loss=loss, l2=given.l2, optimizer=optimizer, scale=given.scale)
    stop = em.Stop(rounds=1000, seconds=90)
    result = em.Job(algorithm, source, evaluate=False, stop=stop).run(client)
    read_s = next(r["t"] for r in result.story if r["event"] == "DataLoaded")
    return {
        "rounds": result.summary["rounds"],
        "seconds": round(result.summary["seconds"] - read_s, 3),
        "objective": result.summary["objective"],
        "converged": result.summary["converged"],
    }


def main() -> None:
    """Print a line for each run."""
    parser = harness.parser(__doc__)
    parser.add_argument("--sets", nargs="*", default=[*SETS, "wide"])
    parser.add_argument("--cluster", choices=["local", "stock"], default="local")
    parser.add_argument("--optimizers", nargs="*", default=["newton", "tron", "lbfgs"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--l2", type=float, default=1e-4)
    parser.add_argument("--scale", default="auto")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    cluster = em.LocalCluster(2) if given.cluster == "local" else StockCluster(n_workers=2)
    with tempfile.TemporaryDirectory() as folder, cluster, Client(cluster) as client:
        for name, (loss, source) in sources(given.sets, Path(folder)).items():
            for _ in range(given.repeats):
                for optimizer in given.optimizers:
                    figures = run(client, loss, source, optimizer, given)
                    print(name, optimizer, figures, flush=True)


if __name__ == "__main__":
    main()
