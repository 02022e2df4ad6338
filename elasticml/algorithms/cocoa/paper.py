"""``mode: paper``: CoCoA as in the elastic-CoCoA paper and the uni-task paper.

The members' updates are added with a fixed gamma, and ``sigma' = gamma K``. The settings' own
defaults in this mode, no line search, shrinking or DuHL, are in
:class:`elasticml.specification.algorithms.CoCoA`.
"""

from __future__ import annotations

from typing import Literal

from elasticml.algorithms.cocoa.gap_schedule import Certificate
from elasticml.specification.algorithms import CoCoA


class PaperMode:
    """See :class:`elasticml.algorithms.cocoa.mode.Mode`."""

    #: The papers have no groups between which chunks could move.
    reassigns_chunks = False

    def gap_every(self, settings: CoCoA) -> int | Literal["target"] | None:
        """Certify every round."""
        return 1 if settings.given_gap_every is None else settings.given_gap_every

    def sigma_per_member(self, settings: CoCoA) -> float:
        """Return gamma: ``sigma' = gamma K``."""
        return settings.gamma if settings.given_sigma is None else 0.0

    def reported(self, current: Certificate | None, best: Certificate | None) -> Certificate | None:
        """Report the current model."""
        return current
