"""Line search by Armijo's and Wolfe's conditions, with several step lengths per exchange.

The rules are functions of values and slopes; the exchanges evaluate these on cached margins and
directions.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from elasticml.algorithms.base import Exchange, Outcome
from elasticml.algorithms.batch_gradient.elastic_gradient import Evaluated
from elasticml.algorithms.batch_gradient.gradient_exchanges import CURVATURE, PROBE, PRODUCT
from elasticml.algorithms.batch_gradient.optimizer import Iterate, Reevaluate, Step
from elasticml.algorithms.batch_gradient.trust_region import NewtonStep, conjugate_gradients
from elasticml.algorithms.linear.newton import Factored
from elasticml.arrays import F64

# Armijo's and Wolfe's conditions on step lengths that are evaluated several at a time.


#: Sufficient decrease, as a share of the linear prediction.
ARMIJO: Final = 1e-4
#: Step lengths per exchange.
PROBED: Final = 4
#: Exchanges after which a search gives up: the last length is 2**-47 of the first.
PROBES_MAX: Final = 12
#: Lengths that enclose a minimum, as multiples of that of the quadratic model, and where they do
#: not, of the length at which the tangent is 0.
ENCLOSING: Final = (8.0, 2.0, 1.0, 0.5)
WIDE: Final = tuple(4.0**-k for k in range(12))
#: A predicted decrease below this share of the objective is lost in rounding.
HIDDEN: Final = 1e-10
#: A step is too short while the slope is above this share of the first: Wolfe's second condition.
STEEP: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The accepted step length, and the objective there."""

    step: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Flattest:
    """The step length with the flattest slope."""

    accepted: Accepted | None
    #: It is the longest, and the slope there is still nearly as steep as at length 0.
    is_steep: bool


def lengths(longest: float, probe: int) -> F64:
    """Return the step lengths of probe number ``probe`` (from 0): each half the one before."""
    return np.array([longest * 0.5**k for k in range(probe * PROBED, (probe + 1) * PROBED)])


def choose(steps: F64, values: F64, slopes: F64, value: float, slope: float) -> Accepted | None:
    """Return the longest step with ``f(w + t p) <= f(w) + 1e-4 t slope``, or None.

    Near the optimum values differ by less than rounding. There the equivalent condition for a
    quadratic, ``slope at t <= (2e-4 - 1) slope``, is tested instead.

    Parameters
    ----------
    steps, values, slopes : ndarray (J,)
        Lengths, longest first; the objective there, not finite if it overflows; its derivative
        with respect to the length.
    value, slope : float
        The objective and its derivative along the direction, at length 0.

    Source: Armijo's condition; the approximate condition of Hager and Zhang (2005). The
    resource-elastic paper performs an unspecified line search.
    """
    for step, there, rise in zip(steps.tolist(), values.tolist(), slopes.tolist(), strict=True):
        if _accepts(step, there, rise, value, slope):
            return Accepted(step=step, value=there)
    return None


def choose_flat(steps: F64, values: F64, slopes: F64, value: float, slope: float) -> Flattest:
    """Return the step with the smallest slope among those that :func:`choose` would accept.

    Along a convex function this is the step closest to the minimum. It meets Wolfe's first
    condition. It meets the second, too, except if ``is_steep``, where longer steps may be better,
    or if a longer length was rejected: then the minimum lies between the two, and the slope may
    still be steep.

    Parameters
    ----------
    steps, values, slopes, value, slope
        As for :func:`choose`.
    """
    best, least = None, math.inf
    for step, there, rise in zip(steps.tolist(), values.tolist(), slopes.tolist(), strict=True):
        if abs(rise) < least and _accepts(step, there, rise, value, slope):
            best, least = Accepted(step=step, value=there), abs(rise)
    is_steep = best is not None and best.step == steps[0] and slopes[0] < STEEP * slope
    return Flattest(accepted=best, is_steep=is_steep)


def _accepts(step: float, there: float, rise: float, value: float, slope: float) -> bool:
    hidden = HIDDEN * abs(value)
    if -step * slope > hidden:
        return there <= value + ARMIJO * step * slope
    return there <= value + hidden and rise <= (2.0 * ARMIJO - 1.0) * slope


def first_length(value: float, slope: float, curvature: float) -> float:
    """Return the longest length to try on a new function: twice the quadratic model's minimiser.

    Used in the first round, and when the function has changed because examples were lost or
    returned. ``curvature`` is the second derivative along the direction; if it is not positive, the
    length is the one at which a linear function would have fallen by ``value``. At the optimum of
    an estimated function even the slope may be zero: then any length will do.
    """
    if curvature > 0.0:
        return -2.0 * slope / curvature
    return abs(value) / -slope if value != 0.0 and slope != 0.0 else 1.0


