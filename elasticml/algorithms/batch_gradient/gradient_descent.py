"""Steps along the negative gradient: Algorithms 1 and 2, line 17."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping

from elasticml.algorithms.base import Exchange, Outcome, Resume
from elasticml.algorithms.batch_gradient.line_search import first_length, shortened
from elasticml.algorithms.batch_gradient.optimizer import Again, Here, Step
from elasticml.algorithms.batch_gradient.search import Ray, curvature_along, search
from elasticml.algorithms.batch_gradient.steps import StepRule


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
        self.probes = 0

    def step(self, here: Here) -> Generator[Exchange, Outcome, Step | Again | None]:
        """See :class:`optimizer.Optimizer`."""
        self.directions += 1
        direction = -here.gradient
        if self.rule is not None:
            length = self.rule.length(here.round)
            return Step(direction=direction, length=length, value=math.nan, serial=None)
        ray = Ray(
            origin=here.evaluated,
            serial=self.directions,
            direction=direction,
            value=here.value,
            slope=-float(here.gradient @ here.gradient),
        )
        step = yield from self._search(here, ray)
        self.probes = ray.probes
        return step

    def _search(self, here: Here, ray: Ray) -> Generator[Exchange, Outcome, Step | Again | None]:
        elastic, longest = here.elastic, self.longest
        if longest is None or self.seen != elastic.changes:
            curvature = yield from curvature_along(elastic, here.penalty, ray)
            if curvature is None:
                return "again"
            first = first_length(ray.value, ray.slope, curvature)
            longest = first if longest is None else shortened(longest, first)
        accepted = yield from search(elastic, here.penalty, ray, longest)
        if accepted == "again":
            return "again"
        if accepted is None:
            self.longest = None
            return None
        # Examples lost during the search are in the searched function through their stand-in.
        self.longest, self.seen = 2.0 * accepted.step, elastic.changes
        return Step(
            direction=ray.direction, length=accepted.step, value=accepted.value, serial=ray.serial
        )

    def columns(self) -> Mapping[str, float | int | None]:
        """See :class:`optimizer.Optimizer`."""
        probes, self.probes = self.probes, 0
        return {"probes": probes}

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
