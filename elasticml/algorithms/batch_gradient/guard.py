"""The guard that watches stand-ins without curvature.

Such a stand-in lets the model run away in directions that only the absent examples constrain. The
certified interval of their loss shows when this happens: its upper end stops falling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from elasticml.algorithms.batch_gradient.absence import interval
from elasticml.algorithms.batch_gradient.elastic import Elastic, Evaluated, Point

#: Rounds without a better certified value after which the model returns to the best one.
PATIENCE: Final = 8


@dataclass(slots=True, kw_only=True)
class Guard:
    """Judges every point while there are stand-ins without curvature.

    After ``PATIENCE`` points without progress the stand-ins borrow curvature at the best point;
    after as many more no step is taken. A change of the set of examples resets the guard. If a
    group's loss has no bound, points cannot be judged: the stand-ins borrow curvature at once, and
    the guard is off.
    """

    best: Point | None = None
    best_value: float = 0.0
    #: Points since the best one.
    stale: int = 0
    #: Borrow curvature at the best point, once the sums there are known again.
    switches: bool = False
    #: Take no step until examples are lost or return.
    holds: bool = False
    _changes: int = -1
    _watches: bool = False

    def judge(self, elastic: Elastic, evaluated: Evaluated, estimated: float) -> Point | None:
        """Return the point to go back to, or None to continue from the evaluated one.

        Parameters
        ----------
        estimated : float
            The estimated objective at the evaluated point.
        """
        if elastic.changes != self._changes:
            flat = elastic.rules.bends and elastic.stand_ins.modes()["taylor"] > 0
            self._begin(elastic.changes, watches=flat)
        if not self._watches:
            return None
        if self.switches:
            elastic.borrow(evaluated)
            self.switches, self._changes = False, elastic.changes
        error = interval(elastic, evaluated)
        if error is None:
            self._give_up(elastic, evaluated)
            return None
        certain = estimated + error.high
        if self.best is None or certain < self.best_value:
            self.best, self.best_value, self.stale = evaluated.point, certain, 0
            return None
        self.stale += 1
        if self.stale < PATIENCE or self.holds:
            return None
        self.stale = 0
        self.switches = elastic.stand_ins.modes()["taylor"] > 0
        self.holds = not self.switches
        elastic.note = (
            "stand-ins without curvature helped no more: they borrow it from here on"
            if self.switches
            else "no step is certain to help: the model stays until examples return"
        )
        return self.best

    def _give_up(self, elastic: Elastic, evaluated: Evaluated) -> None:
        """Let stand-ins without curvature borrow it at this point, and switch the guard off."""
        if elastic.stand_ins.modes()["taylor"] > 0:
            elastic.borrow(evaluated)
            elastic.note = "nothing is certain of some absent: stand-ins without curvature borrow"
        self._begin(elastic.changes, watches=False)

    def _begin(self, changes: int, *, watches: bool) -> None:
        self._changes, self._watches = changes, watches
        self.best, self.stale, self.switches, self.holds = None, 0, False, False
