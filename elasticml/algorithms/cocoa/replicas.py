"""One replica of the model per thread, merged after each slice of an epoch.

A thread adds ``sigma'`` times its rows' steps to its own replica. One loop over the coordinates
then takes the steps out of all replicas, sums them in float64, updates the model and writes it back
to every replica: each number is read and written once.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.kernels import unchecked_kernel

F64 = NDArray[np.float64]

#: Stored values per coordinate after which a single thread's replica is merged, at a tenth of the
#: cost of visiting them.
VALUES_PER_MERGE: Final = 16
#: Coordinates merged at a time: the float32 values of one cache line.
_LINE: Final = 16


class Replicas:
    """The replicas of one member.

    Parameters
    ----------
    dtype : dtype
        Of the replicas.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        #: (threads + 1, D); row 0 is the common starting point, the others are a replica each.
        self.rows: NDArray[Any] = np.zeros((0, 0), dtype)
        #: (D,) the model at the beginning of a pass, and the change merged since.
        self.v: F64 = np.zeros(0)
        self.dv: F64 = np.zeros(0)
        #: Stored values visited since the last merge.
        self._waiting = 0.0

    def begin(self, v: F64, n_parts: int) -> None:
        """Start a pass with this number of threads from a model, which is not changed."""
        if self.rows.shape != (n_parts + 1, v.size):
            self.rows = np.empty((n_parts + 1, v.size), self.rows.dtype)
        self.rows[:] = v
        self.v, self.dv, self._waiting = v, np.zeros(v.size), 0.0

    def is_due(self, values: float) -> bool:
        """Whether to merge after this number of further stored values.

        Several threads always merge. A single thread continues on its replica until the visited
        values are worth a pass over every coordinate.
        """
        self._waiting += values
        if self.rows.shape[0] == 2 and self._waiting < VALUES_PER_MERGE * self.v.size:
            return False
        self._waiting = 0.0
        return True

    def finish(self, whole: float) -> None:
        """Merge the rest of a single thread's steps, which count ``whole`` times."""
        if self._waiting > 0.0:
            shares = np.full(1, 1.0 / whole)
            merge_range(self.rows, shares, self.v, whole, self.dv, 0, self.v.size, np.zeros(2))
            self._waiting = 0.0


@unchecked_kernel
def merge_range(
    rows: NDArray[Any],
    shares: F64,
    v: F64,
    whole: float,
    dv: F64,
    begin: int,
    end: int,
    sums: F64,
) -> None:
    """Merge the coordinates from ``begin`` to ``end``.

    Works on one cache line at a time, in loops without a branch, and skips lines without changes.

    Parameters
    ----------
    rows : ndarray (threads + 1, D)
        The common starting point, and each thread's replica.
    shares : ndarray (at most threads,)
        Factor of a replica's difference.
    v, dv : ndarray (D,)
    sums : ndarray (2,)
        Added to: the step's product with the model before it, and its square.
    """
    steps, along, square = np.zeros(_LINE), np.zeros(_LINE), np.zeros(_LINE)
    for first in range(begin, end, _LINE):
        stop = min(first + _LINE, end)
        base, is_moved = rows[0, first:stop], False
        for k in range(shares.size):
            copy = rows[k + 1, first:stop]
            for j in range(copy.size):
                is_moved |= copy[j] != base[j]
        if not is_moved:
            continue
        steps[:] = 0.0
        for k in range(shares.size):
            copy, share = rows[k + 1, first:stop], shares[k]
            for j in range(copy.size):
                steps[j] += (np.float64(copy[j]) - np.float64(base[j])) * share
        model, change = v[first:stop], dv[first:stop]
        for j in range(base.size):
            along[j] += (model[j] + whole * change[j]) * steps[j]
            square[j] += steps[j] * steps[j]
            change[j] += steps[j]
            base[j] = model[j] + whole * change[j]
        for k in range(1, rows.shape[0]):
            copy = rows[k, first:stop]
            for j in range(copy.size):
                copy[j] = base[j]
    for j in range(_LINE):
        sums[0] += along[j]
        sums[1] += square[j]
