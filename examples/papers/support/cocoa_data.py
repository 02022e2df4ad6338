"""The data of the CoCoA studies: two classes, labels -1 and 1, in the order of their files."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file

import elasticml as em
from elasticml.data.readers.arrays import ArraySource

DATA = Path(os.environ.get("ELASTICML_DATA") or Path(__file__).parents[4] / "shared" / "data")
#: Every nth row of kddcup99, unless all are requested.
KDD_STEP = 4


def rcv1() -> tuple[Any, NDArray[Any]]:
    """2,000 texts, 9,947 words: the demonstration data of the original CoCoA code."""
    return _svmlight("rcv1_cocoa/small_train.svm.gz")


def reuters() -> tuple[Any, NDArray[Any]]:
    """9,603 news items, 15,541 words: acquisitions against the rest."""
    return _svmlight("reuters21578/reuters21578.train.svm.gz")


def ijcnn1() -> tuple[Any, NDArray[Any]]:
    """49,990 moments of an engine, 22 features."""
    return _svmlight("ijcnn1/ijcnn1.trn.svm.gz")


def a9a() -> tuple[Any, NDArray[Any]]:
    """20,000 pieces of forest, 54 features: lodgepole pine against the rest.

    The ten measured features are standardised, the indicators left as they are.
    """
    return _svmlight("a9a/a9a.svm.gz")


def covtype() -> tuple[Any, NDArray[Any]]:
    """20,000 pieces of forest, 54 features: lodgepole pine against the rest.

    The ten measured features are standardised, the indicators left as they are.
    """
    with gzip.open(DATA / "covtype_20k" / "covtype-min.data.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    X = np.hstack([standardised(table[:, :10]), table[:, 10:-1]])
    return X, np.where(table[:, -1] == 2, 1.0, -1.0)


def higgs() -> tuple[Any, NDArray[Any]]:
    """17,984 collisions, 28 standardised features: two public samples one after the other."""
    folder = DATA / "higgs"
    with gzip.open(folder / "higgs_sas_10984.csv.gz", "rt") as file:
        one = np.loadtxt(file, delimiter=",", skiprows=1)
    with gzip.open(folder / "higgs_lgbm_train_7000.tsv.gz", "rt") as file:
        two = np.loadtxt(file, delimiter="\t")
    X = np.vstack([one[:, :-1], two[:, 1:]])
    y = np.concatenate([one[:, -1], two[:, 0]])
    return standardised(X), np.where(y > 0, 1.0, -1.0)


def kdd(step: int = KDD_STEP) -> tuple[Any, NDArray[Any]]:
    """Every fourth of 494,021 connections: attacks against the rest.

    Words become indicators; numbers become logarithms of themselves over their largest one.
    """
    with gzip.open(DATA / "kddcup99" / "kddcup.data_10_percent.gz", "rt") as file:
        rows = list(csv.reader(file))[::step]
    words = (1, 2, 3)
    numbers = [k for k in range(41) if k not in words]
    log = np.log1p(np.array([[float(row[k]) for k in numbers] for row in rows]))
    parts = [sp.csr_matrix(log / np.maximum(log.max(axis=0), 1e-300))]
    for k in words:
        _, index = np.unique([row[k] for row in rows], return_inverse=True)
        ones = np.ones(len(rows))
        parts.append(sp.csr_matrix((ones, (np.arange(len(rows)), index))))
    y = np.array([1.0 if row[41] != "normal." else -1.0 for row in rows])
    return sp.csr_matrix(sp.hstack(parts)), y


def tiny() -> tuple[Any, NDArray[Any]]:
    """1,600 seeded points of two slightly overlapping classes, 12 features, for a quick look."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((1600, 12)) / np.sqrt(12)
    return X, np.sign(X @ rng.standard_normal(12) + 0.1 * rng.standard_normal(1600))


def standardised(X: NDArray[Any]) -> NDArray[Any]:
    """Give every column mean 0 and deviation 1; a constant one becomes 0."""
    centred = X - X.mean(axis=0)
    deviation = centred.std(axis=0)
    return centred / np.where(deviation > 0, deviation, 1.0)


def _svmlight(path: str) -> tuple[Any, NDArray[Any]]:
    X, y = load_svmlight_file(str(DATA / path))
    return sp.csr_matrix(X), np.where(y > 0, 1.0, -1.0)


SETS: dict[str, Callable[[], tuple[Any, NDArray[Any]]]] = {
    "rcv1": rcv1,
    "reuters": reuters,
    "ijcnn1": ijcnn1,
    "a9a": a9a,
    "covtype": covtype,
    "higgs": higgs,
    "kdd": kdd,
    "tiny": tiny,
}


def load(name: str) -> ArraySource:
    """Read one of the sets into memory."""
    X, y = SETS[name]()
    return em.from_arrays(X, y)
