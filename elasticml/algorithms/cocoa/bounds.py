"""The driver's half of the bound: what absent examples lose at most, at any model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.bins import Plan

F64 = NDArray[np.float64]


def trivial_bound(
    loss: str, weight: float, v: F64, row_norm_max: float, target_max: float = 0.0
) -> float:
    """Bound the loss of examples of which only the weight and the longest row are known."""
    raise NotImplementedError


class FrozenLoss:
    """Upper bound of the loss of absent examples, from their statistics at ``v0``."""

    def __init__(
        self,
        plan: Plan,
        v0: F64,
        absent: Mapping[str, F64],
        whole: Mapping[str, F64],
        row_norm_max: float,
        down: Callable[[F64], F64] = lambda v: v,
    ) -> None:
        """Take the absent examples' own statistics and those of everybody at the same exchange.

        Parameters
        ----------
        absent, whole : mapping of ndarray
            Shapes as ``plan.shapes``; ``absent`` may be a signed sum of kept partials, whose
            rounding is measured against ``whole``.
        down : callable
            From a model (d,) to what is sent (n_sent,); linear.
        """
        raise NotImplementedError

    def upper(self, v: F64) -> float:
        """Return a number that ``sum_i s_i loss_i(v)`` over the absent examples does not exceed."""
        raise NotImplementedError
