"""Stand-ins: estimates of the loss of absent examples (the paper's FNQueue and its functions)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from elasticml.arrays import F64
from elasticml.ids import GroupId

#: Eigenvalues of ``V' H V`` below this share of the largest are rounding.
KEPT: Final = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Curvature:
    """``B = F F' + diag(D)``: symmetric positive semidefinite."""

    #: F, shape (n_model, k).
    factor: F64
    #: D, shape (n_model,).
    diagonal: F64

    def times(self, v: F64) -> F64:
        """Return ``B v``, shape (n_model,), new."""
        out: F64 = self.factor @ (self.factor.T @ v) + self.diagonal * v
        return out


def nystrom(basis: F64, products: F64, diagonal: F64) -> Curvature:
    """Approximate H by ``H V (V' H V)^-1 V' H`` plus the remainder of its diagonal.

    Without the remainder, directions outside the basis have no curvature, as in a first-order
    Taylor expansion (a9a sorted by its first singular direction, half of the members away: a gap of
    5.9e-3 instead of 1.5e-3).

    Parameters
    ----------
    basis : ndarray (k, n_model)
        V', orthonormal rows; H is symmetric positive semidefinite.
    products : ndarray (k, n_model)
        (H V)'.
    diagonal : ndarray (n_model,)
        Diagonal of H.

    Notes
    -----
    Error: exact if V spans the range of H, in particular for k = n_model. Otherwise the part along
    V is exact, and the rest of H, positive semidefinite, is replaced by its diagonal.
    """
    core = basis @ products.T
    values, vectors = np.linalg.eigh(0.5 * (core + core.T))
    kept = values > KEPT * max(float(values[-1]), 0.0) if values.size else np.zeros(0, bool)
    factor = (products.T @ vectors[:, kept]) / np.sqrt(values[kept])
    remainder = np.maximum(diagonal - np.einsum("ij,ij->i", factor, factor), 0.0)
    return Curvature(factor=factor, diagonal=remainder)


def first_basis(n_model: int, rank: int) -> F64:
    """Return random orthonormal rows (min(rank, n_model), n_model), with a fixed seed."""
    draws = np.random.default_rng(0).standard_normal((min(rank, n_model), n_model))
    return orthonormal(draws)


def orthonormal(rows: F64) -> F64:
    """Return orthonormal rows (k, n) with the same span; one step of subspace iteration."""
    q, _ = np.linalg.qr(rows.T)
    return np.ascontiguousarray(q.T)


#: Rounding error of a difference of the diagonals of two bounds, as a share of the larger one.
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
    where ``~`` maps to the coordinates that members multiply by. A convex loss lies above its
    tangent, and one with a c-Lipschitz derivative below the tangent plus ``c/2 |X (v - w)|^2``. As
    that term needs the absent rows, D replaces it: ``X' S X <= D`` of
    :mod:`elasticml.algorithms.cocoa.bound_statistics` is a sum over examples, so that the absent
    examples' share is the difference between all and the remaining ones.
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


