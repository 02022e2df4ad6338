"""Which rows rest: those whose dual variable stands on a bound that it cannot leave soon.

A row rests for a number of epochs that depends on how far its margin is from where it would move,
and on how far the model moved from the last pass to this one. Rests are finite, so that they change
how much work is done, but not what is converged to. An exchange that is repeated finds the rests
as they were before it, and so gives the same bits again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.kernels import kernel

F64 = NDArray[np.float64]

#: What a margin is expected to move by, as a share of what the model's step allows. At 1/8 passes
#: are at most an eighth more than without rests on the sets tried, and as many on most.
_TYPICAL_SHARE: Final = 1 / 8
#: A model that moves so many times as far as at the shortest of its recent steps wakes every row:
#: their rests were reckoned with the short one. Members that come back bring such jumps.
_JUMP: Final = 4.0


@kernel
def _squared_distance(a: F64, b: F64) -> float:
    """Return ``|a - b|^2`` without the threads that a linear algebra library would start."""
    total = 0.0
    for j in range(a.size):
        total += (a[j] - b[j]) * (a[j] - b[j])
    return total


class Rests:
    """Epochs that each row of a member still rests, one byte a row."""

    def __init__(self, *, is_used: bool) -> None:
        self._is_used = is_used
        self._left: NDArray[np.uint8] = np.zeros(0, np.uint8)
        #: Before the pass, and before the last run of it.
        self._before = self._left.copy()
        self._last_run = self._before
        #: The model of the last pass, its number, and what followed from the model before it.
        self._last: F64 | None = None
        self._serial: int | None = None
        self._reach = 0.0
        #: The shortest step since all rows were awake.
        self._shortest = math.inf

    def bind(self, sizes: Sequence[int], known: Sequence[NDArray[np.uint8] | None]) -> None:
        """Lay out rows of chunks with so many rows; known chunks keep their rests."""
        left = np.zeros(sum(sizes), np.uint8)
        at = 0
        for size, old in zip(sizes, known, strict=True):
            if old is not None:
                left[at : at + size] = old
            at += size
        self._left, self._before, self._serial = left, left.copy(), None
        self._last_run = self._before

    def views(self, sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Return each chunk's part, which kernels write to."""
        return np.split(self._left, np.cumsum(sizes)[:-1]) if sizes else []

    def begin(self, v: F64, serial: int) -> float:
        """Start a pass; return for how many epochs a row rests per unit of room and of its length.

        Parameters
        ----------
        v : ndarray (D,)
            The model at the beginning of the pass; copied.
        serial : int
            Number of the pass; the same as last time where it is repeated.

        Returns
        -------
        float
            0 when no further row shall rest.
        """
        self._last_run = self._before
        if serial == self._serial:
            np.copyto(self._left, self._before)
            return self._reach
        last, self._last = self._last, v.copy()
        self._serial, self._reach = serial, 0.0
        if self._is_used and last is not None and last.size == v.size:
            moved = math.sqrt(_squared_distance(v, last))
            if moved > _JUMP * self._shortest:
                self.wake()
            if moved > 0.0:
                self._shortest = min(self._shortest, moved)
            self._reach = 1.0 / (_TYPICAL_SHARE * moved) if moved > 0.0 else 0.0
        np.copyto(self._before, self._left)
        return self._reach

    def go_on(self) -> float:
        """Begin another run of the same pass; return what :meth:`begin` did."""
        self._last_run = self._left.copy()
        return self._reach

    def undo(self) -> None:
        """Go back to before the last run."""
        np.copyto(self._left, self._last_run)

    def wake(self) -> None:
        """Have no row rest any longer."""
        self._left[:] = 0
        self._shortest = math.inf
