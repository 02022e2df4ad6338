"""Certificates of suboptimality, and the best of them so far.

The primal objective at *any* model and the dual objective at *any* feasible dual variables enclose
the optimum; they need not come from the same iterate. The lowest primal and the highest dual
objective certified so far therefore give a gap that never grows, and stays valid when examples
vanish or iterates are rebuilt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

#: For a loss with a kink: weight of the model before the last pass in the certified model.
SMOOTHING: Final = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Primal and dual objective, in the mean form with the penalty."""

    primal: float
    dual: float
    #: Model of the primal objective, in trained coordinates.
    v: F64
    #: The primal objective is an upper bound because examples were absent.
    is_bound: bool = False

    @property
    def gap(self) -> float:
        """The duality gap; negative rounding errors are set to zero."""
        return max(self.primal - self.dual, 0.0)

    @property
    def is_exact_as_can_be(self) -> bool:
        """Whether the remaining gap is rounding error."""
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
        """Return the history columns."""
        return {"primal": self.primal, "dual": self.dual}


def smoothed(loss: str, v: F64, before: F64 | None) -> F64:
    """Return the model at which to take the primal objective: any is valid, some are better.

    Margins near the kink of the hinge loss oscillate around it from pass to pass. The mean of two
    models is as good as the model of one or two passes later. For other losses the last is best.

    Parameters
    ----------
    v, before : ndarray (D,)
        The models after and before the last pass; ``before`` is None where it is not known.
    """
    if loss != "hinge" or before is None:
        return v
    return (1.0 - SMOOTHING) * v + SMOOTHING * before
