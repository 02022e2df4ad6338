"""The asynchronous SGD paper's update and merge, as printed, on one array of a state.

``w <- w - eps ([w - (w + w_j)/2] delta(i, j) + Delta)``, equations (1) to (4). The filter
``delta`` (Parzen window) tests whether the member's own step brings w closer to the peer's state.
If a message holds rows only, these rows are compared and merged. Several messages are merged
independently, each against the state before the step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Arrays

F64 = NDArray[np.float64]

#: Additional arrays of a state: w before its last step, and after it, before any merge.
BEFORE = "before"
PROJECTED = "projected"


def parzen_state(w: F64) -> Arrays:
    """Return the additional arrays for ``w``; before the first step no message is accepted."""
    return {BEFORE: w.copy(), PROJECTED: w.copy()}


def parzen_step(state: Arrays, name: str, step: F64) -> None:
    """Take ``w <- w - step``, where ``step`` is ``eps Delta``, and store w before and after it."""
    state[BEFORE][...] = state[name]
    state[name] -= step
    state[PROJECTED][...] = state[name]


def parzen_accepts(before: F64, projected: F64, other: F64) -> bool:
    """Return whether ``|(w - eps Delta) - w_j|^2 < |w - w_j|^2``: the Parzen window (2)."""
    after, now = (projected - other).ravel(), (before - other).ravel()
    return float(after @ after) < float(now @ now)


def parzen_merge(
    state: Arrays, name: str, other: F64, rows: NDArray[np.int64] | None, rate: float
) -> bool:
    """Merge a peer's state, equations (3) and (4), if the filter accepts it."""
    at = slice(None) if rows is None else rows
    before = state[BEFORE][at]
    if not parzen_accepts(before, state[PROJECTED][at], other):
        return False
    state[name][at] -= 0.5 * rate * (before - other)
    return True
