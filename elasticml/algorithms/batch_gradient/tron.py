"""TRON: trust-region Newton steps; each Hessian-vector product is one exchange.

If the set of examples changes during conjugate gradients, they are abandoned: their products would
belong to two functions. After a change the radius is reset to the norm of the last step, since a
radius that grew on one function is meaningless for another. If that step was one of the last before
an optimum, the new optimum may be far away: the trust region then extends at least to the minimum
along the gradient.

Source: Lin and More (1999) for the radius, Steihaug (1983) for the steps; a rejected trial step is
shortened on cached margins, as in Nocedal and Yuan (1998). For joining and leaving members see
docs/explanation/papers.md.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping

import numpy as np

from elasticml.algorithms.base import Exchange, Outcome, Resume
from elasticml.algorithms.batch_gradient.line_search import (
    HIDDEN,
    PROBES_MAX,
    Accepted,
    Probed,
    Ray,
    lengths,
    newton_step,
    probed,
)
from elasticml.algorithms.batch_gradient.optimizer import Iterate, Reevaluate, Spent, Step
from elasticml.algorithms.batch_gradient.trust_region import NewtonStep, next_radius, residual_for


class Tron:
    """The trust-region Newton optimizer."""

    def __init__(self) -> None:
        #: None before the first step, which is not limited.
        self.radius: float | None = None
        #: Norm of the last step.
        self.last: float | None = None
        #: ``elastic.changes`` that the radius belongs to; None: it belongs to another function.
        self.seen: int | None = 0
        #: Gradient norm before the last step if its predicted decrease was below rounding, or no
        #: step was found: no other step is tried until the norm has halved.
        self.least: float | None = None
        self.directions = 0

    def step(self, here: Iterate) -> Generator[Exchange, Outcome, Step | Reevaluate | None]:
        """See :class:`optimizer.Optimizer`."""
        changes = here.elastic.changes
        is_new = changes != self.seen
        if is_new:
            self.radius, self.least = self.last, None
        # Newton steps too short to change the objective still halve the gradient each time; if one
        # does not, the gradient is down to rounding, too.
        if here.norm == 0.0 or (self.least is not None and here.norm > 0.5 * self.least):
            return None
        radius = math.inf if self.radius is None else self.radius
        residual = residual_for(here.norm, here.first_norm)
        newton = yield from newton_step(here, radius, residual, widens=is_new)
        if newton is None:
            return "again"
        self.directions += 1
        ray = Ray(here=here, serial=self.directions, direction=newton.step)
        for probe in range(PROBES_MAX):
            there = yield from probed(ray, lengths(1.0, probe))
            if there is None or here.elastic.changes != changes:
                return "again"
            accepted = ray.choose(there)
            if probe == 0:
                self.seen = changes
                self._follow(ray, newton, there, here.norm)
            if accepted is not None:
                return self._moved(ray, accepted)
        # Rejected down to 2**-47 of a descent step: only rounding is left to gain.
        self.least = here.norm
        return None

    def _follow(self, ray: Ray, newton: NewtonStep, there: Probed, norm: float) -> None:
        """Update the radius from the effect of the full trial step on the objective."""
        length = float(np.linalg.norm(newton.step))
        self.least = None
        change = float(there.values[0]) - ray.here.value
        if newton.promised <= HIDDEN * abs(ray.here.value):
            # The difference is rounding. This formula is exact for a quadratic, which the objective
            # is so close to the optimum.
            change = 0.5 * (ray.slope + float(there.slopes[0]))
            self.least = None if newton.is_on_boundary else norm
        self.radius = next_radius(length, ray.slope, change, newton)

    def _moved(self, ray: Ray, accepted: Accepted) -> Step:
        self.last = accepted.step * float(np.linalg.norm(ray.direction))
        if accepted.step < 1.0:
            assert self.radius is not None
            self.radius = min(self.radius, self.last)
        return ray.step(accepted)

    def columns(self, spent: Spent) -> Mapping[str, float | int | None]:
        """See :class:`optimizer.Optimizer`."""
        return {**spent.take("probes", "products"), "radius": self.radius}

    def resume(self, *, is_whole: bool) -> Resume:
        """See :class:`optimizer.Optimizer`."""
        return Resume(
            values={
                "directions": self.directions,
                "last": self.last,
                # With the absent examples back, the objective is another function.
                "is_new": not is_whole,
                "radius": self.radius,
                "least": self.least,
            }
        )

    def go_on(self, resume: Resume, changes: int) -> None:
        """See :class:`optimizer.Optimizer`."""
        self.directions = int(resume.values["directions"])
        self.last, self.radius = resume.values["last"], resume.values["radius"]
        self.least = resume.values["least"]
        self.seen = None if resume.values["is_new"] else changes
