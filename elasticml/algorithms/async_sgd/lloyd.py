"""Lloyd's algorithm: the last passes of a free run, and the paper's baseline BATCH."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from elasticml.algorithms.async_sgd.seeding_ops import statistics_exchange
from elasticml.algorithms.base import Exchange, Outcome
from elasticml.arrays import F64


def lloyd(centres: F64, passes: int) -> Generator[Exchange, Outcome, dict[str, F64]]:
    """Run up to ``passes`` iterations of Lloyd's algorithm; they end when no centre moves.

    Yields exchanges, as :func:`elasticml.algorithms.async_sgd.seeding.start` does. Returns
    ``centres``, and the ``counts`` of examples nearest to each before its last move. A centre
    without examples stays. A pass is an iteration of BATCH; a free run may end with some passes.
    """
    counts = np.zeros(len(centres))
    for _ in range(passes):
        outcome = yield statistics_exchange(centres)
        counts, before = outcome.arrays["counts"], centres
        centres = moved(centres, outcome.arrays["sums"], counts)
        if np.array_equal(centres, before):
            break
    return {"centres": centres, "counts": counts}


def moved(centres: F64, sums: F64, counts: F64) -> F64:
    """Return the means (K, D) of the rows nearest to each centre; a centre without rows stays."""
    means = sums / np.where(counts > 0.0, counts, 1.0)[:, None]
    return np.where(counts[:, None] > 0.0, means, centres)