#: Source of a stand-in's curvature: none, the present examples, or its own sketch.
Mode = Literal["taylor", "borrowed", "nystrom"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Loss, gradient and weight summed over some examples at one point; never means."""

    loss: float
    #: Shape (n_model,).
    gradient: F64
    weight: float

    def plus(self, other: Sums, times: float = 1.0) -> Sums:
        """Return the sums over both sets of examples, the others a number of times."""
        return Sums(
            loss=self.loss + times * other.loss,
            gradient=self.gradient + times * other.gradient,
            weight=self.weight + times * other.weight,
        )

    def minus(self, other: Sums) -> Sums:
        """Return the sums over this set without ``other``, which is a part of it."""
        return self.plus(other, -1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """Estimate of an absent group's summed loss; value and gradient are exact at ``w``.

    ``l(v) = loss + gradient.(v - w) + theta l_A(v) + (v - w)' B (v - w) / 2`` with ``l_A`` the
    summed loss of the present examples. Without ``theta`` and ``B`` it is the paper's first-order
    Taylor expansion about ``w``, the model before the group was lost. The paper omits the constant
    ``loss``, on which no step depends; with it, objectives of rounds with and without stand-ins are
    comparable.

    Error: see :class:`LossBound`. For a Taylor stand-in,
    ``0 <= true - l(v) <= c/2 |X (v - w)|^2`` with c the loss's smoothness: never too high.
    Source: the resource-elastic paper, section 2, "Approximation for vanished partitions".
    """

    #: Shape (n_model,).
    w: F64
    #: Value and gradient at ``w`` without the term with ``theta``; the group's weight.
    sums: Sums
    mode: Mode = "taylor"
    #: The group's weight divided by the present examples', if it borrows their curvature; else 0.
    theta: float = 0.0
    #: B.
    curvature: Curvature | None = None
    #: Certified bound of the group's true loss; None if its share was itself an estimate.
    proof: LossBound | None = None
    #: The same group with borrowed curvature, in case it turns out to need some.
    spare: StandIn | None = None

    def own(self, v: F64) -> Sums:
        """Return the contribution at ``v`` without ``theta`` times the present examples' sums."""
        change = v - self.w
        sums = replace(self.sums, loss=self.sums.loss + float(self.sums.gradient @ change))
        if self.curvature is None:
            return sums
        bent = self.curvature.times(change)
        loss = sums.loss + 0.5 * float(bent @ change)
        return replace(sums, loss=loss, gradient=sums.gradient + bent)

    def at(self, v: F64, present: Sums) -> Sums:
        """Return the contribution at ``v``, given the present examples' sums there."""
        own = self.own(v)
        if self.theta == 0.0:
            return own
        return replace(own.plus(present, self.theta), weight=own.weight)

    def borrowing(self, w: F64, at_w: Sums, present: Sums) -> StandIn:
        """Return a stand-in with sums ``at_w`` at ``w`` and the present examples' curvature.

        Parameters
        ----------
        at_w, present : Sums
            Sums of the group and of the present examples at ``w``. With no example present there
            is no curvature to borrow.
        """
        theta = at_w.weight / present.weight if present.weight > 0.0 else 0.0
        return replace(
            self,
            w=w,
            sums=replace(at_w.plus(present, -theta), weight=at_w.weight),
            mode="borrowed",
            theta=theta,
            curvature=None,
        )


class StandIns:
    """The trainer's half of FNQueue: the stand-in of each absent group by its id, oldest first.

    The driver keeps the other half (the chunks, and which members bring them back) under the same
    ids. An entry is removed when its group's gradient is in a sum again, not at the request to
    bring it back (line 21 of Algorithm 2) and not at the return of its members.
    """

    def __init__(self, n_model: int) -> None:
        #: None for a group that is ignored.
        self.entries: dict[GroupId, StandIn | None] = {}
        #: Sum of the stand-ins' gradients at their anchors: g^_FN.
        self.gradient: F64 = np.zeros(n_model)
        self.weight = 0.0
        #: The present examples' sums are scaled by ``1 + theta``, for borrowed curvature.
        self.theta = 0.0

    @property
    def count(self) -> int:
        """Number of groups with a stand-in."""
        return sum(entry is not None for entry in self.entries.values())

    def modes(self) -> dict[Mode, int]:
        """Count the stand-ins by the source of their curvature."""
        modes: dict[Mode, int] = {"taylor": 0, "borrowed": 0, "nystrom": 0}
        for entry in self.entries.values():
            if entry is not None:
                modes[entry.mode] += 1
        return modes

    @property
    def depends_on_present(self) -> bool:
        """Whether a stand-in has the curvature of the present examples, or may get it."""
        entries = [entry for entry in self.entries.values() if entry is not None]
        return any(entry.mode == "borrowed" or entry.spare is not None for entry in entries)

    def value(self, w: F64) -> float:
        """Return the stand-ins' summed loss at ``w`` without ``theta`` times the present's."""
        return sum(entry.own(w).loss for entry in self.entries.values() if entry is not None)

    def slope(self, w: F64) -> F64:
        """Return the gradient of :meth:`value`, shape (n_model,); do not modify it."""
        gradient = self.gradient
        for entry in self._bent():
            assert entry.curvature is not None
            gradient = gradient + entry.curvature.times(w - entry.w)
        return gradient

    # --- the one estimated function: f^ -----------------------------------------------------------

    def total(self, sums: Sums, w: F64) -> Sums:
        """Return loss, gradient and weight of all examples at ``w``, estimated for the absent.

        Parameters
        ----------
        sums : Sums
            Sums of the present examples at ``w``.
        w : ndarray (n_model,)

        Returns
        -------
        Sums
            The estimated objective without the penalty.
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
            Summed losses of the present examples along the ray, and their derivatives.
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
        """Return the summed Hessian times ``v``, given the present's product; new, (n_model,)."""
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

    # --- membership of the queue ------------------------------------------------------------------

    def push(self, group: GroupId, entry: StandIn | None) -> None:
        """Add a group: lines 14 and 15 of Algorithm 2."""
        self.entries[group] = entry
        self._sum()

    def has_returned(self, absent: Collection[GroupId]) -> bool:
        """Whether a group of the queue is in the sum again, given its ``Outcome.absent``."""
        return any(group not in absent for group in self.entries)

    def drop_returned(self, absent: Collection[GroupId]) -> list[StandIn | None]:
        """Remove the groups that are in the sum again, and return their entries: line 21.

        Parameters
        ----------
        absent : collection of GroupId
            ``Outcome.absent`` of the exchange whose sum is used from now on.
        """
        back = [group for group in self.entries if group not in absent]
        dropped = [self.entries.pop(group) for group in back]
        if dropped:
            self._sum()
        return dropped

    def carry(self, w: F64, old: Sums, new: Sums) -> None:
        """Re-anchor borrowed curvature after a change of the set of present examples.

        Each such entry keeps its contribution at ``w`` and takes its curvature from the examples
        present now. Otherwise a second loss would leave the first one's stand-in with the
        curvature of lost examples.

        Parameters
        ----------
        w : ndarray (n_model,)
            A point where both sums are known.
        old, new : Sums
            Sums of the examples present before and after the change.
        """
        changed = False
        for group, entry in self.entries.items():
            if entry is not None and entry.mode == "borrowed":
                self.entries[group] = entry.borrowing(w, entry.at(w, old), new)
                changed = True
            elif entry is not None and entry.spare is not None:
                spare = entry.spare.borrowing(w, entry.spare.at(w, old), new)
                self.entries[group] = replace(entry, spare=spare)
        if changed:
            self._sum()

    def swap(self, changed: dict[GroupId, StandIn]) -> None:
        """Replace the stand-ins of these groups."""
        self.entries.update(changed)
        self._sum()

    def _sum(self) -> None:
        """Recompute the totals: subtracting an entry would leave its rounding errors behind."""
        self.gradient = np.zeros_like(self.gradient)
        self.weight = self.theta = 0.0
        for entry in self.entries.values():
            if entry is not None:
                self.gradient += entry.sums.gradient
                self.weight += entry.sums.weight
                self.theta += entry.theta
