"""K-Means of the asynchronous SGD paper: a constant rate, and the Parzen window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Arrays, Batch, Mail
from elasticml.algorithms.async_sgd.kmeans import checked_centres, inertia
from elasticml.algorithms.async_sgd.literal import parzen_merge, parzen_state, parzen_step
from elasticml.algorithms.async_sgd.parts import picked, rows_to_send, summed
from elasticml.algorithms.async_sgd.statistics import nearest_of
from elasticml.data.chunk import Chunk

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteralKMeans:
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
    rate: float = 0.05
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
        statistics = nearest_of(centres, batch.parts).statistics(batch.parts)
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
