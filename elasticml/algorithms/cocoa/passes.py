"""The request for a local pass over a member's rows, its plan and its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.cocoa.tables import Piece

F64 = NDArray[np.float64]

#: Maximum slices of an epoch. More than 32 brought nothing on 120 million values and two threads,
#: and after each slice a thread finds half of its replica's lines in another core's cache.
SLICES_MAX: Final = 32
#: Minimum values per thread and slice for each coordinate to merge.
VALUES_PER_COORDINATE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The request for a pass over a member's rows."""

    #: ``l2 S``.
    l2_total: float
    #: S, the weight of all rows of all members.
    total_weight: float
    #: In (0, 1]: the share of the safe sigma' that is used.
    damping: float
    #: Visits to each row; a fraction visits a random share of the buckets.
    epochs: float
    #: The order depends only on these, the chunks and the number of threads.
    seed: int
    serial: int
    #: The members' fixed sigma', as in the papers; a member's threads multiply it by their number.
    sigma: float | None = None
    #: Above 0, the pass continues with this epoch, from another model than it ended with.
    start: int = 0

    def sigma_of(self, weight: float) -> float:
        """Return sigma' of a subproblem whose rows have this weight."""
        if self.sigma is not None:
            return self.sigma
        return max(1.0, self.damping * self.total_weight / weight)

    def turns(self) -> list[tuple[int, tuple[int, int, int], float]]:
        """Return each epoch's number, the key of its order, and its share of the rows."""
        return [
            (epoch, (self.seed, self.serial, self.start + epoch), min(1.0, self.epochs - epoch))
            for epoch in range(math.ceil(self.epochs))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The result of one pass over a member's rows."""

    #: (D,) ``1/(l2 S) sum s_i (change of a_i) x_i``, without the factor sigma'.
    dv: F64
    #: Sum of ``s_i`` times the change of ``-conj``.
    dual: float = 0.0
    #: ``1/2 sum s_i c (change of a_i)^2``, c the curvature of ``-conj`` where it is a parabola.
    curvature: float = 0.0
    #: Visited rows, without shrunk ones.
    visited: int = 0
    #: Stored values of these rows.
    stored: int = 0
    #: Parts of the rows that changed without seeing each other.
    partitions: int = 0
    #: Sum of the last epoch's rows' contributions to the duality gap, as they were visited; NaN:
    #: not known.
    gap: float = 0.0
    #: sigma' of the subproblem.
    sigma: float = 1.0
    #: The subproblem's objective has fallen, as it can when threads' steps are too long.
    is_loss: bool = False
    #: Passes of groups, or sub-epochs on a GPU, that were undone for that reason.
    discarded: int = 0
    #: Number of groups with rows, and the sum of their dampings.
    groups: int = 1
    dampings: float = 1.0

    def plus(self, other: Update) -> Update:
        """Add a later result in the same subproblem, which starts where this one ends."""
        return replace(
            other,
            dv=self.dv + other.dv,
            dual=self.dual + other.dual,
            curvature=self.curvature + other.curvature,
            visited=self.visited + other.visited,
            stored=self.stored + other.stored,
            partitions=max(self.partitions, other.partitions),
            discarded=self.discarded + other.discarded,
        )

    def plus_parallel(self, other: Update) -> Update:
        """Add the simultaneous result of another group, on other rows."""
        return replace(
            self.plus(other),
            gap=self.gap + other.gap,
            groups=self.groups + other.groups,
            dampings=self.dampings + other.dampings,
        )

    def undone(self) -> Update:
        """Return the result with its steps taken back: only the counts remain."""
        return replace(
            self,
            dv=np.zeros(self.dv.size),
            dual=0.0,
            curvature=0.0,
            is_loss=False,
            discarded=self.discarded + 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Constants of a pass."""

    #: With damping 1 in a scaled first pass.
    request: Pass
    #: Weight of the member's own rows.
    own_weight: float
    #: See :class:`elasticml.algorithms.cocoa.rests.Rests`.
    reach: float
    #: Parts of each slice, one per thread.
    n_parts: int
    #: Slices of an epoch; the threads' replicas are merged after each.
    n_slices: int
    #: A first pass, from zero, scaled to the rows seen so far.
    is_first: bool

    @property
    def whole(self) -> float:
        """The member's sigma', without the factor of its threads."""
        return self.request.sigma_of(self.own_weight)

    @property
    def learns(self) -> bool:
        """Whether the threads' factor adapts from slice to slice, except in a first pass."""
        return self.n_slices > 1 and self.request.sigma is None

    def sigma_of(self, weight: float, slice_weight: float) -> float:
        """Return sigma' of a part with this weight, of a slice with that weight."""
        if weight <= 0.0:
            return self.whole
        if self.is_first or self.request.sigma is not None:
            return self.whole * slice_weight / weight
        return self.request.sigma_of(weight)


def slices_worth(stored: float, size: int, values_per_thread: int) -> int:
    """Return how many merges of the threads' replicas per epoch pay.

    Parameters
    ----------
    stored : float
        Values that each thread visits.
    size : int
        Coordinates of the model.
    values_per_thread : int
        Values for which a thread pays; a slice has at least a quarter of them.
    """
    least = max(values_per_thread // 4, VALUES_PER_COORDINATE * size)
    return int(min(SLICES_MAX, stored // least))


class Ascent(Protocol):
    """Improves a member's dual variables, on any device: see ``LocalSolver``."""

    def bind(self, pieces: Sequence[Piece]) -> None:
        """Set the rows to work on; :meth:`run` changes their ``alpha``."""
        ...

    def run(self, v: F64, request: Pass, parallel: Parallel) -> Update:
        """Visit the rows in random order and update their dual variables in place."""
        ...

    def undo(self) -> None:
        """Forget the last run; the caller has restored its dual variables."""
        ...
