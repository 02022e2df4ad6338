"""How parallel steps are damped: the threads' contention factor, and adaptive damping.

Steps that do not see each other can lower the objective together although each alone would raise
it.

*Contention.* Threads work on replicas of the model that are merged after each slice of an epoch.
Within a slice a thread's own steps count ``factor`` times: n_threads is always safe; 1 is right
where slices are so short that the other threads' concurrent changes hardly matter. After each slice
the exact dual line search along the merged step tells whether the threads' steps were too long.

*Adaptive damping*, for blocks of a GPU and for threads that have lowered the objective over a whole
pass. The solver starts with full steps. A sub-epoch (or pass) that lowers the local objective is
undone, and steps are halved. After several that raise it steps are doubled again: fewer rows change
later on, and they interfere less. If a doubling has to be taken back, the next one waits twice as
long, so that few sub-epochs are undone.

Source: Snap ML, section 3.1, "Adaptive Damping"; the contention factor is ours.
"""

from __future__ import annotations

from copy import copy
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.line_search import RAISE, SHORT
from elasticml.compiled import unchecked_kernel

# Adaptive damping of steps that are computed in parallel.
#
# Steps that do not see each other can lower the objective together although each alone would raise
# it. The solver starts with full steps. A sub-epoch that lowers the local objective is undone, and
# steps are halved. After several that raise it steps are doubled again: fewer rows change later on,
# and they interfere less. If a doubling has to be taken back, the next one waits twice as long, so
# that few sub-epochs are undone.
#
# Source: Snap ML, section 3.1, "Adaptive Damping".

#: Accepted sub-epochs before steps are doubled: initially, and at most.
PATIENCE: Final = 4
PATIENCE_MAX: Final = 64


class AdaptiveDamping:
    """The share of each step that is taken, in (0, 1]: 1 at first, then halved and doubled.

    Parameters
    ----------
    least : float
        Lower limit. With a share of 1/n, the steps of n rows together never lower the objective,
        whatever the rows.
    """

    def __init__(self, *, least: float) -> None:
        if not 0.0 < least <= 1.0:
            raise ValueError(f"least is {least}, wanted a number above 0 and at most 1")
        self._least = least
        self.share = 1.0
        self._accepted = 0
        self._patience = PATIENCE
        self._has_doubled = False

    def accepts(self, gain: float, size: float, precision: float) -> bool:
        """Record a sub-epoch; return False if it must be undone.

        Parameters
        ----------
        gain : float
            Growth of the local dual objective; NaN after an overflow.
        size : float
            Sum of the absolute parts of the gain. A loss of at most ``precision * size`` is treated
            as rounding; otherwise a solver at its optimum would halve its steps forever.
        precision : float
            Relative precision of the model after the sub-epoch.
        """
        if np.isfinite(gain) and gain >= -precision * size:
            self._accepted += 1
            if self.share < 1.0 and self._accepted >= self._patience:
                self.share, self._accepted = min(1.0, 2.0 * self.share), 0
                self._has_doubled = True
            return True
        if self._has_doubled:
            self._patience = min(2 * self._patience, PATIENCE_MAX)
        self.share, self._accepted = max(0.5 * self.share, self._least), 0
        self._has_doubled = False
        return False


# The factor by which threads damp their steps, updated after each slice of an epoch.
#
# Threads work on replicas of the model that are merged after each slice. Within a slice a thread's
# own steps count ``factor`` times: n_threads is always safe; 1 is right where slices are so short
# that the other threads' concurrent changes hardly matter. After each slice the exact dual line
# search along the merged step tells whether the threads' steps were too long.
#
# Where a whole pass has lowered the subproblem's objective it is undone, and the threads are damped
# in later passes: see :mod:`elasticml.algorithms.cocoa.contention`.
#
# A best step length below 1 means too long: the next slice raises the factor; above SHORT, it
# lowers it.


class Contention:
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
def adapted_contention(factor: float, slope: float, bend: float, most: float) -> float:
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
        return min(factor * RAISE, most)
    if slope > SHORT * bend:
        return max(factor / SHORT, 1.0)
    return factor
