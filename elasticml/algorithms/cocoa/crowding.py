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

from elasticml.data.kernels import unchecked_kernel

#: A best length below 1 means too bold: the next slice is more timid; one above SHORT, bolder.
SHORT: Final = 1.15
_RAISE: Final = 1.3


class Crowding:
    """The factor of one member, between 1 and the number of its threads."""

    def __init__(self) -> None:
        #: (1,), for kernels, which change it.
        self.factor: NDArray[np.float64] = np.full(1, np.inf)
        self._serial: int | None = None
        self._before = np.inf

    def begin(self, serial: int, n_threads: int) -> None:
        """Start a pass; one that is repeated begins with what the first attempt began with."""
        if serial == self._serial:
            self.factor[0] = self._before
        self.factor[0] = min(self.factor[0], float(n_threads))
        self._serial, self._before = serial, float(self.factor[0])


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
