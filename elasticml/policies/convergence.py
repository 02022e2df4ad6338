"""Convergence rates: how fast the gap falls, for the policies that act on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from elasticml.control.policy import Progress

Axis = Literal["rounds", "seconds"]
Scale = Literal["log", "linear"]
#: Floor of the gap before taking logarithms; no certificate in float64 is smaller.
GAP_MIN = 1e-300
#: Limit of the decay of a slope from the earlier half of the points to the later one.
FADE_MIN = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The best gap so far, after a round with a certificate."""

    rounds: int
    seconds: float
    gap: float


def gap_points(history: Sequence[Progress], members: int, since_round: int = 0) -> list[Point]:
    """Return the gaps measured since the number of members last changed, oldest first.

    The last gap before the change is prepended, because it is where the period starts. Rounds
    without a gap are left out. So are bounds: a bound tells how many examples are absent rather
    than how far the job has converged.

    Parameters
    ----------
    history : sequence of Progress
        Oldest first.
    members : int
        The present number; if the last round had another one, the result is empty.
    since_round : int
        Earlier rounds are excluded, too.

    Returns
    -------
    list of Point
        ``gap`` is the best so far: a round's gap may rise, the best gap never does.
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
    points: list[Point] = []
    for i, progress in enumerate(history):
        if progress.gap is None or progress.gap_is_bound or not math.isfinite(progress.gap):
            continue
        best = min(best, max(progress.gap, 0.0))
        point = Point(rounds=progress.round + 1, seconds=progress.seconds, gap=best)
        if i < first:
            before = point
        else:
            points.append(point)
    if not points:
        return []
    return [before, *points] if before is not None else points


def next_round(history: Sequence[Progress]) -> int:
    """Return the number of the round after the history."""
    return history[-1].round + 1 if history else 0


def slope(points: Sequence[Point], axis: Axis = "seconds", scale: Scale = "log") -> float:
    """Return the mean fall of the gap from the first to the last point, per round or second.

    In decades with ``scale="log"``, else in the gap's own unit; 0 with fewer than two points.

    Source: Figure 2 of the elastic-CoCoA paper, on the linear gap. The logarithm, on which
    geometric convergence is a straight line, is ours.
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


def extrapolated_slope(points: Sequence[Point], ahead: int, axis: Axis = "seconds") -> float:
    """Extrapolate the slope to the next ``ahead`` points, assuming nothing changes.

    Convergence slows down in any case. The decay from the earlier half of the points to the later
    half is assumed to continue; on a straight line there is none.
    """
    middle = len(points) // 2
    early, late = slope(points[: middle + 1], axis), slope(points[middle:], axis)
    if early <= 0:
        return slope(points, axis)
    fade = min(1.0, max(FADE_MIN, late / early))
    # Distance from the centre of the points to the centre of the predicted ones, in units of the
    # distance between the centres of the two halves.
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
    """Whether the gap falls more slowly now than over all points.

    ``short * ratio < long``, with the short slope over the last ``window`` steps and the long one
    over all points. False with fewer than ``window + 2`` points: both slopes would be the same.
    """
    if len(points) < window + 2:
        return False
    short = slope(points[-window - 1 :], axis, scale)
    # Rounding errors on a straight line must not count as a knee.
    return short * ratio * (1 + 1e-9) < slope(points, axis, scale)
