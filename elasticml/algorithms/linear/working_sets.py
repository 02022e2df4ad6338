"""Minimise a smooth loss with an elastic net by working sets of coordinates, with a certified gap.

Each iteration computes the products of the coordinates' columns with a dual point, and from them
the duality gap and the coordinates that are zero in every solution (gap-safe screening). An inner
method then descends on a working set: the coordinates in the model or closest to entering it.

The maximum of a 1-strongly concave dual objective lies within ``sqrt(2 gap)`` of any feasible
point. A column whose product with every point of that sphere is below the threshold has coefficient
zero in every solution.

Source: Ndiaye, Fercoq, Gramfort and Salmon (2017); Massias, Gramfort and Salmon (2018) for working
sets by the distance from the constraint.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.linear.duality import Dual
from elasticml.algorithms.linear.fit import Fit
from elasticml.algorithms.linear.newton import ROUNDED
from elasticml.arrays import F64, I64
from elasticml.objectives.penalty_kernels import Penalty

#: Size of the first working set; later ones have twice as many coordinates as the model.
FIRST: Final = 50
#: Accuracy of a working set's problem, as a share of the gap over all coordinates.
INNER: Final = 0.1


def screen(a1: float, dual: Dual, lengths: F64, gap: float) -> tuple[NDArray[np.bool_], F64]:
    """Return which columns may be in a solution, and each one's distance to its constraint.

    Parameters
    ----------
    a1 : float
        Threshold of the constraint.
    lengths : ndarray (m,)
        Column norms, scaled such that the dual objective is 1-concave.
    gap : float
        Gap of the scaled dual point.
    """
    room = a1 - abs(dual.share) * dual.correlations
    radius = math.sqrt(2.0 * max(gap, 0.0))
    return room <= radius * lengths, room / np.maximum(lengths, 1e-300)


def nearest(features: I64, distance: F64, w: F64, size: int) -> I64:
    """Return the working set: features in the model and those closest to it, ``size`` in all.

    Parameters
    ----------
    features, distance, w : ndarray (m,)
        Features, distances to their constraints, and coefficients.

    Returns
    -------
    ndarray, sorted
    """
    if features.size <= size:
        return features
    ranked = np.where(w != 0.0, -1.0, distance)
    return np.sort(features[np.argpartition(ranked, size)[:size]])


class Inner(Protocol):
    """A model, and a method that improves some of its coordinates."""

    #: Whether the last descent gained more than rounding.
    is_measurable: bool

    @property
    def w(self) -> F64:
        """The coefficients, flat."""
        ...

    @property
    def squares(self) -> F64:
        """Squared column norms, scaled for a 1-concave dual objective, without the L2 term."""
        ...

    @property
    def patience(self) -> int:
        """Iterations without measurable progress after which the remaining gap is rounding."""
        ...

    @property
    def takes_all(self) -> bool:
        """Whether the method takes all coordinates, and chooses among them itself."""
        ...

    def bound(self, penalty: Penalty, features: I64) -> tuple[float, Dual]:
        """Return the objective and a lower bound, where all other coordinates are zero."""
        ...

    def drop(self, features: I64) -> bool:
        """Remove screened coordinates from the model; return whether any was not zero."""
        ...

    def descend(self, penalty: Penalty, working: I64, gap: float, goal: float, steps: int) -> int:
        """Take at most ``steps`` steps on a working set; return their number, at least 1.

        Parameters
        ----------
        gap, goal : float
            The gap over all coordinates, and the wanted one.
        """
        ...

    def fit(self, gap: float, steps: int, *, converged: bool) -> Fit:
        """Return the model with its certificate."""
        ...


def solve(inner: Inner, penalty: Penalty, goal: float, steps: int) -> Fit:
    """Take at most ``steps`` steps, until the gap is at most ``goal`` or rounding.

    With a penalty of a user every working set has all coordinates.
    """
    features, done, size = np.arange(inner.w.size), 0, 0
    best, stale, is_whole = math.inf, 0, False
    while True:
        value, dual = inner.bound(penalty, features)
        gap = value - dual.value
        is_better = gap < 0.5 * best
        best = gap if is_better else best
        stale = 0 if inner.is_measurable or is_better else stale + 1
        is_stuck = stale >= inner.patience
        if gap <= goal or done >= steps or (is_stuck and is_whole):
            break
        if not penalty.is_l1:  # the threshold below which a coefficient is zero is that of L1 alone
            is_whole = True
            done += inner.descend(penalty, features, gap, goal, steps - done)
            continue
        lengths = np.sqrt(inner.squares[features] + penalty.a2)
        alive, distance = screen(penalty.a1, dual, lengths, value - dual.scaled)
        dropped = inner.drop(features[~alive])
        if not alive.all():
            features, distance = features[alive], distance[alive]
        if dropped and inner.takes_all:
            continue  # What the last bound measured is that of another model.
        w = inner.w[features]
        # If the working set is solved and the gap is due to other columns, enlarge it.
        size = max(FIRST, 2 * int(np.count_nonzero(w)), size, 2 * size * is_stuck)
        working = features if inner.takes_all else nearest(features, distance, w, size)
        is_whole = working.size == features.size and not dropped
        done += inner.descend(penalty, working, gap, goal, steps - done)
    # If steps on all coordinates no longer help, the remaining gap is rounding.
    rounded = ROUNDED * value if is_stuck else 0.0
    converged = gap <= max(goal, rounded)
    return inner.fit(max(gap, 0.0), done, converged=converged)
