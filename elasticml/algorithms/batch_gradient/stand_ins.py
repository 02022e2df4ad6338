"""What stands in for examples that are not in the sum: FNQueue and its linear functions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticml.terms import GroupId

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Loss, gradient and weight summed over some examples at one point; never means."""

    loss: float
    #: Shape (n_model,).
    gradient: F64
    weight: float

    def plus(self, other: Sums) -> Sums:
        """Sum over both sets of examples."""
        return Sums(
            loss=self.loss + other.loss,
            gradient=self.gradient + other.gradient,
            weight=self.weight + other.weight,
        )

    def minus(self, other: Sums) -> Sums:
        """Sum over the examples of this set that are not in the other, a part of it."""
        return Sums(
            loss=self.loss - other.loss,
            gradient=self.gradient - other.gradient,
            weight=self.weight - other.weight,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """First-order Taylor expansion of an absent group's summed loss, about ``w`` (n_model,).

    ``l(v) = loss + gradient.(v - w)``. The paper leaves the constant ``loss`` out, which no step
    depends on; with it, objectives of rounds with and without stand-ins can be compared.

    Error: ``0 <= true - l(v) <= c/2 |X (v - w)|^2``, c the loss's smoothness: never too high.
    Source: the resource-elastic paper, section 2, "Approximation for vanished partitions".
    """

    w: F64
    sums: Sums

    def at(self, v: F64) -> Sums:
        """Return what the group would contribute at ``v``, if its loss were linear."""
        loss = self.sums.loss + float(self.sums.gradient @ (v - self.w))
        return Sums(loss=loss, gradient=self.sums.gradient, weight=self.sums.weight)


class StandIns:
    """The trainer's half of FNQueue: each absent group's stand-in under its id, oldest first.

    The driver keeps the other half (which chunks, who brings them back) under the same ids. An
    entry goes at the moment when its group's gradient is in a sum again, neither at the request to
    bring it back (line 21 of Algorithm 2) nor at the return of its members.
    """

    def __init__(self, n_model: int) -> None:
        #: None where a group is ignored.
        self.entries: dict[GroupId, StandIn | None] = {}
        #: Sum of the stand-ins' gradients: g^_FN.
        self.gradient: F64 = np.zeros(n_model)
        self.weight = 0.0
        #: By how much the present's own sums are scaled up, for groups that borrow their curvature.
        self.theta = 0.0

    @property
    def count(self) -> int:
        """Groups that have a stand-in."""
        return sum(entry is not None for entry in self.entries.values())

    def value(self, w: F64) -> float:
        """Return the stand-ins' summed loss at ``w``."""
        return sum(entry.at(w).loss for entry in self.entries.values() if entry is not None)

    # --- the one estimated function: f^ -----------------------------------------------------------

    def total(self, sums: Sums, w: F64) -> Sums:
        """Return loss, gradient and weight of all examples at ``w``, the absent ones' estimated.

        Parameters
        ----------
        sums : Sums
            Of the present, at ``w``.
        w : ndarray (n_model,)

        Returns
        -------
        Sums
            Everything of the estimated objective but the penalty.
        """
        if not self.entries:
            return sums
        return Sums(
            loss=(1.0 + self.theta) * sums.loss + self.value(w),
            gradient=(1.0 + self.theta) * sums.gradient + self.gradient,
            weight=sums.weight + self.weight,
        )

    def along(self, w: F64, p: F64, steps: F64, values: F64, slopes: F64) -> tuple[F64, F64]:
        """Return the summed loss and its slope at every ``w + t p``; both new, shape (J,).

        Parameters
        ----------
        w, p : ndarray (n_model,)
            Origin and direction.
        steps : ndarray (J,)
        values, slopes : ndarray (J,)
            Summed losses of the present along the ray, and their derivatives by the step.
        """
        values, slopes = np.array(values), np.array(slopes)
        if self.entries:
            slope = float(self.gradient @ p)
            values = (1.0 + self.theta) * values + (self.value(w) + steps * slope)
            slopes = (1.0 + self.theta) * slopes + slope
        return values, slopes

    def curvature(self, hv: F64, v: F64) -> F64:
        """Return the summed Hessian times ``v``, given the present's: shape (n_model,), new."""
        return (1.0 + self.theta) * hv

    def curvature_along(self, curvature: float, p: F64) -> float:
        """Return the summed second derivative along ``p``, given the present's."""
        return (1.0 + self.theta) * curvature

    # --- who is in it -----------------------------------------------------------------------------

    def push(self, group: GroupId, entry: StandIn | None) -> None:
        """Add a group: lines 14 and 15 of Algorithm 2."""
        self.entries[group] = entry
        self._sum()

    def drop_returned(self, absent: Collection[GroupId]) -> list[StandIn | None]:
        """Remove the groups that are in the sum again, and return their entries: line 21.

        Parameters
        ----------
        absent : collection of GroupId
            ``Outcome.absent`` of the very exchange whose sum is used from now on.
        """
        back = [group for group in self.entries if group not in absent]
        dropped = [self.entries.pop(group) for group in back]
        if dropped:
            self._sum()
        return dropped

    def _sum(self) -> None:
        """Add up anew: subtracting what left would leave its rounding errors behind."""
        self.gradient = np.zeros_like(self.gradient)
        self.weight = 0.0
        for entry in self.entries.values():
            if entry is not None:
                self.gradient += entry.sums.gradient
                self.weight += entry.sums.weight
