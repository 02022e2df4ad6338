"""Armijo's and Wolfe's conditions on step lengths that are evaluated several at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

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
