"""What stands in for examples that are not in the sum: FNQueue and its functions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.batch_gradient.bounds import Proof
from elasticml.algorithms.batch_gradient.nystrom import Curvature
from elasticml.terms import GroupId

F64 = NDArray[np.float64]
#: Where a stand-in has its curvature from: nowhere, the present examples, or a sketch of its own.
Mode = Literal["taylor", "borrowed", "nystrom"]


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
    """Estimate of an absent group's summed loss, exact in value and gradient where it vanished.

    ``l(v) = loss + gradient.(v - w) + theta l_A(v) + (v - w)' B (v - w) / 2`` with ``l_A`` the
    summed loss of the present examples. Without ``theta`` and ``B`` it is the paper's first-order
    Taylor expansion about ``w``, the model before the group vanished. The paper leaves the constant
    ``loss`` out, which no step depends on; with it, objectives of rounds with and without stand-ins
    can be compared.

    Error: see :class:`bounds.Proof`. Of Taylor's, ``0 <= true - l(v) <= c/2 |X (v - w)|^2``, c the
    loss's smoothness: never too high.
    Source: the resource-elastic paper, section 2, "Approximation for vanished partitions".
    """

    #: Shape (n_model,).
    w: F64
    #: Value and gradient at ``w`` of all but the term with ``theta``; the group's weight.
    sums: Sums
    mode: Mode = "taylor"
    #: Weight of the group by that of the present, where their curvature is borrowed; else 0.
    theta: float = 0.0
    #: B.
    curvature: Curvature | None = None
    #: What is certain of the group's true loss; None where its share was an estimate itself.
    proof: Proof | None = None

    def own(self, v: F64) -> Sums:
        """Return what it contributes at ``v`` besides ``theta`` times the present's sums."""
        change = v - self.w
        loss = self.sums.loss + float(self.sums.gradient @ change)
        if self.curvature is None:
            return Sums(loss=loss, gradient=self.sums.gradient, weight=self.sums.weight)
        bent = self.curvature.times(change)
        return Sums(
            loss=loss + 0.5 * float(bent @ change),
            gradient=self.sums.gradient + bent,
            weight=self.sums.weight,
        )

    def at(self, v: F64, present: Sums) -> Sums:
        """Return what it contributes at ``v``, given the present's sums there."""
        own = self.own(v)
        if self.theta == 0.0:
            return own
        return Sums(
            loss=own.loss + self.theta * present.loss,
            gradient=own.gradient + self.theta * present.gradient,
            weight=own.weight,
        )

    def borrowing(self, w: F64, at_w: Sums, present: Sums) -> StandIn:
        """Return one that equals ``at_w`` at ``w`` and bends as the present's loss does.

        Parameters
        ----------
        at_w, present : Sums
            The group's and the present examples' own, at ``w``. Where nobody is present there is
            no curvature to borrow.
        """
        theta = at_w.weight / present.weight if present.weight > 0.0 else 0.0
        return replace(
            self,
            w=w,
            sums=Sums(
                loss=at_w.loss - theta * present.loss,
                gradient=at_w.gradient - theta * present.gradient,
                weight=at_w.weight,
            ),
            mode="borrowed",
            theta=theta,
            curvature=None,
        )


