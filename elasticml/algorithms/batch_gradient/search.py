"""The exchanges of the line search: several lengths at once, on cached margins and directions."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Arrays, Exchange, Outcome
from elasticml.algorithms.batch_gradient.elastic import Elastic, Evaluated
from elasticml.algorithms.batch_gradient.line_search import (
    PROBED,
    PROBES_MAX,
    Accepted,
    choose,
    choose_flat,
    lengths,
)
from elasticml.algorithms.batch_gradient.messages import probe_exchange, product_exchange
from elasticml.algorithms.batch_gradient.optimizer import Again
from elasticml.objectives.penalties import L2

F64 = NDArray[np.float64]


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
    elastic: Elastic, penalty: L2, ray: Ray, longest: float
) -> Generator[Exchange, Outcome, Accepted | Again | None]:
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
    elastic: Elastic, penalty: L2, ray: Ray, longest: float
) -> Generator[Exchange, Outcome, Accepted | Again | None]:
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
    elastic: Elastic, penalty: L2, ray: Ray, steps: F64
) -> Generator[Exchange, Outcome, Probed | None]:
    """Evaluate the estimated objective at several lengths; None means "again"."""
    outcome = yield from _probe(elastic, ray, steps)
    if outcome is None:
        return None
    values, slopes = _objective_along(elastic, penalty, ray, steps, outcome.arrays)
    return Probed(steps=steps, values=values, slopes=slopes)


def curvature_along(
    elastic: Elastic, penalty: L2, ray: Ray
) -> Generator[Exchange, Outcome, float | None]:
    """Evaluate the estimated objective's second derivative along a ray; None means "again"."""
    outcome = yield from _probe(elastic, ray, np.empty(0))
    if outcome is None:
        return None
    curvature = elastic.stand_ins.curvature_along(float(outcome.arrays["curvature"]), ray.direction)
    curvature = curvature / elastic.divisor(ray.origin.sums)
    return curvature + penalty.curvature_along(ray.direction)


def _objective_along(
    elastic: Elastic, penalty: L2, ray: Ray, steps: F64, arrays: Arrays
) -> tuple[F64, F64]:
    """Return the estimated objective and its slope at each length; both new, shape (J,)."""
    w, p = ray.origin.point.w, ray.direction
    values, slopes = elastic.stand_ins.along(w, p, steps, arrays["values"], arrays["slopes"])
    divisor = elastic.divisor(ray.origin.sums)
    values = values / divisor + penalty.value_along(w, p, steps)
    return values, slopes / divisor + penalty.slope_along(w, p, steps)


def _probe(elastic: Elastic, ray: Ray, steps: F64) -> Generator[Exchange, Outcome, Outcome | None]:
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
    elastic: Elastic, penalty: L2, origin: Evaluated, v: F64
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
