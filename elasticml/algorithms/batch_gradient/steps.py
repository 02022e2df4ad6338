"""Step lengths that need no line search: constant and decaying."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

#: Rounds after which a decaying step has fallen to ``1/sqrt(2)`` of its first length.
DECAY_ROUNDS: Final = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRule:
    """``first / sqrt(1 + decay * r)``: constant for ``decay`` 0."""

    first: float
    decay: float = 0.0

    def length(self, round: int) -> float:
        """Return the step of a round, in units of the mean-form objective."""
        return self.first / math.sqrt(1.0 + self.decay * round)


def safe_step(smoothness: float, mean_square_norm: float, l2: float) -> float:
    """Return 1/L for an upper bound L of the objective's curvature.

    ``L = c * mean_i |x_i|^2 + l2`` with c the loss's smoothness: the trace of ``X'SX / S`` bounds
    its largest eigenvalue. Safe, but for wide rows too short by the ratio of the two: set
    ``step_size``, or use the line search, which needs neither.
    """
    return 1.0 / (smoothness * mean_square_norm + l2)
