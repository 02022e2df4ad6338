"""How much a member's threads get into each other's way, measured from slice to slice.

Threads work on copies of the model that are brought together after each slice of an epoch. Within a
slice a thread's own steps count ``crowding`` times: n_threads is always safe, 1 is right where
slices are so short that what the others do meanwhile hardly matters. After each slice the exact
dual line search along what all threads did together says whether they were too bold.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.passes import Plan, Update

F64 = NDArray[np.float64]

#: A best length below 1 means too bold: the next slice is more timid; one above SHORT, bolder.
SHORT: Final = 1.15
_RAISE: Final = 1.3


class Crowding:
    """The factor of one member, between 1 and the number of its threads."""

    def __init__(self) -> None:
        self.factor = np.inf
        self._serial: int | None = None
        self._before = np.inf

    def begin(self, serial: int, n_threads: int) -> None:
        """Start a pass; one that is repeated begins with what the first attempt began with."""
        if serial == self._serial:
            self.factor = self._before
        self.factor = min(self.factor, float(n_threads))
        self._serial, self._before = serial, self.factor

    def adapt(self, model: F64, done: Update, plan: Plan) -> None:
        """Take in how a slice went.

        Parameters
        ----------
        model : ndarray (D,)
            What all threads began the slice with.
        done : Update
            What they did together.
        """
        slope = done.dual + done.curvature - plan.l2_total * float(np.sum(model * done.dv))
        bend = plan.l2_total * plan.whole * float(np.sum(done.dv * done.dv)) + 2.0 * done.curvature
        if bend <= 0.0:
            return
        if slope < bend:
            self.factor = min(self.factor * _RAISE, float(plan.n_parts))
        elif slope > SHORT * bend:
            self.factor = max(self.factor / SHORT, 1.0)
