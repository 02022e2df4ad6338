"""Line search by Armijo's and Wolfe's conditions, with several step lengths per exchange.

The rules are functions of values and slopes; the exchanges evaluate these on cached margins and
directions.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

import numpy as np

from elasticml.algorithms.base import Arrays, Exchange, Outcome
from elasticml.algorithms.batch_gradient.elastic_gradient import ElasticGradient, Evaluated
from elasticml.algorithms.batch_gradient.gradient_exchanges import (
    probe_exchange,
    product_exchange,
)
from elasticml.algorithms.batch_gradient.optimizer import Reevaluate
from elasticml.arrays import F64
from elasticml.objectives.penalties import L2

# Armijo's and Wolfe's conditions on step lengths that are evaluated several at a time.


#: Sufficient decrease, as a share of the linear prediction.
ARMIJO: Final = 1e-4
#: Step lengths per exchange.
PROBED: Final = 4
#: Exchanges after which a search gives up: the last length is 2**-47 of the first.
PROBES_MAX: Final = 12
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


# The exchanges of the line search: several lengths at once, on cached margins and directions.


@dataclass(slots=True, kw_only=True)
class Ray:
    """A direction from a point, with the estimated objective's value and slope at the origin."""

    origin: Evaluated
    #: The serial under which solvers cache the direction's margins.
    serial: int
    #: Shape (n_model,).
    direction: F64
    #: Estimated objective at the origin, and its derivative along the direction.
    value: float
    slope: float
    is_sent: bool = False
    probes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The estimated objective and its slope at several lengths along a ray; all shape (J,)."""

    steps: F64
    values: F64
    slopes: F64


def search(
    elastic: ElasticGradient, penalty: L2, ray: Ray, longest: float
) -> Generator[Exchange, Outcome, Accepted | Reevaluate | None]:
    """Find a step by Armijo's condition on the estimated objective: loss, stand-ins and penalty.

    A search on the loss of the present examples alone would reject nearly every step near the
    optimum: the direction is one of descent for the sum of loss and stand-ins, not for the loss.

    Parameters
    ----------
    longest : float
        Longest length to try.

    Returns
    -------
    Accepted, None if no length is acceptable, or ``"again"``
        "again": the set of examples in the sums has changed, and the same point needs a new
        gradient.
    """
    for probe in range(PROBES_MAX):
        there = yield from probed(elastic, penalty, ray, lengths(longest, probe))
        if there is None:
            return "again"
        accepted = choose(there.steps, there.values, there.slopes, ray.value, ray.slope)
        if accepted is not None:
            return accepted
    return None


def search_wolfe(
    elastic: ElasticGradient, penalty: L2, ray: Ray, longest: float
) -> Generator[Exchange, Outcome, Accepted | Reevaluate | None]:
    """Find a step by Wolfe's conditions: sufficient decrease and a much flatter slope.

    Lengths beyond ``longest`` are tried, too, while the slope is still nearly as steep there.
    Returns as :func:`search`. A step accepted at the end without the second condition is safe: on
    a convex function the slope has not decreased.
    """
    best: Accepted | None = None
    for _ in range(PROBES_MAX):
        there = yield from probed(elastic, penalty, ray, lengths(longest, 0))
        if there is None:
            return "again"
        flattest = choose_flat(there.steps, there.values, there.slopes, ray.value, ray.slope)
        if flattest.accepted is None and best is not None:
            return best
        best = flattest.accepted
        if best is not None and not flattest.is_steep:
            return best
        longest = longest * 0.5**PROBED if best is None else longest / 0.5**PROBED
    return best


def probed(
    elastic: ElasticGradient, penalty: L2, ray: Ray, steps: F64
) -> Generator[Exchange, Outcome, Probed | None]:
    """Evaluate the estimated objective at several lengths; None means "again"."""
    outcome = yield from _probe(elastic, ray, steps)
    if outcome is None:
        return None
    values, slopes = _objective_along(elastic, penalty, ray, steps, outcome.arrays)
    return Probed(steps=steps, values=values, slopes=slopes)


def curvature_along(
    elastic: ElasticGradient, penalty: L2, ray: Ray
) -> Generator[Exchange, Outcome, float | None]:
    """Evaluate the estimated objective's second derivative along a ray; None means "again"."""
    outcome = yield from _probe(elastic, ray, np.empty(0))
    if outcome is None:
        return None
    curvature = elastic.stand_ins.curvature_along(float(outcome.arrays["curvature"]), ray.direction)
    curvature = curvature / elastic.divisor(ray.origin.sums)
    return curvature + penalty.curvature_along(ray.direction)


def _objective_along(
    elastic: ElasticGradient, penalty: L2, ray: Ray, steps: F64, arrays: Arrays
) -> tuple[F64, F64]:
    """Return the estimated objective and its slope at each length; both new, shape (J,)."""
    w, p = ray.origin.point.w, ray.direction
    values, slopes = elastic.stand_ins.along(w, p, steps, arrays["values"], arrays["slopes"])
    divisor = elastic.divisor(ray.origin.sums)
    values = values / divisor + penalty.value_along(w, p, steps)
    return values, slopes / divisor + penalty.slope_along(w, p, steps)


def _probe(
    elastic: ElasticGradient, ray: Ray, steps: F64
) -> Generator[Exchange, Outcome, Outcome | None]:
    """Evaluate along the ray until the result covers the ray's set of examples or its survivors.

    Examples lost in a probe get a stand-in anchored at the origin, where their gradient is known:
    the estimated objective there and the direction stay the same.
    """
    while True:
        down = None if ray.is_sent else elastic.columns.down(ray.direction)
        outcome = yield probe_exchange(
            steps,
            down,
            {"point": ray.origin.point.serial, "direction": ray.serial},
            require=elastic.rules.require,
            seal=elastic.take_seal(),
        )
        ray.is_sent = True
        ray.probes += 1
        before = elastic.changes
        if outcome.opened is None:
            elastic.settle(outcome.absent)
            is_whole = float(outcome.arrays["uncached"]) == 0.0
            return outcome if is_whole and elastic.changes == before else None
        waiting = len(elastic.stand_ins.entries)
        yield from elastic.stand_in(outcome)
        only_lost = len(elastic.stand_ins.entries) == waiting + 1
        if not (only_lost and elastic.changes == before + 1 and elastic.rules.stands_in):
            return None
        assert elastic.last_evaluated is not None
        ray.origin = elastic.last_evaluated


def hessian_times(
    elastic: ElasticGradient, penalty: L2, origin: Evaluated, v: F64
) -> Generator[Exchange, Outcome, F64 | None]:
    """Return the estimated objective's Hessian at a point times ``v`` (n_model,); None: "again".

    Examples lost meanwhile get a stand-in anchored at the point, as in a probe. But the Hessian is
    then another one, and a sequence of products with the old one has to restart.
    """
    outcome = yield product_exchange(
        elastic.columns.down(v),
        {"point": origin.point.serial},
        require=elastic.rules.require,
        seal=elastic.take_seal(),
    )
    if outcome.opened is not None:
        yield from elastic.stand_in(outcome)
        return None
    before = elastic.changes
    elastic.settle(outcome.absent)
    if elastic.changes != before or float(outcome.arrays["uncached"]) != 0.0:
        return None
    hv = elastic.columns.up(np.asarray(outcome.arrays["hv"]))
    hv = elastic.stand_ins.curvature(hv, v) / elastic.divisor(origin.sums)
    return hv + penalty.gradient(v)