class StandIns:
    """The trainer's half of FNQueue: each absent group's stand-in under its id, oldest first.

    The driver keeps the other half (which chunks, who brings them back) under the same ids. An
    entry goes at the moment when its group's gradient is in a sum again, neither at the request to
    bring it back (line 21 of Algorithm 2) nor at the return of its members.
    """

    def __init__(self, n_model: int) -> None:
        #: None where a group is ignored.
        self.entries: dict[GroupId, StandIn | None] = {}
        #: Sum of the stand-ins' gradients where each is anchored: g^_FN.
        self.gradient: F64 = np.zeros(n_model)
        self.weight = 0.0
        #: By how much the present's own sums are scaled up, for groups that borrow their curvature.
        self.theta = 0.0

    @property
    def count(self) -> int:
        """Groups that have a stand-in."""
        return sum(entry is not None for entry in self.entries.values())

    def modes(self) -> dict[Mode, int]:
        """Count the stand-ins by where their curvature is from."""
        modes: dict[Mode, int] = {"taylor": 0, "borrowed": 0, "nystrom": 0}
        for entry in self.entries.values():
            if entry is not None:
                modes[entry.mode] += 1
        return modes

    def value(self, w: F64) -> float:
        """Return the stand-ins' summed loss at ``w`` besides ``theta`` times the present's."""
        return sum(entry.own(w).loss for entry in self.entries.values() if entry is not None)

    def slope(self, w: F64) -> F64:
        """Return the gradient of :meth:`value`, shape (n_model,); not to be written to."""
        gradient = self.gradient
        for entry in self._bent():
            assert entry.curvature is not None
            gradient = gradient + entry.curvature.times(w - entry.w)
        return gradient

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
            gradient=(1.0 + self.theta) * sums.gradient + self.slope(w),
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
            slope = float(self.slope(w) @ p)
            values = (1.0 + self.theta) * values + (self.value(w) + steps * slope)
            slopes = (1.0 + self.theta) * slopes + slope
            bend = self._bend_along(p)
            if bend != 0.0:
                values += 0.5 * bend * steps**2
                slopes += bend * steps
        return values, slopes

    def curvature(self, hv: F64, v: F64) -> F64:
        """Return the summed Hessian times ``v``, given the present's: shape (n_model,), new."""
        out = (1.0 + self.theta) * hv
        for entry in self._bent():
            assert entry.curvature is not None
            out += entry.curvature.times(v)
        return out

    def curvature_along(self, curvature: float, p: F64) -> float:
        """Return the summed second derivative along ``p``, given the present's."""
        return (1.0 + self.theta) * curvature + self._bend_along(p)

    def _bent(self) -> list[StandIn]:
        return [e for e in self.entries.values() if e is not None and e.curvature is not None]

    def _bend_along(self, p: F64) -> float:
        return sum(float(e.curvature.times(p) @ p) for e in self._bent() if e.curvature is not None)

    # --- who is in it -----------------------------------------------------------------------------

    def push(self, group: GroupId, entry: StandIn | None) -> None:
        """Add a group: lines 14 and 15 of Algorithm 2."""
        self.entries[group] = entry
        self._sum()

    def has_returned(self, absent: Collection[GroupId]) -> bool:
        """Whether a group of the queue is in the sum again, by that sum's ``Outcome.absent``."""
        return any(group not in absent for group in self.entries)

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

    def carry(self, w: F64, old: Sums, new: Sums) -> None:
        """Anchor borrowed curvature anew where the set of present examples has changed.

        What each such entry contributes at ``w`` stays what it was; from there on it bends as the
        losses of those that are present now. Without this a second loss would leave the first
        one's stand-in with the curvature of examples that are gone.

        Parameters
        ----------
        w : ndarray (n_model,)
            A point where both sums are known.
        old, new : Sums
            Of those present before and after the change.
        """
        changed = False
        for group, entry in self.entries.items():
            if entry is not None and entry.mode == "borrowed":
                self.entries[group] = entry.borrowing(w, entry.at(w, old), new)
                changed = True
        if changed:
            self._sum()

    def swap(self, changed: dict[GroupId, StandIn]) -> None:
        """Put other stand-ins in the place of these groups' present ones."""
        self.entries.update(changed)
        self._sum()

    def _sum(self) -> None:
        """Add up anew: subtracting what left would leave its rounding errors behind."""
        self.gradient = np.zeros_like(self.gradient)
        self.weight = self.theta = 0.0
        for entry in self.entries.values():
            if entry is not None:
                self.gradient += entry.sums.gradient
                self.weight += entry.sums.weight
                self.theta += entry.theta
