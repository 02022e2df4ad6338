"""How long the rounds of a job have made no progress."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Final

from elasticml.story.history import HistoryRow

#: Rounds without progress after which a job with a tolerance ends.
ROUNDS_WITHOUT_PROGRESS: Final = 100
#: Share of the objective that counts as rounding error.
ROUNDING: Final = 8.0 * sys.float_info.epsilon


@dataclass(slots=True)
class Stagnation:
    """Rounds since the gap, or the objective of a job without one, has fallen.

    A gap is not monotone: the objective of dual ascent rises at times, for hundreds of rounds near
    the optimum. So a lower bound of the minimum, the dual objective or the objective less the gap,
    that has risen is progress too. A job that was resumed, or has lost examples, begins with the
    gap of its best model and far lower bounds: it counts from there on.
    """

    lowest: float = math.inf
    #: The highest lower bound of the minimum.
    bound: float = -math.inf
    #: The highest dual objective since examples were last absent.
    dual: float = -math.inf
    #: Rounds since the last progress.
    rounds: int = 0
    #: The last round measured it, and was one too many.
    is_over: bool = False

    def after(self, row: HistoryRow, *, is_whole: bool) -> None:
        """Take a round that has ended.

        Parameters
        ----------
        is_whole : bool
            Whether all examples took part; other rounds do not count, nor do those before.
        """
        if not is_whole:
            self.rounds, self.is_over, self.dual = 0, False, -math.inf
            return
        self.rounds += 1
        # Of the model at the round's beginning: mostly another row than that of the new gap.
        if row.dual is not None and row.dual - self.dual > ROUNDING * abs(row.dual):
            self.dual, self.rounds = row.dual, 0
        has_gap = row.gap is not None or row.next_gap is not None
        objective = row.objective if row.next_objective is None else row.next_objective
        # Not every round has a certificate.
        value = row.next_gap if has_gap else objective
        if value is None:
            self.is_over = False
            return
        rounding = ROUNDING * abs(value if objective is None else objective)
        bound = objective - value if has_gap and objective is not None else -math.inf
        if self.lowest - value > rounding:
            self.lowest, self.rounds = value, 0
        if bound - self.bound > rounding:
            self.bound, self.rounds = bound, 0
        self.is_over = self.rounds >= ROUNDS_WITHOUT_PROGRESS
