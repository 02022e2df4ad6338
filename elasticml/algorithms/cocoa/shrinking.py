"""Shrinking: which rows are skipped because their dual variable cannot leave its bound soon.

A row is skipped for a number of epochs that depends on the distance of its margin from where its
dual variable would move, and on how far the model moved in the last pass. The number is finite, so
that shrinking changes the amount of work but not the limit. An exchange that is repeated starts
from the same skip counts and gives the same bits again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.line_search import products
from elasticml.arrays import F64

#: Expected change of a margin, as a share of the largest that the model's step allows. At 1/8,
#: passes are at most an eighth more than without shrinking on the data sets tried, and equal on
#: most.
_TYPICAL_SHARE: Final = 1 / 8
#: A model step this many times the shortest recent one unshrinks every row: skip counts were set
#: with the short step. Members that return cause such jumps.
_JUMP: Final = 4.0


class Shrinking:
    """The epochs for which each row of a member is still skipped, one byte per row."""

    def __init__(self, *, is_used: bool) -> None:
        self._is_used = is_used
        self._skips: NDArray[np.uint8] = np.zeros(0, np.uint8)
        #: Before the pass, and before its last run.
        self._before = self._skips.copy()
        self._last_run = self._before
        #: The model of the last pass, its serial, and the reach derived from the model before it.
        self._last: F64 | None = None
        self._serial: int | None = None
        self._reach = 0.0
        #: The shortest model step since all rows were unshrunk.
        self._shortest = math.inf

    def bind(self, sizes: Sequence[int], kept: Sequence[NDArray[np.uint8] | None]) -> None:
        """Lay out the rows of chunks of these sizes; known chunks keep their skip counts."""
        left = np.zeros(sum(sizes), np.uint8)
        at = 0
        for size, old in zip(sizes, kept, strict=True):
            if old is not None:
                left[at : at + size] = old
            at += size
        self._skips, self._before, self._serial = left, left.copy(), None
        self._last_run = self._before

    def views(self, sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
        """Return each chunk's part of the array, which kernels write to."""
        return np.split(self._skips, np.cumsum(sizes)[:-1]) if sizes else []

    def begin(self, v: F64, serial: int) -> float:
        """Start a pass; return the epochs to skip a row per unit of slack and of inverse length.

        Parameters
        ----------
        v : ndarray (D,)
            The model at the beginning of the pass; copied.
        serial : int
            Serial of the pass; unchanged if the pass is repeated.

        Returns
        -------
        float
            0 if no further row may be skipped.
        """
        self._last_run = self._before
        if serial == self._serial:
            np.copyto(self._skips, self._before)
            return self._reach
        last, self._last = self._last, v.copy()
        self._serial, self._reach = serial, 0.0
        if self._is_used and last is not None and last.size == v.size:
            step = v - last
            moved = math.sqrt(products(step, step)[1])
            if moved > _JUMP * self._shortest:
                self.wake()
            if moved > 0.0:
                self._shortest = min(self._shortest, moved)
            self._reach = 1.0 / (_TYPICAL_SHARE * moved) if moved > 0.0 else 0.0
        np.copyto(self._before, self._skips)
        return self._reach

    def resume(self) -> float:
        """Start another run of the same pass; return the same as :meth:`begin`."""
        self._last_run = self._skips.copy()
        return self._reach

    def undo(self) -> None:
        """Restore the state from before the last run."""
        np.copyto(self._skips, self._last_run)

    def wake(self) -> None:
        """Unshrink all rows."""
        self._skips[:] = 0
        self._shortest = math.inf
