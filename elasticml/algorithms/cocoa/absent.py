"""Absent examples whose dual variables are frozen, and an upper bound of their loss.

With ``absent: freeze`` the model keeps the contribution of vanished examples from the last
certificate that they took part in. The dual objective stays exact. Their loss at the current model
is bounded by the statistics kept with that certificate. If no member has those any more, it is
bounded by the longest row, and their dual variables are zero from then on.

Source: our study of both CoCoA papers; neither continues without examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Anchor, Arrays, Outcome
from elasticml.algorithms.cocoa.bins import Plan
from elasticml.algorithms.cocoa.bounds import FrozenLoss, trivial_bound
from elasticml.algorithms.scaling import Columns
from elasticml.terms import ExchangeId, GroupId

F64 = NDArray[np.float64]
#: Certificates whose sums are kept, as many as members keep.
KEPT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds for all rows and targets."""

    #: (2,), see :func:`elasticml.algorithms.cocoa.statistics.row_maxima`.
    rows: F64
    target: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenGroup:
    """The contribution of one absent group."""

    #: ``sum s_i (-loss*)`` of its frozen dual variables.
    dual: float
    #: ``sum s_i alpha_i x_i`` in sent coordinates; None if the dual variables are zero.
    image: F64 | None
    weight: float | None
    #: None if only the longest row is known.
    loss: FrozenLoss | None


#: The contribution of a group of which no member has kept anything.
UNKNOWN_GROUP: Final = FrozenGroup(dual=0.0, image=None, weight=None, loss=None)


@dataclass(slots=True, kw_only=True)
class Frozens:
    """All absent groups by id, as the outcomes report them."""

    loss: str
    columns: Columns
    #: None if the job waits for absent examples.
    plan: Plan | None
    limits: Limits | None = None
    groups: dict[GroupId, FrozenGroup] = field(default_factory=dict)
    #: Model and sums of the last certificates.
    kept: dict[ExchangeId, tuple[F64, Arrays]] = field(default_factory=dict)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Statistics that certificates must return."""
        return {} if self.plan is None else self.plan.shapes

    def keep(self, exchange: ExchangeId, v: F64, arrays: Arrays) -> None:
        """Store a certificate's model and sums."""
        if self.plan is not None:
            self.kept[exchange] = (v, arrays)
            for old in sorted(self.kept)[:-KEPT]:
                del self.kept[old]

    def note(self, outcome: Outcome) -> bool:
        """Update the absent groups from an outcome; return whether they have changed."""
        before = set(self.groups)
        for group in before - set(outcome.absent):
            del self.groups[group]
        for group in outcome.absent:
            self.groups.setdefault(group, UNKNOWN_GROUP)
        if outcome.opened is not None:
            self.groups[outcome.opened] = self._frozen(outcome.anchor)
        return set(self.groups) != before

    def _frozen(self, anchor: Anchor | None) -> FrozenGroup:
        if self.plan is None or anchor is None or anchor.exchange not in self.kept:
            return UNKNOWN_GROUP
        assert self.limits is not None
        v0, whole = self.kept[anchor.exchange]
        names = self.plan.shapes
        return FrozenGroup(
            dual=float(anchor.arrays["dual"]),
            image=np.array(anchor.arrays["image"]),
            weight=float(anchor.arrays["weight"]),
            loss=FrozenLoss(
                self.plan,
                v0,
                {name: anchor.arrays[name] for name in names},
                {name: whole[name] for name in names},
                self.limits.rows,
                self.columns.down,
            ),
        )

    def dual(self) -> float:
        """Return the sum of ``s_i (-loss*)`` over all absent examples."""
        return sum(frozen.dual for frozen in self.groups.values())

    def add_image(self, image: F64) -> F64:
        """Return ``image`` plus that of the absent examples."""
        total = image.copy()
        for frozen in self.groups.values():
            if frozen.image is not None:
                total += frozen.image
        return total

    def upper(self, v: F64, weight: float) -> float:
        """Bound the sum of the absent examples' losses at a model.

        Parameters
        ----------
        v : ndarray (D,)
            Model in trained coordinates.
        weight : float
            Total weight of the absent examples.
        """
        total, bounded_weight = 0.0, 0.0
        for frozen in self.groups.values():
            if frozen.loss is not None and frozen.weight is not None:
                total += frozen.loss.upper(v)
                bounded_weight += frozen.weight
        remaining = weight - bounded_weight
        if any(frozen.loss is None for frozen in self.groups.values()):
            assert self.limits is not None
            total += trivial_bound(
                self.loss, max(remaining, 0.0), v, float(self.limits.rows[0]), self.limits.target
            )
        return total
