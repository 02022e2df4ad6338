"""Adaptive damping of steps that are computed in parallel.

Steps that do not see each other can lower the objective together although each alone would raise
it. The solver starts with full steps. A sub-epoch that lowers the local objective is undone, and
steps are halved. After several that raise it steps are doubled again: fewer rows change later on,
and they interfere less. If a doubling has to be taken back, the next one waits twice as long, so
that few sub-epochs are undone.

Source: Snap ML, section 3.1, "Adaptive Damping".
"""

from __future__ import annotations

from typing import Final

import numpy as np

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
