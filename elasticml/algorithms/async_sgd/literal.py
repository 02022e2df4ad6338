"""The asynchronous SGD paper's update and merge, word for word, on one array of a state.

``w <- w - eps ([w - (w + w_j)/2] delta(i, j) + Delta)``, equations (1) to (4), where the filter
``delta`` asks whether the own step brings w nearer to the peer's state. What was sent as rows is
compared and merged on these rows only. Several messages are merged side by side, each with the
state before the step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Arrays

F64 = NDArray[np.float64]

#: Arrays beside the state's own: w before its last step, and that after it, before any merge.
BEFORE = "before"
PROJECTED = "projected"


def begin(w: F64) -> Arrays:
    """Return the arrays beside ``w``; before the first step no message is accepted."""
    return {BEFORE: w.copy(), PROJECTED: w.copy()}


def take(state: Arrays, name: str, step: F64) -> None:
    """Take ``w <- w - step``, where ``step`` is ``eps Delta``, and remember both ends of it."""
    state[BEFORE][...] = state[name]
    state[name] -= step
    state[PROJECTED][...] = state[name]


def accepts(before: F64, projected: F64, other: F64) -> bool:
    """Say whether ``|(w - eps Delta) - w_j|^2 < |w - w_j|^2``: the Parzen window (2)."""
    after, now = (projected - other).ravel(), (before - other).ravel()
    return float(after @ after) < float(now @ now)


def merge(
    state: Arrays, name: str, other: F64, rows: NDArray[np.int64] | None, rate: float
) -> bool:
    """Merge a peer's state, equations (3) and (4), where the filter lets it through."""
    at = slice(None) if rows is None else rows
    before = state[BEFORE][at]
    if not accepts(before, state[PROJECTED][at], other):
        return False
    state[name][at] -= 0.5 * rate * (before - other)
    return True
