"""The line search's exchanges: several lengths at once, on cached margins and directions."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Arrays, Exchange, Outcome
from elasticml.algorithms.batch_gradient.elastic import Elastic, Evaluated
from elasticml.algorithms.batch_gradient.line_search import (
    PROBES_MAX,
    Accepted,
    choose,
    first_length,
    lengths,
    shortened,
)
from elasticml.algorithms.batch_gradient.messages import probe_exchange
from elasticml.objectives.penalties import L2

F64 = NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class Ray:
    """A direction from a point, and what is known of the estimated objective along it."""

    origin: Evaluated
    #: The number under which solvers cache the direction's margins.
    serial: int
    #: Shape (n_model,); the negative gradient.
    direction: F64
    #: Estimated objective at the origin, and its derivative along the direction.
    value: float
    slope: float
    is_sent: bool = False
    probes: int = 0


def search(
    elastic: Elastic, penalty: L2, ray: Ray, longest: float | None, *, is_new: bool
) -> Generator[Exchange, Outcome, Accepted | str | None]:
    """Find the step by Armijo's rule on loss of the present, stand-ins and penalty together.

    Searching the loss of the present alone would refuse nearly every step near the optimum: the
    direction descends the sum of loss and stand-ins, not the loss.

    Parameters
    ----------
    longest : float, optional
        Longest length to try: twice the last step. None where there was no step yet.
    is_new : bool
        The function searched is another than the last time: ``line_search.first_length`` bounds
        the lengths.

    Returns
    -------
    Accepted, or None where no length was acceptable, or ``"again"``
        "again": the set of examples in the sums has changed in a way that asks for a new gradient
        at the same point.
    """
    if is_new:
        outcome = yield from _probe(elastic, ray, np.empty(0))
        if outcome is None:
            return "again"
        curvature = elastic.stand_ins.curvature_along(
            float(outcome.arrays["curvature"]), ray.direction
        )
        curvature = curvature / elastic.divisor(ray.origin.sums)
        curvature += penalty.curvature_along(ray.direction)
        first = first_length(ray.value, ray.slope, curvature)
        longest = first if longest is None else shortened(longest, first)
    assert longest is not None
    for probe in range(PROBES_MAX):
        steps = lengths(longest, probe)
        outcome = yield from _probe(elastic, ray, steps)
        if outcome is None:
            return "again"
        values, slopes = _objective_along(elastic, penalty, ray, steps, outcome.arrays)
        accepted = choose(steps, values, slopes, ray.value, ray.slope)
        if accepted is not None:
            return accepted
    return None


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
