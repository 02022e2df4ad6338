"""Gradient descent (Algorithms 1 and 2, line 17): step rules, line search, safe step length."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Final

from elasticml.algorithms.base import Exchange, Outcome, Resume
from elasticml.algorithms.batch_gradient.line_search import (
    Ray,
    curvature_along,
    first_length,
    search,
    shortened,
)
from elasticml.algorithms.batch_gradient.optimizer import Iterate, Reevaluate, Spent, Step
from elasticml.algorithms.column_statistics import moments_exchange
from elasticml.algorithms.scaling import Columns, mean_square_norm
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.objectives.multiclass import multiclass_loss
from elasticml.specification.algorithms import BatchGradient

# Step lengths that need no line search: constant and decaying.

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
    its largest eigenvalue. Safe. For wide rows the step is too short, by the ratio of the two: set
    ``step_size``, or use the line search, which needs neither.
    """
    return 1.0 / (smoothness * mean_square_norm + l2)


# Steps along the negative gradient: Algorithms 1 and 2, line 17.


class GradientDescent:
    """Steps of a fixed rule, or Armijo's line search from twice the last length."""

    def __init__(self, rule: StepRule | None) -> None:
        #: None: line search.
        self.rule = rule
        #: Longest step that the next search tries; None before the first step.
        self.longest: float | None = None
        #: ``elastic.changes`` at the last step; None: the next search is on another function.
        self.seen: int | None = None
        self.directions = 0

    def step(self, here: Iterate) -> Generator[Exchange, Outcome, Step | Reevaluate | None]:
        """See :class:`optimizer.Optimizer`."""
        self.directions += 1
        direction = -here.gradient
        if self.rule is not None:
            length = self.rule.length(here.round)
            return Step(direction=direction, length=length, value=math.nan, serial=None)
        ray = Ray(here=here, serial=self.directions, direction=direction)
        longest = self.longest
        if longest is None or self.seen != here.elastic.changes:
            curvature = yield from curvature_along(ray)
            if curvature is None:
                return "again"
            first = first_length(here.value, ray.slope, curvature)
            longest = first if longest is None else shortened(longest, first)
        step = yield from search(ray, longest)
        if step is None:
            self.longest = None
        elif step != "again":
            # Examples lost during the search are in the searched function through their stand-in.
            self.longest, self.seen = 2.0 * step.length, here.elastic.changes
        return step

    def columns(self, spent: Spent) -> Mapping[str, float | int | None]:
        """See :class:`optimizer.Optimizer`."""
        return spent.take("probes")

    def resume(self, *, is_whole: bool) -> Resume:
        """See :class:`optimizer.Optimizer`."""
        return Resume(
            values={
                "directions": self.directions,
                "longest": self.longest,
                # With the absent examples back, the objective is another function.
                "is_new": self.seen is None or not is_whole,
                "first_step": None if self.rule is None else self.rule.first,
            }
        )

    def go_on(self, resume: Resume, changes: int) -> None:
        """See :class:`optimizer.Optimizer`."""
        self.directions = int(resume.values["directions"])
        self.longest = resume.values["longest"]
        self.seen = None if resume.values["is_new"] else changes


# The step rule of gradient descent, determined before round 0.


def fix_step(
    settings: BatchGradient, columns: Columns, resume: Resume | None = None
) -> Generator[Exchange, Outcome, StepRule | None]:
    """Return the step rule; None for the line search.

    Needs one exchange if neither ``step_size`` nor ``resume`` gives the first length.
    """
    if settings.step == "line_search":
        return None
    first = settings.step_size if resume is None else float(resume.values["first_step"])
    if first is None:
        sums = (yield moments_exchange(columns.centre, weighted=True)).arrays
        norm = mean_square_norm(columns, float(sums["count"]), sums["squares"])
        loss = MarginLoss(settings.loss, settings.terms)
        smoothness = (loss if columns.models == 1 else multiclass_loss(loss)).smoothness
        first = safe_step(smoothness, norm, settings.l2)
    decay = 1.0 / DECAY_ROUNDS if settings.step == "decay" else 0.0
    return StepRule(first=first, decay=decay)
