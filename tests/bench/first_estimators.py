"""Estimators with default parameters on tables as they are, and on the same tables scaled.

    python tests/bench/first_estimators.py [--tables diamonds kdd5 ...] [--client]

Words become one-hot columns; numbers are standardised or stay as they are. Without ``--client``
each fit is timed beside scikit-learn's estimator of the same name with its own defaults. With
``--client`` the rows are Dask arrays on a stock LocalCluster of two workers, and the objective is
compared with the optimum of the same problem, which a fit in this process finds to 1e-12.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import harness

harness.one_thread()

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import sklearn.linear_model  # noqa: E402
import sklearn.svm  # noqa: E402
from sklearn.compose import ColumnTransformer  # noqa: E402
from sklearn.preprocessing import OneHotEncoder, StandardScaler  # noqa: E402

import elasticml as em  # noqa: E402

#: Rows of the larger tables.
ROWS = 50_000
HOSPITAL_ROWS, HOSPITAL_CODES = 81_412, 2_459
CLASSIFIERS = ("LogisticRegression", "LinearSVC")
REGRESSORS = ("Ridge", "Lasso")


def read(name: str, **options: Any) -> pd.DataFrame:
    """Read a table of the folder of data sets."""
    return pd.read_csv(harness.DATA / name, **options)


def hospital() -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    """Return visits with numbers of the size of identifiers, rare codes and three outcomes."""
    rng = np.random.default_rng(0)
    n = HOSPITAL_ROWS
    sizes = 10.0 ** np.array([-3, -2, -1, 0, 0, 1, 1, 2, 3, 4, 6, 8])
    numbers = (rng.gamma(2.0, size=(n, len(sizes))) + rng.uniform(0, 3, len(sizes))) * sizes
    numbers = np.column_stack([numbers, 2015.0 + rng.integers(0, 5, n)])
    codes = np.minimum(rng.zipf(1.3, size=(n, 3)) - 1, HOSPITAL_CODES // 3 - 1)
    effects = 0.7 * rng.normal(size=(3, HOSPITAL_CODES // 3, 3))
    z = (numbers[:, 3:9] / sizes[3:9]) @ rng.normal(size=(6, 3)) * 0.3
    z += sum(effects[k][codes[:, k]] for k in range(3)) + rng.gumbel(size=(n, 3))
    frame = pd.DataFrame(numbers, columns=[f"x{j}" for j in range(numbers.shape[1])])
    return frame.join(pd.DataFrame(codes.astype(str), columns=list("abc"))), z.argmax(axis=1)


def kdd(kinds: int) -> tuple[pd.DataFrame, Any]:
    """Return connections; the rarer kinds are one."""
    frame = read("kddcup99/kddcup.data_10_percent.gz", header=None).sample(ROWS, random_state=0)
    y = frame.pop(41)
    common = y.value_counts().index[: kinds - 1]
    return frame, y.where(y.isin(common), "other") if kinds > 2 else (y == "normal.").astype(int)


def covtype(*, is_binary: bool) -> tuple[pd.DataFrame, Any]:
    """Return patches of forest; of one kind against the rest if wanted."""
    frame = read("covtype_20k/covtype-min.data.gz", header=None)
    y = frame.pop(54)
    return frame, (y == 2).astype(int) if is_binary else y


def labelled(name: str, label: Any, **options: Any) -> tuple[pd.DataFrame, Any]:
    """Return a table without gaps, and its labels."""
    frame = read(name, **options).dropna()
    y = frame.pop(label)
    return frame, y


TABLES = {
    "california_housing": lambda: labelled(
        "california_housing/housing.csv.gz", "median_house_value"
    ),
    "diamonds": lambda: labelled("diamonds/diamonds.csv.gz", "price"),
    "bike": lambda: labelled("uci_regression/bike.csv.gz", 17, header=None),
    "protein": lambda: labelled("uci_regression/protein.csv.gz", 9, header=None),
    "higgs": lambda: labelled("higgs/higgs_sas_10984.csv.gz", "label"),
    "kdd2": lambda: kdd(2),
    "kdd3": lambda: kdd(3),
    "kdd5": lambda: kdd(5),
    "covtype2": lambda: covtype(is_binary=True),
    "covtype7": lambda: covtype(is_binary=False),
    "hospital": hospital,
}


def encoded(frame: pd.DataFrame, *, is_scaled: bool) -> Any:
    """Return a table as scikit-learn's ColumnTransformer encodes it."""
    words = [name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])]
    numbers = [name for name in frame if name not in words]
    how = StandardScaler() if is_scaled else "passthrough"
    parts = [("numbers", how, numbers), ("words", OneHotEncoder(handle_unknown="ignore"), words)]
    return ColumnTransformer(parts).fit_transform(
        frame.rename(columns=str).set_axis(frame.columns, axis=1)
    )


