"""The simplest ``Parallel``, one thread, the caller's; and how work is cut for several."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from elasticml.data.chunk import Chunk


class Serial:
    """Maps in the calling thread, for simulators, tests and members with one thread."""

    n_threads: int = 1

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply ``function`` to every item in turn."""
        return [function(item) for item in items]


def runs(chunks: Sequence[Chunk], n_runs: int) -> list[Sequence[Chunk]]:
    """Cut the chunks into at most ``n_runs`` consecutive runs of about equal rows."""
    ends = np.cumsum([chunk.n_rows for chunk in chunks])
    if not len(ends) or n_runs <= 1:
        return [chunks] if len(ends) else []
    shares = ends[-1] * np.arange(1, n_runs) / n_runs
    cuts = sorted({0, len(chunks), *np.searchsorted(ends, shares, side="left").tolist()})
    return [chunks[low:high] for low, high in itertools.pairwise(cuts)]
