"""How whole the steps of a solver are whose steps are computed beside each other.

Steps that do not see each other can do harm together though each alone would gain. The solver
begins with whole steps, and halves them whenever a sub-epoch has not brought the local problem
forward; what such a sub-epoch did is undone.

Source: Snap ML, section 3.1, "Adaptive Damping".
"""

from __future__ import annotations

import numpy as np


class AdaptiveDamping:
    """The share of each step that is taken, in (0, 1]: 1 at first, halved as often as it must be.

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
            return True
        self.share = max(0.5 * self.share, self._least)
        return False
