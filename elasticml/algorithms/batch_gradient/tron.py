"""TRON: Newton steps in a trust region; every product with the Hessian is an exchange.

Conjugate gradients that meet a change of the set of examples are given up: their products would be
of two functions. At each change the radius becomes the norm of the last step; grown on one function
it says nothing of another one. Where that step was one of the last before an optimum, the new
function's may be far away: the ball reaches at least to the minimum along the gradient.

Source: Lin and More (1999) for the radius, Steihaug (1983) for the steps; a trial step that is not
good enough is shortened on cached margins, as Nocedal and Yuan (1998) do. For what happens when
members come and go see docs/papers.md.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Exchange, Outcome, Resume
from elasticml.algorithms.batch_gradient.line_search import (
    HIDDEN,
    PROBES_MAX,
    Accepted,
    choose,
    lengths,
)
from elasticml.algorithms.batch_gradient.optimizer import Again, Here, Step
from elasticml.algorithms.batch_gradient.search import Probed, Ray, hessian_times, probed
from elasticml.algorithms.batch_gradient.trust_region import (
    NewtonStep,
    conjugate_gradients,
    next_radius,
    residual_for,
)

F64 = NDArray[np.float64]


class Tron:
    """A truncated Newton step, and the radius within which the quadratic model is trusted."""

    def __init__(self) -> None:
        #: None before the first step, which may be as long as it likes.
        self.radius: float | None = None
        #: Norm of the last step.
        self.last: float | None = None
        #: Changes of the set of examples that the radius knows of; None: it knows another one.
        self.seen: int | None = 0
        #: Gradient's norm before the last step, where all that it promised was below rounding, or
        #: where no step was found: no other is looked for until the norm has halved.
        self.least: float | None = None
        self.directions = 0
        self.probes = 0
        self.products = 0

    def step(self, here: Here) -> Generator[Exchange, Outcome, Step | Again | None]:
        """See :class:`optimizer.Optimizer`."""
        changes = here.elastic.changes
        is_new = changes != self.seen
        if is_new:
            self.radius, self.least = self.last, None
        # Newton steps that are too short for the objective to show still halve the gradient, over
        # and over; one that did not has met its rounding, too.
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
        # Tried down to 2**-47 of a step that descends: what is left to gain is rounding.
        self.least = here.norm
        return None

    def _newton(
        self, here: Here, *, widens: bool
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
        """Let the radius follow what the whole trial step did to the objective."""
        length = float(np.linalg.norm(newton.step))
        self.least = None
        change = float(there.values[0]) - ray.value
        if newton.promised <= HIDDEN * abs(ray.value):
            # The difference is rounding; exact for the quadratic that the objective is by now.
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
        told = {"probes": self.probes, "products": self.products, "radius": self.radius}
        self.probes, self.products = 0, 0
        return told

    def resume(self, *, is_whole: bool) -> Resume:
        """See :class:`optimizer.Optimizer`."""
        return Resume(
            values={
                "directions": self.directions,
                "last": self.last,
                # With those who were absent the function is another one: a change like any other.
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
