"""The line search's exchanges: several lengths at once, on cached margins and directions."""

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
    """A direction from a point, and what is known of the estimated objective along it."""

    origin: Evaluated
    #: The number under which solvers cache the direction's margins.
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
    """The estimated objective and its slope along a ray, at some lengths; all shape (J,)."""

    steps: F64
    values: F64
    slopes: F64


def search(
    elastic: Elastic, penalty: L2, ray: Ray, longest: float
) -> Generator[Exchange, Outcome, Accepted | Again | None]:
    """Find the step by Armijo's rule on loss of the present, stand-ins and penalty together.

    Searching the loss of the present alone would refuse nearly every step near the optimum: the
    direction descends the sum of loss and stand-ins, not the loss.

    Parameters
    ----------
    longest : float
        Longest length to try.

    Returns
    -------
    Accepted, or None where no length was acceptable, or ``"again"``
        "again": the set of examples in the sums has changed in a way that asks for a new gradient
        at the same point.
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
    """Find a step that lowers the objective enough and leaves little of its slope.

    Longer lengths than ``longest`` are tried, too, while the objective still falls nearly as
    steeply there. Returns as :func:`search`; what is accepted without the second condition, in the
    end, lies on a convex function all the same: the slope has not fallen.
    """
    best: Accepted | None = None
    for _ in range(PROBES_MAX):
        there = yield from probed(elastic, penalty, ray, lengths(longest, 0))
        if there is None:
            return "again"
        found = choose_flat(there.steps, there.values, there.slopes, ray.value, ray.slope)
        if found.accepted is None and best is not None:
            return best
        best = found.accepted
        if best is not None and not found.is_steep:
            return best
        longest = longest * 0.5**PROBED if best is None else longest / 0.5**PROBED
    return best


def probed(
    elastic: Elastic, penalty: L2, ray: Ray, steps: F64
) -> Generator[Exchange, Outcome, Probed | None]:
    """Ask for the estimated objective at several lengths; None stands for "again"."""
    outcome = yield from _probe(elastic, ray, steps)
    if outcome is None:
        return None
    values, slopes = _objective_along(elastic, penalty, ray, steps, outcome.arrays)
    return Probed(steps=steps, values=values, slopes=slopes)


def curvature_along(
    elastic: Elastic, penalty: L2, ray: Ray
) -> Generator[Exchange, Outcome, float | None]:
    """Ask for the estimated objective's second derivative along a ray; None: "again"."""
    outcome = yield from _probe(elastic, ray, np.empty(0))
    if outcome is None:
        return None
    curvature = elastic.stand_ins.curvature_along(float(outcome.arrays["curvature"]), ray.direction)
    curvature = curvature / elastic.divisor(ray.origin.sums)
    return curvature + penalty.curvature_along(ray.direction)


def _objective_along(
    elastic: Elastic, penalty: L2, ray: Ray, steps: F64, arrays: Arrays
) -> tuple[F64, F64]:
    """Return the estimated objective and its slope at every length; both new, shape (J,)."""
    w, p = ray.origin.point.w, ray.direction
    values, slopes = elastic.stand_ins.along(w, p, steps, arrays["values"], arrays["slopes"])
    divisor = elastic.divisor(ray.origin.sums)
    values = values / divisor + penalty.value_along(w, p, steps)
    return values, slopes / divisor + penalty.slope_along(w, p, steps)


def _probe(elastic: Elastic, ray: Ray, steps: F64) -> Generator[Exchange, Outcome, Outcome | None]:
    """Ask along the ray until the answer is over the ray's set of examples, or its survivors.

    Examples that vanish in a probe get their stand-in anchored at the origin, where their gradient
    is known: the estimated objective there stays the same, and so does the direction.
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
        assert elastic.known is not None
        ray.origin = elastic.known


def hessian_times(
    elastic: Elastic, penalty: L2, origin: Evaluated, v: F64
) -> Generator[Exchange, Outcome, F64 | None]:
    """Ask for the estimated objective's Hessian at a point times ``v`` (n_model,); None: "again".

    Examples that vanish meanwhile get their stand-in anchored at the point, as in a probe; but the
    Hessian is then another one, and whoever has asked for products with the old one starts again.
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
