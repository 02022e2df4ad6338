"""How parallel steps are damped, on every level: members, their groups, threads, blocks of a GPU.

Steps that do not see each other can lower the objective together although each alone would raise
it. So each part's own steps count several times in its copy of the model: n parts are safe if they
count n times, 1 is right where the others' concurrent changes hardly matter. Two observations move
the number between both.

*A line search* along the sum of the steps tells how long it should have been: shorter, and the
steps are damped more; much longer, and they are damped less. Members and groups are judged after
each round, threads after each slice of an epoch.

*A loss* of the objective over a sub-epoch of a GPU is undone, and the steps are halved. After
several that are none they are doubled again: fewer rows change later on, and they interfere less.
If a doubling has to be taken back, the next one waits twice as long, so that few are undone.

Source: Snap ML, section 3.1, "Adaptive Damping", for losses; the rest is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from elasticml.algorithms.cocoa.line_search import LineModel
from elasticml.compiled import unchecked_kernel
from elasticml.specification.algorithms import CoCoA

#: Factors of the damping after a sum that was too long, and after one that was too short by more
#: than the threshold.
RAISE: Final = 1.3
SHORT: Final = 1.15
LOWER: Final = 1.0 / SHORT
#: Sub-epochs without a loss before steps are doubled: initially, and at most.
PATIENCE: Final = 4
PATIENCE_MAX: Final = 64


def adapted(damping: float, slope: float, bend: float, least: float, most: float) -> float:
    """Return the damping after a sum along which the dual objective is ``slope t - bend t^2/2``.

    Parameters
    ----------
    damping : float
        Of the steps in the sum, in any unit; it stays between ``least`` and ``most``.
    """
    if slope < max(bend, 0.0):
        damping *= RAISE
    elif bend > 0.0 and slope > SHORT * bend:
        damping *= LOWER
    return min(max(damping, least), most)


#: The same for compiled code: a driver does not wait for a compiler.
compiled_adapted: Final = unchecked_kernel(adapted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """How the sum of members' or groups' steps is taken, from round to round."""

    #: Step length; None: by the line search.
    gamma: float | None
    #: Share of sigma' = n / n_k that members use, in (0, 1]. With a fixed gamma it equals gamma,
    #: which is safe for any partition.
    damping: float = 1.0
    #: Whether the damping adapts to the line search.
    adapts: bool = True

    @staticmethod
    def of(settings: CoCoA) -> Aggregation:
        """Return the first round's aggregation for a job's settings."""
        searches = settings.searches_line
        return Aggregation(
            gamma=None if searches else settings.gamma,
            damping=1.0 if searches else settings.gamma,
            adapts=searches and settings.given_sigma is None,
        )

    def length(self, along: LineModel) -> float:
        """Return the share of the step to take."""
        return min(max(along.best, 0.0), 1.0) if self.gamma is None else self.gamma

    def adapted(self, along: LineModel, partitions: float) -> Aggregation:
        """Adapt the damping of the next round's members.

        Parameters
        ----------
        partitions : float
            Parts of the data that changed without seeing each other: a damping below
            ``1 / partitions`` has no effect.
        """
        if not self.adapts:
            return self
        least = 1.0 / max(partitions, 1.0)
        new = adapted(self.damping, along.slope, along.curvature, least, 1.0)
        return replace(self, damping=new)


class Damping:
    """The share of each step that the blocks of a GPU take.

    Parameters
    ----------
    least : float
        A share with which their steps together never lower the objective.
    """

    def __init__(self, least: float = 1.0) -> None:
        #: In ``[least, 1]``.
        self.share = 1.0
        self._least, self._patience = least, PATIENCE
        #: Sub-epochs without a loss since the share changed, and whether it was doubled then.
        self._accepted, self._has_doubled = 0, False

    def accepts(self, gain: float, size: float, precision: float) -> bool:
        """Record a sub-epoch; return False if it must be undone.

        Parameters
        ----------
        gain : float
            Growth of the local dual objective; NaN after an overflow.
        size : float
            Sum of the absolute parts of the gain. A loss of at most ``precision * size`` is treated
            as rounding; otherwise a solver at its optimum would damp its steps forever.
        precision : float
            Relative precision of the model after the sub-epoch.
        """
        if np.isfinite(gain) and gain >= -precision * size:
            self._accepted += 1
            if self.share < 1.0 and self._accepted >= self._patience:
                self.share = min(2.0 * self.share, 1.0)
                self._accepted, self._has_doubled = 0, True
            return True
        if self._has_doubled:
            self._patience = min(2 * self._patience, PATIENCE_MAX)
        self.share = max(0.5 * self.share, self._least)
        self._accepted, self._has_doubled = 0, False
        return False
