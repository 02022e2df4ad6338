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

from elasticml.algorithms.async_sgd.base import (
    Arrays,
    Batch,
    Mail,
    picked,
    rows_to_send,
)
from elasticml.algorithms.async_sgd.kmeans import KMeans
from elasticml.algorithms.async_sgd.linear import Linear
from elasticml.algorithms.async_sgd.nearest_centres import statistics_of
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk

#: Default of ``eps``, the constant rate.
RATE: Final = 0.05
#: Additional arrays of a state: w before its last step, and after it, before any merge.
BEFORE = "before"
PROJECTED = "projected"


def parzen_accepts(before: F64, projected: F64, other: F64) -> bool:
    """Return whether ``|(w - eps Delta) - w_j|^2 < |w - w_j|^2``: the Parzen window (2)."""
    after, now = (projected - other).ravel(), (before - other).ravel()
    return float(after @ after) < float(now @ now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """``mode: paper``: a problem with steps of a constant rate, and merges through the filter.

    A linear model steps along the mean gradient of the mini-batch, and has no average over its
    steps. In K-Means each example in turn moves its centre by ``eps`` of the way: the n examples of
    a mini-batch that are nearest to centre k move it by ``(1 - (1 - eps)^n) (mean - w_k)``, the
    effect of n single steps towards their mean. So the result does not depend on the size of
    mini-batches, and no rate up to 1 diverges, while the sum over a mini-batch would. Equation (6)
    as printed, ``x - w``, is the descent direction, not the gradient; with line 7 of Algorithm 2 it
    would move away from the data. Its sign is reversed here.
    """

    problem: KMeans | Linear
    rate: float = RATE

    @property
    def _name(self) -> str:
        return "coef" if isinstance(self.problem, Linear) else "centres"

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See :class:`elasticml.algorithms.async_sgd.base.Problem`, here and below."""
        return {self._name: self.problem.shapes()[self._name]}

    def begin(self, arrays: Mapping[str, F64]) -> Arrays:
        """Start as the problem does; before the first step no message is accepted."""
        return self._at(self.problem.begin(arrays)[self._name])

    def _at(self, w: F64) -> Arrays:
        return {self._name: w, BEFORE: w.copy(), PROJECTED: w.copy()}

    def step(self, state: Arrays, batch: Batch) -> None:
        """Take ``w <- w - step``, where ``step`` is ``eps Delta``, and store w before and after."""
        if not batch.size:
            return
        w = state[self._name]
        step = self._step(w, batch)
        state[BEFORE][...] = w
        w -= step
        state[PROJECTED][...] = w

    def _step(self, w: F64, batch: Batch) -> F64:
        if isinstance(self.problem, Linear):
            return self.rate * self.problem.gradient(w, batch, self.problem.columns_of({}))
        statistics = statistics_of(w, batch.parts, distances=False)
        counts = statistics.counts
        means = statistics.sums / np.maximum(counts, np.finfo(np.float64).tiny)[:, None]
        moved = -np.expm1(counts * np.log1p(-self.rate)) if self.rate < 1.0 else 1.0
        share: F64 = np.where(counts > 0.0, moved, 0.0)
        return share[:, None] * (w - means)

    def merge(self, state: Arrays, mail: Mail) -> bool:
        """Merge with weight ``eps/2``, equations (3) and (4), if the filter accepts the message."""
        at = slice(None) if mail.rows is None else mail.rows
        before, other = state[BEFORE][at], mail.arrays[self._name]
        if not parzen_accepts(before, state[PROJECTED][at], other):
            return False
        state[self._name][at] -= 0.5 * self.rate * (before - other)
        return True

    def message(self, state: Arrays, chance: np.random.Generator) -> Mail:
        """Copy the model, or a random share of the centres."""
        rows = None
        if isinstance(self.problem, KMeans):
            rows = rows_to_send(self.problem.clusters, self.problem.share, chance)
        return picked({self._name: state[self._name]}, rows)

    def addends(self, state: Mapping[str, F64]) -> Arrays:
        """Return the model."""
        return {self._name: state[self._name].copy()}

    def pooled(self, total: Mapping[str, F64], members: int) -> Arrays:
        """Divide by the number of members; non-finite values are allowed."""
        return self._at(total[self._name] / members)

    def value(self, state: Mapping[str, F64], chunks: Sequence[Chunk]) -> float:
        """Return the sum of the problem's objective."""
        return self.problem.value(state, chunks)
