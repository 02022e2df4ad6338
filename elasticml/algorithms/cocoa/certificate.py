"""Certificates of suboptimality, and the best of those known so far.

The primal objective at *any* model and the dual objective at *any* feasible dual variables enclose
the optimum, whichever iterates they were taken at. So the lowest primal and the highest dual
objective ever certified belong together: their difference never grows, and stays valid when
examples vanish or iterates are rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

#: Share of the model before the last pass in the one that is certified of a loss with a kink.
SMOOTHING: Final = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Primal and dual objective, in the mean form with the penalty."""

    primal: float
    dual: float
    #: Model at which the primal objective was taken, in trained coordinates.
    v: F64
    #: The primal objective is an upper bound: examples were absent.
    is_bound: bool = False

    @property
    def gap(self) -> float:
        """The duality gap; rounding below zero is zero."""
        return max(self.primal - self.dual, 0.0)

    @property
    def is_exact_as_can_be(self) -> bool:
        """Whether what is left of the gap is rounding."""
        return self.gap <= 8.0 * float(np.finfo(np.float64).eps) * abs(self.primal)

    def better(self, other: Certificate) -> Certificate:
        """Return the lower primal objective of both, with its model, and the higher dual one."""
        lower = self if self.primal <= other.primal else other
        return Certificate(
            primal=lower.primal,
            dual=max(self.dual, other.dual),
            v=lower.v,
            is_bound=lower.is_bound,
        )

    def columns(self) -> Mapping[str, float]:
        """Return what the history shows of it."""
        return {"primal": self.primal, "dual": self.dual}


def smoothed(loss: str, v: F64, before: F64 | None) -> F64:
    """Return the model to take the primal objective at: any will do, and some are better.

    Margins near the kink of the hinge loss jump to and fro across it from pass to pass. A mean of
    two models is as good as the model of one or two passes later. Other losses' last model is best.

    Parameters
    ----------
    v, before : ndarray (D,)
        After and before the last pass; None where it is not known.
    """
    if loss != "hinge" or before is None:
        return v
    return (1.0 - SMOOTHING) * v + SMOOTHING * before
