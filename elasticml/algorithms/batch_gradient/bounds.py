"""What is certain of the loss of examples that nobody has: an interval at every model.

A convex loss lies above its tangent; one whose slope is c-Lipschitz lies below the tangent plus
``c/2 |X (v - w)|^2``. The last term needs the absent rows, so a diagonal takes their place that is
a sum over examples and hence known from who is left: ``X' S X <= D`` of
:mod:`elasticml.algorithms.cocoa.spectral`, with p = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
#: Share of the larger sum that a difference of two such diagonals may have lost to rounding.
ROUNDED: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Two numbers between which a third one lies."""

    low: float
    high: float

    def plus(self, other: Interval) -> Interval:
        """Return where the sum of both lies."""
        return Interval(low=self.low + other.low, high=self.high + other.high)

    @property
    def size(self) -> float:
        """The largest absolute value in it."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A group's loss and gradient at the model with which it was last seen, and its largest bend.

    ``loss + gradient.(v - w) <= l(v) <= loss + gradient.(v - w) + (v - w)~' D (v - w)~ / 2``,
    where ``~`` is the map to the coordinates that members multiply by.
    """

    #: Shape (n_model,).
    w: F64
    loss: float
    gradient: F64
    #: D times the loss's smoothness, shape (n_sent,).
    diagonal: F64

    def interval(self, v: F64, sent_change: F64) -> Interval:
        """Return where the group's summed loss at ``v`` lies; ``sent_change`` is ``(v - w)~``."""
        low = self.loss + float(self.gradient @ (v - self.w))
        return Interval(low=low, high=low + 0.5 * float(self.diagonal @ sent_change**2))


def difference(whole: F64, part: F64) -> F64:
    """Return an upper bound of ``whole - part``, both sums of what is nowhere negative."""
    return np.maximum(whole - part, 0.0) + ROUNDED * whole


def gap_bound(room: float, gradient: F64, l2: float, n_penalised: int) -> float | None:
    """Bound ``f(w) - min f`` from a convex function below f, and its distance from f at w.

    A function with l2-strongly convex penalty that has the gradient g at w cannot fall below its
    value there by more than ``|g|^2 / (2 l2)``.

    Parameters
    ----------
    room : float
        The largest ``f(w) - low(w)``, low convex and nowhere above f.
    gradient : ndarray (n_model,)
        Of low at w.
    l2, n_penalised : float, int
        The penalty, on the first coordinates only.

    Returns
    -------
    float or None
        None where some coordinate is not penalised, or nothing is: there is no such bound then.
    """
    if l2 <= 0.0 or n_penalised < gradient.size:
        return None
    return room + float(gradient @ gradient) / (2.0 * l2)
