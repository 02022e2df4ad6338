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
    choose,
    hessian_times,
    lengths,
    probed,
)
from elasticml.algorithms.batch_gradient.optimizer import Iterate, Reevaluate, Step
from elasticml.algorithms.batch_gradient.trust_region import (
    NewtonStep,
    conjugate_gradients,
    next_radius,
    residual_for,
)
from elasticml.arrays import F64


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
        self.probes = 0
        self.products = 0

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
        newton = yield from self._newton(here, widens=is_new)
        if newton is None:
            return "again"
        self.directions += 1
        ray = Ray(
            origin=here.evaluated,
            serial=self.directions,
            direction=newton.step,
            value=here.value,
            slope=float(here.gradient @ newton.step),
        )
        for probe in range(PROBES_MAX):
            there = yield from probed(here.elastic, here.penalty, ray, lengths(1.0, probe))
            self.probes += 1
            if there is None or here.elastic.changes != changes:
                return "again"
            accepted = choose(there.steps, there.values, there.slopes, ray.value, ray.slope)
            if probe == 0:
                self.seen = changes
                self._follow(ray, newton, there, here.norm)
            if accepted is not None:
                return self._moved(ray, accepted)
        # Rejected down to 2**-47 of a descent step: only rounding is left to gain.
        self.least = here.norm
        return None

    def _newton(
        self, here: Iterate, *, widens: bool
    ) -> Generator[Exchange, Outcome, NewtonStep | None]:
        radius = math.inf if self.radius is None else self.radius
        residual = residual_for(here.norm, here.first_norm)
        solving = conjugate_gradients(here.gradient, radius, residual, widens=widens)
        hv: F64 | None = None
        while True:
            try:
                direction = next(solving) if hv is None else solving.send(hv)
            except StopIteration as end:
                newton: NewtonStep = end.value
                return newton
            self.products += 1
            hv = yield from hessian_times(here.elastic, here.penalty, here.evaluated, direction)
            if hv is None:
                return None

    def _follow(self, ray: Ray, newton: NewtonStep, there: Probed, norm: float) -> None:
        """Update the radius from the effect of the full trial step on the objective."""
        length = float(np.linalg.norm(newton.step))
        self.least = None
        change = float(there.values[0]) - ray.value
        if newton.promised <= HIDDEN * abs(ray.value):
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
        return Step(
            direction=ray.direction, length=accepted.step, value=accepted.value, serial=ray.serial
        )

    def columns(self) -> Mapping[str, float | int | None]:
        """See :class:`optimizer.Optimizer`."""
        counts = {"probes": self.probes, "products": self.products, "radius": self.radius}
        self.probes, self.products = 0, 0
        return counts

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
