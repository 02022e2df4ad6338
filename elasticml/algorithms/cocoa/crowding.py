"""How much a member's threads get into each other's way, measured from slice to slice.

Threads work on copies of the model that are brought together after each slice of an epoch. Within a
slice a thread's own steps count ``crowding`` times: n_threads is always safe, 1 is right where
slices are so short that what the others do meanwhile hardly matters. After each slice the exact
dual line search along what all threads did together says whether they were too bold.

Where a whole pass has not brought the subproblem forward it is undone, and threads are held back
for the passes to come: see :mod:`elasticml.algorithms.cocoa.adaptive_damping`.
"""

from __future__ import annotations

from copy import copy
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.adaptive_damping import AdaptiveDamping
from elasticml.data.kernels import unchecked_kernel

#: A best length below 1 means too bold: the next slice is more timid; one above SHORT, bolder.
SHORT: Final = 1.15
_RAISE: Final = 1.3


class Crowding:
    """The factor of one group of threads, between 1 and their number."""

    def __init__(self) -> None:
        #: (2,), for kernels, which change the first: the factor, and what it is at least.
        self.factor: NDArray[np.float64] = np.array([np.inf, 1.0])
        self._damping = AdaptiveDamping(least=1.0)
        self._n_threads = 1
        self._serial: int | None = None
        self._before = np.inf, self._damping

    @property
    def damping(self) -> float:
        """Of the boldness that is right for threads which are not in each other's way: 1 is all."""
        return self._damping.share

    def begin(self, serial: int, n_threads: int) -> None:
        """Start a pass; one that is repeated begins with what the first attempt began with."""
        if serial == self._serial:
            self.factor[0], self._damping = self._before[0], copy(self._before[1])
        if n_threads != self._n_threads:
            self._n_threads, self._damping = n_threads, AdaptiveDamping(least=1.0 / n_threads)
        self.factor[0] = min(self.factor[0], float(n_threads))
        self._serial, self._before = serial, (float(self.factor[0]), copy(self._damping))
        self._hold_back()

    def accepts(self, gain: float, size: float, precision: float) -> bool:
        """Take in how a pass went, see :meth:`AdaptiveDamping.accepts`.

        Threads that are as timid as can be lose nothing but by rounding.
        """
        is_safe = self.factor[1] >= self._n_threads
        is_gain = self._damping.accepts(gain, size, precision)
        self._hold_back()
        return is_gain or is_safe

    def _hold_back(self) -> None:
        self.factor[1] = min(1.0 / self._damping.share, float(self._n_threads))
        self.factor[0] = max(self.factor[0], self.factor[1])


@unchecked_kernel
def adapted(factor: float, slope: float, bend: float, most: float) -> float:
    """Return the factor after a slice along which the dual objective is ``slope t - bend t^2/2``.

    Parameters
    ----------
    factor : float
        That of the slice.
    most : float
        The number of threads.
    """
    if bend <= 0.0:
        return factor
    if slope < bend:
        return min(factor * _RAISE, most)
    if slope > SHORT * bend:
        return max(factor / SHORT, 1.0)
    return factor
