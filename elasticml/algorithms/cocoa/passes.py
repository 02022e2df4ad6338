"""What a local pass is asked to do, and what it comes to."""

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

#: Most slices of an epoch. More than 32 brought nothing on 120 million values and two threads, and
#: after each one a thread finds half of its copy's lines in another core's cache.
SLICES_MAX: Final = 32
#: Values that a thread goes through in a slice for each coordinate that has to be merged.
VALUES_PER_COORDINATE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a pass over a member's rows is asked to do."""

    #: ``l2 S``.
    l2_total: float
    #: S, the weight of all rows of all members.
    total_weight: float
    #: In (0, 1]: the share of what is safe that sigma' follows from.
    damping: float
    #: How often each row has its turn; of a fraction, a random share of the buckets has one.
    epochs: float
    #: The order depends on these, the chunks and the number of threads alone.
    seed: int
    serial: int
    #: The members' sigma', as the papers fix it; a member's threads multiply it by their number.
    sigma: float | None = None
    #: Above 0, the pass goes on with this epoch, from another model than it ended with.
    start: int = 0

    def sigma_of(self, weight: float) -> float:
        """Return sigma' of a subproblem whose rows have so much weight."""
        if self.sigma is not None:
            return self.sigma
        return max(1.0, self.damping * self.total_weight / weight)

    def turns(self) -> list[tuple[int, tuple[int, int, int], float]]:
        """List the epochs: the number of each, what its order is drawn by, and its rows' share."""
        return [
            (epoch, (self.seed, self.serial, self.start + epoch), min(1.0, self.epochs - epoch))
            for epoch in range(math.ceil(self.epochs))
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one pass over a member's rows came to."""

    #: (D,) ``1/(l2 S) sum s_i (change of a_i) x_i``, without the factor sigma'.
    dv: F64
    #: Sum of ``s_i`` times the change of ``-conj``.
    dual: float = 0.0
    #: ``1/2 sum s_i c (change of a_i)^2``, c the curvature of ``-conj`` where it is a parabola.
    curvature: float = 0.0
    #: Rows looked at; those that rest are not counted.
    visited: int = 0
    #: Values read of these rows.
    stored: int = 0
    #: Parts of the rows that changed without seeing each other.
    partitions: int = 0
    #: What the rows of the last epoch added to the duality gap, each as it was met; NaN: not known.
    gap: float = 0.0
    #: sigma' of the subproblem.
    sigma: float = 1.0
    #: The subproblem's objective has fallen, which threads can bring about that are too bold.
    is_loss: bool = False
    #: Passes of groups, or sub-epochs of a GPU, that were undone for that reason.
    discarded: int = 0
    #: Groups that had rows, and the sum of their dampings.
    groups: int = 1
    dampings: float = 1.0

    def plus(self, other: Update) -> Update:
        """Add what was done later from where this ended, in the same subproblem."""
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

    def beside(self, other: Update) -> Update:
        """Add what another group did meanwhile, on other rows."""
        return replace(
            self.plus(other),
            gap=self.gap + other.gap,
            groups=self.groups + other.groups,
            dampings=self.dampings + other.dampings,
        )

    def undone(self) -> Update:
        """Return what is left when its steps are taken back: that rows were looked at."""
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
    """What holds throughout a pass."""

    #: Its damping is 1 where it begins from nothing.
    asked: Pass
    #: The weight of the member's own rows.
    own_weight: float
    #: See :class:`elasticml.algorithms.cocoa.rests.Rests`.
    reach: float
    #: Parts that each slice is dealt into, one a thread.
    n_parts: int
    #: Slices of an epoch, after each of which the threads' models are brought together.
    n_slices: int
    #: This pass begins from nothing.
    is_first: bool

    @property
    def whole(self) -> float:
        """The member's sigma', without that of its threads."""
        return self.asked.sigma_of(self.own_weight)

    @property
    def learns(self) -> bool:
        """Whether sigma' of the threads follows from how slices go, but for a first pass."""
        return self.n_slices > 1 and self.asked.sigma is None

    def sigma_of(self, weight: float, slice_weight: float) -> float:
        """Return sigma' for a part of so much weight, dealt from a slice of so much."""
        if weight <= 0.0:
            return self.whole
        if self.is_first or self.asked.sigma is not None:
            return self.whole * slice_weight / weight
        return self.asked.sigma_of(weight)


def slices_worth(stored: float, size: int, values_per_thread: int) -> int:
    """Return how often in an epoch bringing the threads' models together pays.

    Parameters
    ----------
    stored : float
        Values that each thread goes through.
    size : int
        Coordinates of the model.
    values_per_thread : int
        Values from which a thread pays; a slice has at least a quarter of them.
    """
    least = max(values_per_thread // 4, VALUES_PER_COORDINATE * size)
    return int(min(SLICES_MAX, stored // least))


class Ascent(Protocol):
    """Improves a member's dual variables, wherever it computes: see ``local.LocalSolver``."""

    def bind(self, pieces: Sequence[Piece]) -> None:
        """Take over the rows to work on; their ``alpha`` is changed by :meth:`run`."""
        ...

    def run(self, v: F64, asked: Pass, parallel: Parallel) -> Update:
        """Go through the rows in random order, changing their dual variables in place."""
        ...

    def undo(self) -> None:
        """Forget the last run, whose dual variables somebody has restored, and be more timid."""
        ...
