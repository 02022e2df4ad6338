"""The factor by which threads damp their steps, updated after each slice of an epoch.

Threads work on replicas of the model that are merged after each slice. Within a slice a thread's
own steps count ``factor`` times: n_threads is always safe; 1 is right where slices are so short
that the other threads' concurrent changes hardly matter. After each slice the exact dual line
search along the merged step tells whether the threads' steps were too long.

Where a whole pass has lowered the subproblem's objective it is undone, and the threads are damped
in later passes: see :mod:`elasticml.algorithms.cocoa.adaptive_damping`.
"""

from __future__ import annotations

from copy import copy
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.adaptive_damping import AdaptiveDamping
from elasticml.data.kernels import unchecked_kernel

#: A best step length below 1 means too long: the next slice raises the factor; above SHORT, it
#: lowers it.
SHORT: Final = 1.15
_RAISE: Final = 1.3


class Crowding:
    """The factor of one group of threads, between 1 and the number of threads."""

    def __init__(self) -> None:
        #: (2,), passed to kernels, which change the first: the factor, and its lower limit.
        self.factor: NDArray[np.float64] = np.array([np.inf, 1.0])
        self._damping = AdaptiveDamping(least=1.0)
        self._n_threads = 1
        self._serial: int | None = None
        self._before = np.inf, self._damping

    @property
    def damping(self) -> float:
        """Share of the undamped step; 1 is undamped."""
        return self._damping.share

    def begin(self, serial: int, n_threads: int) -> None:
        """Start a pass; a repeated pass starts from the state of its first attempt."""
        if serial == self._serial:
            self.factor[0], self._damping = self._before[0], copy(self._before[1])
        if n_threads != self._n_threads:
            self._n_threads, self._damping = n_threads, AdaptiveDamping(least=1.0 / n_threads)
        self.factor[0] = min(self.factor[0], float(n_threads))
        self._serial, self._before = serial, (float(self.factor[0]), copy(self._damping))
        self._apply_damping()

    def accepts(self, gain: float, size: float, precision: float) -> bool:
        """Record a pass and tell whether to keep it, see :meth:`AdaptiveDamping.accepts`.

        Threads at the safe factor can lose only by rounding.
        """
        is_safe = self.factor[1] >= self._n_threads
        is_gain = self._damping.accepts(gain, size, precision)
        self._apply_damping()
        return is_gain or is_safe

    def _apply_damping(self) -> None:
        self.factor[1] = min(1.0 / self._damping.share, float(self._n_threads))
        self.factor[0] = max(self.factor[0], self.factor[1])


@unchecked_kernel
def adapted(factor: float, slope: float, bend: float, most: float) -> float:
    """Return the factor after a slice along which the dual objective is ``slope t - bend t^2/2``.

    Parameters
    ----------
    factor : float
        The factor of the slice.
    most : float
        Number of threads.
    """
    if bend <= 0.0:
        return factor
    if slope < bend:
        return min(factor * _RAISE, most)
    if slope > SHORT * bend:
        return max(factor / SHORT, 1.0)
    return factor