def fitted(model: Any, X: Any, y: Any) -> tuple[Any, float, str]:
    """Fit; return the model, its seconds, and the kinds of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, seconds = harness.timed(lambda: model.fit(X, y))
    return model, seconds, " ".join(sorted({one.category.__name__ for one in caught})) or "-"


def theirs(name: str) -> Any:
    """Return scikit-learn's class of this name."""
    return getattr(sklearn.svm if name == "LinearSVC" else sklearn.linear_model, name)


def objective(model: Any, X: Any, y: Any) -> float:
    """Return the objective of a model as scikit-learn defines it, in units of the mean."""
    z = np.asarray(X @ model.coef_.T + model.intercept_).reshape(len(y), -1)
    W, n = np.atleast_2d(model.coef_), len(y)
    if isinstance(model, em.Ridge | em.Lasso):
        squares = float(np.mean((z[:, 0] - y) ** 2))
        if isinstance(model, em.Ridge):
            return squares + model.alpha * float((W**2).sum()) / n
        return 0.5 * squares + model.alpha * float(np.abs(W).sum())
    codes = np.searchsorted(model.classes_, y)
    penalty = 0.5 * float((W**2).sum()) / n
    signs = np.where(codes[:, None] == (np.arange(z.shape[1]) if z.shape[1] > 1 else 1), 1.0, -1.0)
    if isinstance(model, em.LinearSVC):
        penalty += 0.5 * float((model.intercept_**2).sum()) / n
        return float((np.maximum(1.0 - signs * z, 0.0) ** 2).sum()) / n + penalty
    if z.shape[1] == 1:
        return float(np.logaddexp(0.0, -signs * z).mean()) + penalty
    own = z[np.arange(n), codes]
    return float((np.logaddexp.reduce(z, axis=1) - own).mean()) + penalty


def beside_peer(names: list[str], models: list[str]) -> None:
    """Print seconds, scores and warnings beside scikit-learn's."""
    harness.head(
        "table",
        "columns",
        "model",
        "seconds",
        "of peer",
        "score",
        "peer's",
        "warnings",
        "peer's",
        "steps",
    )
    for name, scaled, model, X, y in problems(names, models):
        fitted(getattr(em, model)(), X, y)  # compiles
        mine, seconds, said = fitted(getattr(em, model)(), X, y)
        peer, peers_s, peers_said = fitted(theirs(model)(), X, y)
        scores = f"{mine.score(X, y):.4f}", f"{peer.score(X, y):.4f}"
        cells = f"{seconds:.2f}", f"{seconds / peers_s:.2f}", *scores, said, peers_said
        harness.row(name, scaled, model, *cells, np.max(mine.n_iter_))


def problems(names: list[str], models: list[str]) -> Any:
    """Yield each table, encoded both ways, with each model for it."""
    for name in names:
        frame, y = TABLES[name]()
        y = np.asarray(y)
        is_regression = name in list(TABLES)[:4]
        for is_scaled in (True, False):
            X = encoded(frame, is_scaled=is_scaled)
            for model in models:
                if model in (REGRESSORS if is_regression else CLASSIFIERS):
                    yield name, "scaled" if is_scaled else "raw", model, X, y


def on_a_cluster(names: list[str], models: list[str]) -> None:
    """Print rounds, seconds and distances from the optimum of fits on Dask arrays."""
    import dask.array as da
    from distributed import Client, LocalCluster

    columns = (
        "table",
        "columns",
        "model",
        "rounds",
        "seconds",
        "score",
        "warnings",
        "above optimum",
    )
    harness.head(*columns)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        for name, scaled, model, X, y in problems(names, models):
            X = X.toarray() if hasattr(X, "toarray") else X
            lazy = da.from_array(X, chunks=(-(-len(y) // 4), X.shape[1])).persist()
            labels = da.from_array(y, chunks=-(-len(y) // 4)).persist()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                best = getattr(em, model)(tol=1e-12, max_iter=100).fit(X, y)
            try:
                mine, seconds, said = fitted(getattr(em, model)(client=client), lazy, labels)
            except Exception as error:
                harness.row(name, scaled, model, "-", "-", "-", f"{error!r:.90}", "-")
                continue
            least = objective(best, X, y)
            above = (objective(mine, X, y) - least) / least
            score = f"{mine.score(X, y):.4f}"
            rounds = int(np.max(mine.n_iter_))
            harness.row(name, scaled, model, rounds, f"{seconds:.1f}", score, said, f"{above:.1e}")


def main() -> None:
    """Print the table."""
    parser = harness.parser(__doc__)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--models", nargs="+", default=[*REGRESSORS, *CLASSIFIERS])
    parser.add_argument("--client", action="store_true")
    options = parser.parse_args()
    print(harness.machine())
    (on_a_cluster if options.client else beside_peer)(options.tables, options.models)


if __name__ == "__main__":
    main()
