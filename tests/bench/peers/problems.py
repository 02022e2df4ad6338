"""The problems that all peers solve, in the mean form, and the data as arrays on disk.

    1/n sum_i loss(x_i w + b, y_i) + l2/2 |w|^2 + l1 |w|_1

with a free intercept b, or without one. Values are float32, in rows, which every peer accepts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

F64 = NDArray[np.float64]
#: Models by the name of their loss; ``lasso`` is the squared loss with l1, ``sparse_logistic`` the
#: logistic one.
MODELS = ("hinge", "squared_hinge", "logistic", "sparse_logistic", "ridge", "lasso")
_KEYS = ("indptr", "indices", "values", "labels", "columns")
_BLOCK = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One model with its penalties."""

    model: str
    l2: float = 0.0
    l1: float = 0.0
    #: A model then has d + 1 coordinates, with the intercept last.
    intercept: bool = False


class Data:
    """A set in memory."""

    def __init__(self, folder: Path, name: str) -> None:
        arrays = {key: np.load(folder / f"{name}-{key}.npy") for key in _KEYS}
        self.labels: F64 = arrays["labels"]
        self.n, self.d = self.labels.size, int(arrays["columns"])
        rows = (arrays["values"], arrays["indices"], arrays["indptr"])
        self.X = sp.csr_matrix(rows, shape=(self.n, self.d), copy=False)

    def objective(self, problem: Problem, w: F64) -> float:
        """Return the objective in float64, block by block."""
        total, b = 0.0, float(w[self.d]) if problem.intercept else 0.0
        w = w[: self.d]
        for a in range(0, self.n, _BLOCK):
            z = self.X[a : a + _BLOCK].astype(np.float64) @ w + b
            y = self.labels[a : a + _BLOCK]
            if problem.model == "hinge":
                total += np.maximum(0.0, 1.0 - y * z).sum()
            elif problem.model == "squared_hinge":
                total += np.square(np.maximum(0.0, 1.0 - y * z)).sum()
            elif problem.model in ("logistic", "sparse_logistic"):
                total += np.logaddexp(0.0, -y * z).sum()
            else:
                total += 0.5 * float((z - y) @ (z - y))
        penalty = 0.5 * problem.l2 * float(w @ w) + problem.l1 * float(np.abs(w).sum())
        return total / self.n + penalty


def write(folder: Path, name: str, X: sp.csr_matrix, y: F64) -> None:
    """Write a set for :class:`Data`."""
    X.sort_indices()
    arrays = {
        "indptr": X.indptr.astype(np.int32),
        "indices": X.indices.astype(np.int32),
        "values": X.data.astype(np.float32),
        "labels": np.asarray(y, np.float64),
        "columns": np.array(X.shape[1]),
    }
    for key, array in arrays.items():
        np.save(folder / f"{name}-{key}.npy", array)


def largest_l1(data: Data) -> float:
    """Return the smallest l1 with which the lasso's model is zero."""
    return float(np.abs(data.X.T.astype(np.float64) @ data.labels).max()) / data.n
