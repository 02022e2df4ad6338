"""``mode: paper``: the asynchronous SGD paper's update and merge as printed, for both problems.

``w <- w - eps ([w - (w + w_j)/2] delta(i, j) + Delta)``, equations (1) to (4). The filter
``delta`` (Parzen window) tests whether the member's own step brings w closer to the peer's state.
If a message holds rows only, these rows are compared and merged. Several messages are merged
independently, each against the state before the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import (
    Arrays,
    Batch,
    LoopRules,
    Mail,
    picked,
    rows_to_send,
    summed,
)
from elasticml.algorithms.async_sgd.kmeans import KMeans, checked_centres, inertia
from elasticml.algorithms.async_sgd.linear import Linear
from elasticml.algorithms.async_sgd.nearest_centres import statistics_of
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk

#: Default of ``eps``, the constant rate.
RATE: Final = 0.05
#: A full send queue blocks, and a controller follows the network only.
PAPER_LOOP: Final = LoopRules(keeps_newest=False, fixed_share=None)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperKMeans:
    """``mode: paper``: each example in turn moves its centre by ``eps`` of the way.

    The n examples of a mini-batch that are nearest to centre k move it by
    ``(1 - (1 - eps)^n) (mean - w_k)``, the effect of n single steps towards their mean. So the
    result does not depend on the size of mini-batches, and no rate up to 1 diverges, while the sum
    over a mini-batch would. Equation (6) as printed, ``x - w``, is the descent direction, not the
    gradient; with line 7 of Algorithm 2 it would move away from the data. Its sign is reversed
    here.
    """

    clusters: int
    columns: int
    rate: float = RATE
    #: Share of the centres in a message, drawn at random, above 0 and at most 1.
    share: float = 1.0

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See :class:`elasticml.algorithms.async_sgd.base.Problem`, here and below."""
        return {"centres": (self.clusters, self.columns)}

    def begin(self, arrays: Mapping[str, F64]) -> Arrays:
        """Start from ``centres``."""
        centres = checked_centres(arrays, self.clusters, self.columns)
        return {"centres": centres, **parzen_state(centres)}

    def step(self, state: Arrays, batch: Batch) -> None:
        """Move the centres of the batch's examples."""
        centres = state["centres"]
        statistics = statistics_of(centres, batch.parts, distances=False)
        counts = statistics.counts
        means = statistics.sums / np.maximum(counts, np.finfo(np.float64).tiny)[:, None]
        moved = -np.expm1(counts * np.log1p(-self.rate)) if self.rate < 1.0 else 1.0
        share = np.where(counts > 0.0, moved, 0.0)
        parzen_step(state, "centres", share[:, None] * (centres - means))

    def merge(self, state: Arrays, mail: Mail) -> bool:
        """Merge with weight ``eps/2`` if the Parzen window accepts the message."""
        return parzen_merge(state, "centres", mail.arrays["centres"], mail.rows, self.rate)

    def message(self, state: Arrays, chance: np.random.Generator) -> Mail:
        """Copy all centres, or a random share of them."""
        rows = rows_to_send(self.clusters, self.share, chance)
        return picked({"centres": state["centres"]}, rows)

    def mean(self, states: Sequence[Mapping[str, F64]]) -> Arrays:
        """Average the centres."""
        return self.pooled(summed(self, states), len(states))

    def addends(self, state: Mapping[str, F64]) -> Arrays:
        """Return the centres."""
        return {"centres": state["centres"].copy()}

    def pooled(self, total: Mapping[str, F64], members: int) -> Arrays:
        """Divide by the number of members."""
        centres = total["centres"] / members
        return {"centres": centres, **parzen_state(centres)}

    def value(self, state: Mapping[str, F64], chunks: Sequence[Chunk]) -> float:
        """Return the weighted sum of squared distances to the nearest centres."""
        return inertia(state["centres"], chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperLinear:
    """``mode: paper``: steps of a constant rate, and no average over them."""

    #: Gives the gradient and the objective.
    linear: Linear
    rate: float = RATE

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See :class:`elasticml.algorithms.async_sgd.base.Problem`, here and below."""
        return {"coef": (self.linear.n_model,)}

    def begin(self, arrays: Mapping[str, F64]) -> Arrays:
        """Start from ``coef``, by default zero."""
        coef = self.linear.first_coef(arrays)
        return {"coef": coef, **parzen_state(coef)}

    def step(self, state: Arrays, batch: Batch) -> None:
        """Take one step along the mini-batch's mean gradient."""
        if batch.size > 0:
            columns = self.linear.columns_of(state)
            gradient = self.linear.gradient(state["coef"], batch, columns)
            parzen_step(state, "coef", self.rate * gradient)

    def merge(self, state: Arrays, mail: Mail) -> bool:
        """Merge with weight ``eps/2`` if the Parzen window accepts the message."""
        return parzen_merge(state, "coef", mail.arrays["coef"], mail.rows, self.rate)

    def message(self, state: Arrays, chance: np.random.Generator) -> Mail:
        """Copy the model."""
        return Mail(arrays=self.addends(state))

    def mean(self, states: Sequence[Mapping[str, F64]]) -> Arrays:
        """Average the models."""
        return self.pooled(summed(self, states), len(states))

    def addends(self, state: Mapping[str, F64]) -> Arrays:
        """Return the model."""
        return {"coef": state["coef"].copy()}

    def pooled(self, total: Mapping[str, F64], members: int) -> Arrays:
        """Divide by the number of members; non-finite values are allowed."""
        coef = total["coef"] / members
        return {"coef": coef, **parzen_state(coef)}

    def value(self, state: Mapping[str, F64], chunks: Sequence[Chunk]) -> float:
        """Return the weighted sum of loss plus penalty."""
        return self.linear.value(state, chunks)


def as_printed(problem: KMeans | Linear, rate: float | None) -> PaperKMeans | PaperLinear:
    """Return a problem with the paper's steps and merges; by default with its rate."""
    rate = RATE if rate is None else rate
    if isinstance(problem, Linear):
        return PaperLinear(linear=problem, rate=rate)
    return PaperKMeans(
        clusters=problem.clusters, columns=problem.columns, rate=rate, share=problem.share
    )