def shortened(longest: float, bound: float) -> float:
    """Return ``longest``, halved until it is at most ``bound``.

    When examples are lost or return, the old function's length may be too long for the new one. It
    is never increased: along a direction that the stand-ins made flat, the quadratic model's
    minimiser lies far outside the region where a linear function approximates a loss (w8a, 7 of 14
    members lost at round 100: a step 200 times the last one, and the gap at round 300 four times as
    large).
    """
    if longest <= bound:
        return longest
    return longest * 0.5 ** math.ceil(math.log2(longest / bound))


def lowest(steps: F64, values: F64, slopes: F64) -> float:
    """Return a lower bound of a convex function from its values and slopes at some points.

    It is the value at which the nearest tangents on both sides of the minimum meet; minus infinity
    if all points are on one side.
    """
    falls, rises = slopes < 0.0, slopes > 0.0
    if not (falls | rises).all():
        return float(values[slopes == 0.0].min())
    if falls.all() or rises.all():
        return -math.inf
    left = np.flatnonzero(falls)[np.argmax(steps[falls])]
    right = np.flatnonzero(rises)[np.argmin(steps[rises])]
    below = slopes[right] * (steps[right] - steps[left]) - (values[right] - values[left])
    meet = values[left] + slopes[left] * below / (slopes[right] - slopes[left])
    return min(float(meet), float(values.min()))


# The exchanges of the line search: several lengths at once, on cached margins and directions.


