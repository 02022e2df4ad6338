"""Click logs as arrays on disk, for peers: Criteo-shaped ones, and Criteo's own sample."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from support.cocoa_data import DATA

from tests.bench.peers.criteo_shaped import criteo_shaped
from tests.bench.peers.problems import write

#: Rows of the sample that models are fitted on; the rest are the test.
SAMPLE_TRAIN = 150


def generated(folder: Path, rows: int, columns: int) -> tuple[str, str]:
    """Write a training set and a test set of a third of its rows; return their names."""
    names = []
    for seed, n in ((0, rows), (1, max(1, rows // 3))):
        names.append(f"criteo-{rows}-{columns}-{seed}")
        if not (folder / f"{names[-1]}-columns.npy").exists():
            parts = list(criteo_shaped(n, columns=columns, seed=seed))
            X = sp.vstack(
                [
                    sp.csr_matrix((p.values, p.indices, p.indptr), (p.labels.size, columns))
                    for p in parts
                ],
                format="csr",
            )
            folder.mkdir(parents=True, exist_ok=True)
            write(folder, names[-1], X, np.concatenate([p.labels for p in parts]))
    return names[0], names[1]


def sample(folder: Path, columns: int = 2**16) -> tuple[str, str]:
    """Write the 200 public rows of Criteo, hashed; return the names of both parts."""
    with gzip.open(DATA / "criteo_sample" / "criteo_sample.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    X, y = hashed(rows, columns), np.array([2.0 * float(row["label"]) - 1.0 for row in rows])
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, "sample-train", X[:SAMPLE_TRAIN], y[:SAMPLE_TRAIN])
    write(folder, "sample-test", X[SAMPLE_TRAIN:], y[SAMPLE_TRAIN:])
    return "sample-train", "sample-test"


def hashed(rows: list[dict[str, str]], columns: int) -> sp.csr_matrix:
    """Hash each field and its value into a column; numbers in steps of their logarithm.

    Returns
    -------
    csr_matrix (n, columns)
        Rows have length 1 unless two values share a column; a missing value is a value, too.
    """
    places: list[NDArray[np.int64]] = []
    for row in rows:
        words = [f"{name}={_step(name, value)}" for name, value in row.items() if name != "label"]
        places.append(np.array([zlib.crc32(word.encode()) % columns for word in words]))
    sizes = [place.size for place in places]
    values = np.concatenate([np.full(n, 1.0 / math.sqrt(n)) for n in sizes])
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    X = sp.csr_matrix((values, np.concatenate(places), indptr), (len(rows), columns))
    X.sum_duplicates()
    return X


def _step(name: str, value: str) -> str:
    if not name.startswith("I") or value == "":
        return value
    number = float(value)
    return str(int(2.0 * math.log(number)) if number > 1.0 else number)
