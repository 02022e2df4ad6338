"""Shrinking: which rows are skipped because their dual variable cannot leave its bound soon.

A row is skipped for a number of epochs that depends on the distance of its margin from where its
dual variable would move, and on how far the model moved in the last pass. The number is finite, so
that shrinking changes the amount of work but not the limit.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

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
    """How long a row is skipped, by the steps of the model from pass to pass."""

    def __init__(self) -> None:
        #: The epochs to skip a row per unit of slack and of inverse length; 0: no row.
        self.reach = 0.0
        #: The pass starts from the model of the last one, which did not count: its steps were not
        #: taken, or it is repeated.
        self.repeats = False
        #: The shortest model step since all rows were unshrunk, and the model of the last pass.
        self._shortest, self._last = math.inf, np.zeros(0)

    def begin(self, v: F64) -> bool:
        """Start a pass from a model (D,); return whether to unshrink all rows.

        Skips that were set by a pass that did not count belong to a model that there is not.
        """
        last, self._last = self._last, v.copy()
        self.repeats = False
        if last.size != v.size:
            self.reach = 0.0
            return True
        step = v - last
        moved = math.sqrt(products(step, step)[1])
        self.repeats = moved == 0.0
        has_jumped = self.repeats or moved > _JUMP * self._shortest or not v.any()
        if has_jumped:
            self._shortest = math.inf
        if not self.repeats:
            self._shortest = min(self._shortest, moved)
            self.reach = 1.0 / (_TYPICAL_SHARE * moved)
        return has_jumped
