"""``mode: paper``: Algorithm 2 as printed, which rolls a round back when examples vanish.

``roll_back`` chooses the same in the default mode. The default optimizer of the mode, gradient
descent, is in :class:`elasticml.specification.algorithms.BatchGradient`.

Source: the resource-elastic paper, Algorithm 2, line 16.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from elasticml.algorithms.batch_gradient.elastic_gradient import (
    AbsenceRules,
    ElasticGradient,
    Point,
)
from elasticml.specification.algorithms import BatchGradient


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """Line 16: ``w^{r+1} <- w^r, w^r <- w^{r-1}``; the stored gradient is the survivors' already.

    In the written order this repeats round r.
    """

    #: The other reading, ``roll_back: 2``: the next round starts at ``w^{r-1}``.
    to_previous_model: bool = False
    #: ``mode: paper``: stand-ins are not guarded either.
    is_paper: bool = True

    @staticmethod
    def of(settings: BatchGradient) -> RollBack | None:
        """Return the rule of a job; None: a loss costs no round."""
        rounds = settings.rounds_rolled_back
        if rounds == 0:
            return None
        return RollBack(to_previous_model=rounds == 2, is_paper=settings.mode == "paper")

    def absence(self, rules: AbsenceRules) -> AbsenceRules:
        """Return the rules for absent examples: the paper's stand-ins have no curvature."""
        return replace(rules, bends=False, guarded=rules.guarded and not self.is_paper)

    def next_point(self, point: Point, elastic: ElasticGradient) -> Point:
        """Return the model at which the next round starts."""
        assert elastic.last_evaluated is not None
        return elastic.last_evaluated.point if self.to_previous_model else point
