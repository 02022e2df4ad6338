"""How fast the gap falls: what policies that look at convergence have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from elasticml.control.policy import Progress

Axis = Literal["rounds", "seconds"]
Scale = Literal["log", "linear"]
#: A gap of 0 has no logarithm; no certificate in float64 says less than this.
GAP_MIN = 1e-300
#: From one half of some points to the other a slope is not taken to fade to less than this.
FADE_MIN = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The best gap so far, at the end of a round that took one."""

    rounds: int
    seconds: float
    gap: float


def stay(history: Sequence[Progress], members: int, since_round: int = 0) -> list[Point]:
    """List the gaps measured since the number of members last changed, oldest first.

    Before them stands the last gap measured earlier, which is the one that the stay began with.
    Rounds without a gap are left out, and so are bounds: a bound says how many examples are
    absent rather than how far the job is.

    Parameters
    ----------
    history : sequence of Progress
        Oldest first.
    members : int
        How many there are now; where the last round had another number, the stay is empty.
    since_round : int
        Rounds before this one are not of the stay either.

    Returns
    -------
    list of Point
        ``gap`` is the best so far: the gap of one round may rise, the best never does.
    """
    first = len(history)
    while (
        first > 0
        and history[first - 1].members == members
        and history[first - 1].round >= since_round
    ):
        first -= 1
    best = math.inf
    before: Point | None = None
    found: list[Point] = []
    for i, progress in enumerate(history):
        if progress.gap is None or progress.gap_is_bound or not math.isfinite(progress.gap):
            continue
        best = min(best, max(progress.gap, 0.0))
        point = Point(rounds=progress.round + 1, seconds=progress.seconds, gap=best)
        if i < first:
            before = point
        else:
            found.append(point)
    if not found:
        return []
    return [before, *found] if before is not None else found


def next_round(history: Sequence[Progress]) -> int:
    """Return the round that follows what the history has."""
    return history[-1].round + 1 if history else 0


def slope(points: Sequence[Point], axis: Axis = "seconds", scale: Scale = "log") -> float:
    """Return how much the gap fell from the first to the last point, per round or second.

    In decades with ``scale="log"``, else in the gap's own unit; 0 with fewer than two points.

    Source: Figure 2 of the elastic-CoCoA paper, on the linear gap; ours is the logarithm, on which
    geometric convergence is a straight line.
    """
    if len(points) < 2:
        return 0.0
    first, last = points[0], points[-1]
    width = last.rounds - first.rounds if axis == "rounds" else last.seconds - first.seconds
    if width <= 0:
        return 0.0
    if scale == "linear":
        return (first.gap - last.gap) / width
    fell = math.log10(max(first.gap, GAP_MIN)) - math.log10(max(last.gap, GAP_MIN))
    return fell / width


def faded_slope(points: Sequence[Point], ahead: int, axis: Axis = "seconds") -> float:
    """Predict the slope over the next ``ahead`` points, were nothing changed.

    Convergence slows down whoever computes. How much it did from the earlier half of the points to
    the later one, it is taken to go on doing; on a straight line nothing fades.
    """
    middle = len(points) // 2
    early, late = slope(points[: middle + 1], axis), slope(points[middle:], axis)
    if early <= 0:
        return slope(points, axis)
    fade = min(1.0, max(FADE_MIN, late / early))
    # How many times what lies between the centres of the halves is between their centre and the
    # centre of what is predicted.
    steps = 1 + ahead / max(len(points) - 1, 1)
    return float(slope(points, axis) * fade**steps)


def is_knee(
    points: Sequence[Point],
    *,
    window: int = 2,
    ratio: float = 1.25,
    axis: Axis = "rounds",
    scale: Scale = "log",
) -> bool:
    """Whether the gap falls more slowly now than it has on the whole.

    ``short * ratio < long``, with the short slope over the last ``window`` steps and the long one
    over all points. Never with fewer than ``window + 2`` points: they would be the same slope.
    """
    if len(points) < window + 2:
        return False
    short = slope(points[-window - 1 :], axis, scale)
    # Rounding alone must not make a knee of a straight line.
    return short * ratio * (1 + 1e-9) < slope(points, axis, scale)
