"""Curvature estimates and bounds for stand-ins, and the choice of a stand-in from them.

While all members are present this costs one pass before the first step, for the majorant, and one
number in every gradient exchange, which measures how much the members' data differ. If they differ,
their Hessians are sketched from time to time: that is impossible once examples are lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from elasticml.algorithms.base import Arrays, Exchange
from elasticml.algorithms.batch_gradient import curvature_probes, stand_ins
from elasticml.algorithms.batch_gradient.curvature_probes import Probes, Sketch
from elasticml.algorithms.batch_gradient.stand_ins import LossBound, StandIn, Sums, difference
from elasticml.algorithms.scaling import Columns
from elasticml.arrays import F64
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.objectives.multiclass import multiclass_loss
from elasticml.specification.algorithms import BatchGradient

#: Above this rho the absent examples are too different to borrow the present ones' curvature.
ALIKE_MAX: Final = 0.3


def likeness(absent: F64, present: F64, ratio: float) -> float | None:
    """Return ``rho = |y_Q - ratio y_A| / |y_Q|``; None if ``y_Q`` is zero.

    Between two models, the gradients of similar sets of examples change alike, in proportion to
    their weights. The changes over all and over the present examples are known; the difference is
    the absent examples' change.

    Source: the study behind ``absent: auto``: with a9a, w8a and splice data dealt at random rho was
    0.015 to 0.22, sorted by label or by their first singular direction 0.34 to 3.7.

    Parameters
    ----------
    absent, present : ndarray, of one shape
        Changes of the summed gradients (or products of the summed Hessians) of the absent and the
        present examples.
    ratio : float
        Weight of the absent divided by that of the present.
    """
    size = float(np.linalg.norm(absent))
    if not (np.isfinite(size) and size > 0.0):
        return None
    return float(np.linalg.norm(absent - ratio * present)) / size


def scatter(change: F64, weight: float, members: float, paired_weight: float) -> float | None:
    """Return rho between the members, weighted root mean square, while none is absent.

    ``sum_p |y_p|^2 / n_p - |y_A|^2 / n_A`` is the weighted variance of ``y_p / n_p``: one number
    from each member suffices to measure how much they differ.

    Parameters
    ----------
    change : ndarray
        y_A, change of the sum over all members.
    weight : float
        n_A.
    members : float
        ``sum_p |y_p|^2 / n_p`` over members that knew their own earlier gradient.
    paired_weight : float
        Their weight. If it is not the weight of all, None is returned.
    """
    if not (0.0 < members < np.inf and paired_weight == weight):
        return None
    return float(np.sqrt(max(members - float(change @ change) / weight, 0.0) / members))


#: Maximum and minimum rank of a sketch.
RANK: Final = 32
RANK_MIN: Final = 4
#: Maximum bytes of a sketch's basis. A sketch needs a multiple of that: a member with t threads
#: holds the basis, t + 1 sums and the result, the driver about ten arrays of that size. This gives
#: full rank up to 131,072 columns and no sketch beyond 1,048,576.
BASIS_BYTES_MAX: Final = 2**25
#: Relative change of the model after which the Hessian is sketched again.
MOVED: Final = 0.1


#: Minimum rounds between two sketches, by optimizer: one round of TRON equals many of descent.
SKETCH_ROUNDS: Final[Mapping[str, int]] = {"gd": 20, "lbfgs": 5, "tron": 1, "newton": 1}


def curvatures_for(settings: BatchGradient, columns: Columns, *, bends: bool = True) -> Curvatures:
    """Return the initial, empty estimates of a job; for bounds only, unless stand-ins bend."""
    loss = MarginLoss(settings.loss, settings.terms)
    smoothness = (loss if columns.models == 1 else multiclass_loss(loss)).smoothness
    return Curvatures(
        columns=columns,
        smoothness=smoothness,
        sketch_rounds=SKETCH_ROUNDS[settings.chosen_optimizer],
        rank=rank_for(columns.n_model) if bends else 0,
        bends=bends,
    )


def rank_for(n_model: int) -> int:
    """Return the rank of the sketch for this model width; 0: no sketch."""
    rank = min(RANK, BASIS_BYTES_MAX // (8 * max(n_model, 1)))
    return rank if rank >= RANK_MIN else 0


@dataclass(slots=True, kw_only=True)
class Curvatures:
    """Estimates over exactly the present examples, and what earlier losses have shown."""

    columns: Columns
    #: Upper bound of the loss's second derivative; if it is infinite, there is no majorant.
    smoothness: float
    #: Minimum rounds between two sketches.
    sketch_rounds: int
    #: Rank of a sketch; 0: the model is too wide for one.
    rank: int
    #: Stand-ins begin with curvature; else they get some if the guard finds that they need it.
    bends: bool = True
    #: ``D >= X' S X`` of the present examples, (n_sent,); None if unknown.
    majorant: F64 | None = None
    #: Point and basis of the last sketch of the present examples' Hessian, and the sketch.
    probes: Probes | None = None
    sketch: Sketch | None = None
    #: rho between the members, measured by gradient exchanges.
    differ: float | None = None
    #: rho of the last loss.
    likeness: float | None = None
    #: Serial of the last gradient's point and its arrays, while the present examples are the same.
    _last: tuple[int, Arrays] | None = None
    #: Gradients at new points since the last sketch.
    _since: int = 0
    _serial: int = 0
    #: Probes of the pending survey.
    _asked: Probes | None = None
    _basis: F64 = field(default_factory=lambda: np.empty((0, 0)))

    # --- while examples come and go -----------------------------------------------------------

    def comparing(self, exchange: Exchange) -> Exchange:
        """Let members also compare their gradient with their own at the last point."""
        if self._last is None:
            return exchange
        return replace(
            exchange,
            returns={**exchange.returns, "scatter": (2,)},
            parameters={**exchange.parameters, "earlier": self._last[0]},
        )

    def evaluated(self, serial: int, arrays: Arrays) -> None:
        """Update the estimates from a gradient over the present examples."""
        if self._last is not None and self._last[0] != serial:
            self._since += 1
            if "scatter" in arrays:
                members, weight = np.asarray(arrays["scatter"]).tolist()
                change = np.asarray(arrays["gradient"]) - self._last[1]["gradient"]
                differ = scatter(change, float(arrays["weight"]), members, weight)
                self.differ = self.differ if differ is None else differ
        self._last = (serial, arrays)

    def returned(self, entry: StandIn | None) -> None:
        """Add a returned group to the present examples."""
        self._last = self.sketch = None
        proof = None if entry is None else entry.proof
        if proof is None or self.majorant is None:
            self.majorant = None
        else:
            self.majorant = self.majorant + proof.diagonal / self.smoothness

    def lost_unseen(self) -> None:
        """Drop estimates that include examples lost before their share was known."""
        self._last = self.sketch = self.majorant = None

    # --- before examples are lost -------------------------------------------------------------

    def due(self, w: F64, *, is_whole: bool) -> Exchange | None:
        """Return the survey that is due at ``w``, or None.

        If the members' data differ, the Hessian is sketched again after enough rounds if the model
        has moved, and at once after a return. A sketch's products span the basis of the next one.
        """
        wants_majorant = self.majorant is None and is_whole and math.isfinite(self.smoothness)
        probes = self._next_probes(w)
        if probes is None and not wants_majorant:
            return None
        self._asked = probes
        return curvature_probes.survey_exchange(
            self.columns, probes=probes, majorant=wants_majorant
        )

    def _next_probes(self, w: F64) -> Probes | None:
        if self.rank == 0 or self.differ is None or self.differ < ALIKE_MAX:
            return None
        if self.probes is not None and self.sketch is not None:
            moved = float(np.linalg.norm(w - self.probes.w))
            refines = self._serial == 1
            is_old = self._since >= self.sketch_rounds and moved > MOVED * np.linalg.norm(w)
            if not (refines or is_old):
                return None
        if self._basis.size == 0:
            self._basis = stand_ins.first_basis(w.size, self.rank)
        return Probes(serial=self._serial + 1, w=w, basis=self._basis)

    def surveyed(self, arrays: Arrays) -> None:
        """Store the result of a survey over exactly the present examples."""
        if "majorant" in arrays:
            self.majorant = np.asarray(arrays["majorant"])
        if "products" in arrays:
            assert self._asked is not None
            self.probes = self._asked
            self.sketch = curvature_probes.read_sketch(self.columns, arrays)
            self._serial, self._since = self.probes.serial, 0
            self._basis = stand_ins.orthonormal(self.sketch.products)

    # --- once examples have been lost -----------------------------------------------------------

    def questions(self, before: F64 | None, serial: int) -> Exchange | None:
        """Return the survey of the survivors that determines the lost share, or None if useless."""
        probes = None if self.sketch is None else self.probes
        if before is None and probes is None and self.majorant is None:
            return None
        return curvature_probes.survey_exchange(
            self.columns,
            w=before,
            point=serial,
            probes=probes,
            majorant=self.majorant is not None,
            correct=True,
        )

    def choose(
        self,
        w: F64,
        lost: Sums,
        present: Sums,
        changes: tuple[F64, F64] | None,
        arrays: Arrays,
        *,
        is_exact: bool,
    ) -> StandIn:
        """Return the stand-in of a lost group, and restrict the estimates to the survivors.

        Parameters
        ----------
        w : ndarray (n_model,)
            The point of ``lost`` and ``present``.
        lost, present : Sums
            Sums of the lost and of the surviving examples.
        changes : pair of ndarray (n_model,), optional
            Change of both gradients over the last step, the lost examples' first.
        arrays : mapping
            The survivors' answer to :meth:`questions`.
        is_exact : bool
            ``lost`` is not an estimate.
        """
        # With no survivors to compare with, rho would be 1 whatever the data.
        ratio = lost.weight / present.weight if present.weight > 0.0 else None
        rho = None if changes is None or ratio is None else likeness(*changes, ratio)
        curvature = None
        if "products" in arrays and self.sketch is not None and self.probes is not None:
            left = curvature_probes.read_sketch(self.columns, arrays)
            gone = self.sketch.minus(left)
            if rho is None and ratio is not None:
                rho = likeness(gone.products, left.products, ratio)
            curvature = gone.curvature(self.probes.basis)
            self.sketch = left
        else:
            self.sketch = None
        self.likeness = self.likeness if rho is None else rho
        proof = None
        if "majorant" in arrays and self.majorant is not None:
            left_majorant = np.asarray(arrays["majorant"])
            if is_exact:
                diagonal = self.smoothness * difference(self.majorant, left_majorant)
                proof = LossBound(w=w, loss=lost.loss, gradient=lost.gradient, diagonal=diagonal)
            self.majorant = left_majorant
        self._last = None
        taylor = StandIn(w=w, sums=lost, proof=proof)
        is_alike = self.bends and ratio is not None and self.seems_alike()
        if curvature is not None and not is_alike:
            return StandIn(w=w, sums=lost, mode="nystrom", curvature=curvature, proof=proof)
        # A stand-in without curvature is only safe where the guard has a bound to judge it by.
        borrowed = taylor.borrowing(w, lost, present)
        if is_alike or proof is None:
            return borrowed
        return replace(taylor, spare=borrowed)

    def seems_alike(self) -> bool:
        """Whether the absent examples seem similar to the present ones; true if unknown."""
        rho = self.differ if self.likeness is None else self.likeness
        return rho is None or rho < ALIKE_MAX