@dataclass(slots=True, kw_only=True)
class Ray:
    """A direction from an iterate, and the slope of the estimated objective along it."""

    here: Iterate
    #: The serial under which solvers cache the direction's margins.
    serial: int
    #: Shape (n_model,).
    direction: F64
    slope: float = field(init=False)
    #: The iterate's sums, of the survivors if examples are lost meanwhile.
    origin: Evaluated = field(init=False)
    is_sent: bool = False

    def __post_init__(self) -> None:
        self.slope = float(self.here.gradient @ self.direction)
        self.origin = self.here.evaluated

    def choose(self, there: Probed) -> Accepted | None:
        """Return the longest acceptable step, see :func:`choose`."""
        return choose(there.steps, there.values, there.slopes, self.here.value, self.slope)

    def step(self, accepted: Accepted) -> Step:
        """Return the step of an accepted length."""
        return Step(
            direction=self.direction,
            length=accepted.step,
            value=accepted.value,
            serial=self.serial,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The estimated objective and its slope at several lengths along a ray; all shape (J,)."""

    steps: F64
    values: F64
    slopes: F64


def search(ray: Ray, longest: float) -> Generator[Exchange, Outcome, Step | Reevaluate | None]:
    """Find a step by Armijo's condition on the estimated objective: loss, stand-ins and penalty.

    A search on the loss of the present examples alone would reject nearly every step near the
    optimum: the direction is one of descent for the sum of loss and stand-ins, not for the loss.

    Parameters
    ----------
    longest : float
        Longest length to try.

    Returns
    -------
    Step, None if no length is acceptable, or ``"again"``
        "again": the set of examples in the sums has changed, and the same point needs a new
        gradient.
    """
    for probe in range(PROBES_MAX):
        there = yield from probed(ray, lengths(longest, probe))
        if there is None:
            return "again"
        accepted = ray.choose(there)
        if accepted is not None:
            return ray.step(accepted)
    return None


def search_wolfe(
    ray: Ray, longest: float
) -> Generator[Exchange, Outcome, Step | Reevaluate | None]:
    """Find a step by Wolfe's conditions: sufficient decrease and a much flatter slope.

    Lengths beyond ``longest`` are tried, too, while the slope is still nearly as steep there.
    Returns as :func:`search`. A step accepted at the end without the second condition is safe: on
    a convex function the slope has not decreased.
    """
    best: Accepted | None = None
    for _ in range(PROBES_MAX):
        there = yield from probed(ray, lengths(longest, 0))
        if there is None:
            return "again"
        flattest = choose_flat(there.steps, there.values, there.slopes, ray.here.value, ray.slope)
        if flattest.accepted is None and best is not None:
            break
        best = flattest.accepted
        if best is not None and not flattest.is_steep:
            break
        longest = longest * 0.5**PROBED if best is None else longest / 0.5**PROBED
    return None if best is None else ray.step(best)


def probed(ray: Ray, steps: F64) -> Generator[Exchange, Outcome, Probed | None]:
    """Evaluate the estimated objective at several lengths; None means "again"."""
    outcome = yield from _probe(ray, steps)
    if outcome is None:
        return None
    elastic, penalty = ray.here.elastic, ray.here.penalty
    w, p = ray.origin.point.w, ray.direction
    arrays, divisor = outcome.arrays, elastic.divisor(ray.origin.sums)
    values, slopes = elastic.stand_ins.along(w, p, steps, arrays["values"], arrays["slopes"])
    return Probed(
        steps=steps,
        values=values / divisor + penalty.value_along(w, p, steps),
        slopes=slopes / divisor + penalty.slope_along(w, p, steps),
    )


def curvature_along(ray: Ray) -> Generator[Exchange, Outcome, float | None]:
    """Evaluate the estimated objective's second derivative along a ray; None means "again"."""
    outcome = yield from _probe(ray, None)
    if outcome is None:
        return None
    elastic, p = ray.here.elastic, ray.direction
    curvature = elastic.stand_ins.curvature_along(float(outcome.arrays["curvature"]), p)
    return curvature / elastic.divisor(ray.origin.sums) + ray.here.penalty.curvature_along(p)


def lowest_along(ray: Ray) -> Generator[Exchange, Outcome, float]:
    """Return a lower bound of the estimated objective along a line, in both directions.

    It is minus infinity if the lengths that are tried do not enclose the minimum. If examples were
    lost, the objective is one with their stand-ins.
    """
    curvature = yield from curvature_along(ray)
    if curvature is None:
        return -math.inf
    # A value of at least 0 along the tangent: beyond, little is known.
    tries = [ray.here.value / -ray.slope * np.array(WIDE)]
    if curvature > 0.0:
        tries.insert(0, -ray.slope / curvature * np.array(ENCLOSING))
    for steps in tries:
        there = yield from probed(ray, steps)
        if there is None:
            break
        known = np.isfinite(there.values) & np.isfinite(there.slopes)
        bound = lowest(
            np.append(there.steps[known], 0.0),
            np.append(there.values[known], ray.here.value),
            np.append(there.slopes[known], ray.slope),
        )
        if math.isfinite(bound):
            return bound
    return -math.inf


def _probe(ray: Ray, steps: F64 | None) -> Generator[Exchange, Outcome, Outcome | None]:
    """Evaluate along the ray until the result covers the ray's set of examples or its survivors.

    Examples lost in a probe get a stand-in anchored at the origin, where their gradient is known:
    the estimated objective there and the direction stay the same.
    """
    elastic = ray.here.elastic
    while True:
        model = {} if ray.is_sent else {"direction": elastic.columns.down(ray.direction)}
        returns: dict[str, tuple[int, ...]] = {"curvature": ()}
        if steps is not None:
            model["steps"] = steps
            returns = {"values": steps.shape, "slopes": steps.shape}
        before, waiting = elastic.changes, len(elastic.stand_ins.entries)
        ray.is_sent = True
        ray.here.spent.probes += 1
        exchange = Exchange(
            operation=CURVATURE if steps is None else PROBE,
            model=model,
            returns={**returns, "uncached": ()},
            parameters={"point": ray.origin.point.serial, "direction": ray.serial},
        )
        outcome = yield from elastic.ask_here(exchange)
        if outcome is not None:
            return outcome
        only_lost = len(elastic.stand_ins.entries) == waiting + 1
        if not (only_lost and elastic.changes == before + 1 and elastic.rules.stands_in):
            return None
        assert elastic.last_evaluated is not None
        ray.origin = elastic.last_evaluated


def hessian_times(here: Iterate, v: F64) -> Generator[Exchange, Outcome, F64 | None]:
    """Return the estimated objective's Hessian at an iterate times ``v``, (n_model,).

    None means "again". If examples are lost meanwhile, the Hessian is another one, and a sequence
    of products with the old one has to restart.
    """
    here.spent.products += 1
    elastic, origin = here.elastic, here.evaluated
    sent = elastic.columns.down(v)
    outcome = yield from elastic.ask_here(
        Exchange(
            operation=PRODUCT,
            model={"v": sent},
            returns={"hv": sent.shape, "uncached": ()},
            parameters={"point": origin.point.serial},
        )
    )
    if outcome is None:
        return None
    hv = elastic.columns.up(np.asarray(outcome.arrays["hv"]))
    hv = elastic.stand_ins.curvature(hv, v) / elastic.divisor(origin.sums)
    return hv + here.penalty.gradient(v)


def newton_step(
    here: Iterate,
    radius: float,
    residual: float,
    *,
    widens: bool = False,
    factors: Factored | None = None,
) -> Generator[Exchange, Outcome, NewtonStep | None]:
    """Return a truncated Newton step; None means "again".

    Its parameters are those of :func:`conjugate_gradients`.

    Parameters
    ----------
    factors : Factored, optional
        Of a preconditioner: radius and step are in its variables.
    """
    gradient = here.gradient if factors is None else factors.of_gradient(here.gradient)
    solving = conjugate_gradients(gradient, radius, residual, widens=widens)
    v = next(solving)
    while True:
        hv = yield from hessian_times(here, v if factors is None else factors.to_model(v))
        if hv is None:
            return None
        try:
            v = solving.send(hv if factors is None else factors.of_gradient(hv))
        except StopIteration as end:
            newton: NewtonStep = end.value
            return newton
