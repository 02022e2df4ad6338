"""How whole the steps of a solver are whose steps are computed beside each other.

Steps that do not see each other can do harm together though each alone would gain. The solver
begins with whole steps, and halves them whenever a sub-epoch has not brought the local problem
forward; what such a sub-epoch did is undone. After some that have, steps are doubled again: later
on fewer rows change, which are less in each other's way. Where that is taken back, the next
doubling waits for twice as many, so that few sub-epochs are undone.

Source: Snap ML, section 3.1, "Adaptive Damping".
"""

from __future__ import annotations

from typing import Final

import numpy as np

#: Accepted sub-epochs after which steps are doubled, at first and at most.
PATIENCE: Final = 4
PATIENCE_MAX: Final = 64


class AdaptiveDamping:
    """The share of each step that is taken, in (0, 1]: 1 at first, halved and doubled.

    Parameters
    ----------
    least : float
        Below this it is not halved: with one step in so many taken, steps of as many rows at once
        gain together, whatever the rows.
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
        """Take in how a sub-epoch went; return False where it is to be undone.

        Parameters
        ----------
        gain : float
            What the local dual objective grew by; NaN where something overflowed.
        size : float
            Sum of the sizes of its parts, whose rounding may hide a gain: what is lost by no more
            than ``precision`` of it is no loss, or a solver at its optimum would halve for ever.
        precision : float
            Relative, of the model after the sub-epoch.
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
