"""Products with rows in memory, cut into a block for each thread; dense or sparse alike."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Parallel

F64 = NDArray[np.float64]


class RowBlocks:
    """``X @ w`` and ``X.T @ c`` for one vector or several side by side.

    Parameters
    ----------
    X : ndarray or sparse (n, d), float64
    parallel : Parallel
        Products of NumPy and SciPy let go of the interpreter lock.
    """

    def __init__(self, X: Any, parallel: Parallel) -> None:
        self.n, self.d = int(X.shape[0]), int(X.shape[1])
        self._parallel = parallel
        cuts = np.linspace(0, self.n, min(parallel.n_threads, self.n) + 1).astype(int)
        self._slices = [slice(a, b) for a, b in itertools.pairwise(cuts)]
        self._parts = [X[rows] for rows in self._slices] if len(self._slices) > 1 else [X]
        self._across = [part.T for part in self._parts]

    def forward(self, w: F64) -> F64:
        """Return ``X @ w``; w (d,) or (d, k)."""
        found = self._parallel.map(lambda part: np.asarray(part @ w), self._parts)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def adjoint(self, c: F64) -> F64:
        """Return ``X.T @ c``; c (n,) or (n, k)."""
        pairs = list(zip(self._across, self._slices, strict=True))
        found = self._parallel.map(lambda pair: np.asarray(pair[0] @ c[pair[1]]), pairs)
        total: F64 = sum(found[1:], start=found[0])
        return total

    def squares(self, c: F64) -> F64:
        """Return ``(X * X).T @ c``; c (n,)."""
        found = np.zeros(self.d)
        for part, rows in zip(self._across, self._slices, strict=True):
            square = part.multiply(part) if hasattr(part, "multiply") else part * part
            found += square @ c[rows]
        return found
