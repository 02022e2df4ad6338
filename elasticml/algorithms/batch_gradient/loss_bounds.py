"""Certified bounds on the loss of absent examples: an interval at every model.

A convex loss lies above its tangent; one with a c-Lipschitz derivative lies below the tangent plus
``c/2 |X (v - w)|^2``. That term needs the absent rows. It is replaced by a diagonal bound,
``X' S X <= D`` of :mod:`elasticml.algorithms.cocoa.second_moment_bounds` with p = 1: D is a sum
over examples, so the absent examples' share is the difference between the whole and the remaining
ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
#: Rounding error of a difference of two such diagonals, as a share of the larger one.
ROUNDED: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A closed interval that contains an unknown number."""

    low: float
    high: float

    def plus(self, other: Interval) -> Interval:
        """Return the interval of the sum."""
        return Interval(low=self.low + other.low, high=self.high + other.high)

    @property
    def size(self) -> float:
        """The largest absolute value in the interval."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBound:
    """A group's loss and gradient where it was last evaluated, and a bound on its curvature.

    ``loss + gradient.(v - w) <= l(v) <= loss + gradient.(v - w) + (v - w)~' D (v - w)~ / 2``,
    where ``~`` maps to the coordinates that members multiply by.
    """

    #: Shape (n_model,).
    w: F64
    loss: float
    gradient: F64
    #: D times the loss's smoothness, shape (n_sent,).
    diagonal: F64

    def interval(self, v: F64, sent_change: F64) -> Interval:
        """Return an interval of the group's loss at ``v``; ``sent_change`` is ``(v - w)~``."""
        low = self.loss + float(self.gradient @ (v - self.w))
        return Interval(low=low, high=low + 0.5 * float(self.diagonal @ sent_change**2))


def difference(whole: F64, part: F64) -> F64:
    """Return an upper bound of ``whole - part``, both sums of non-negative terms."""
    return np.maximum(whole - part, 0.0) + ROUNDED * whole


def gap_bound(room: float, gradient: F64, l2: float, n_penalised: int) -> float | None:
    """Bound ``f(w) - min f`` by means of a convex lower bound ``low`` of f.

    An l2-strongly convex function with gradient g at w is at least its value at w minus
    ``|g|^2 / (2 l2)`` everywhere.

    Parameters
    ----------
    room : float
        Upper bound of ``f(w) - low(w)``.
    gradient : ndarray (n_model,)
        Gradient of ``low`` at w.
    l2, n_penalised : float, int
        The penalty, on the first coordinates only.

    Returns
    -------
    float or None
        None if a coordinate is not penalised: then there is no such bound.
    """
    if l2 <= 0.0 or n_penalised < gradient.size:
        return None
    return room + float(gradient @ gradient) / (2.0 * l2)
