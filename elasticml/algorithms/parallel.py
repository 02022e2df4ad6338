"""The simplest ``Parallel``, one thread, the caller's; and how work is cut for several."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from elasticml.algorithms.base import Parallel
from elasticml.data.chunk import Chunk


class Serial:
    """Maps in the calling thread, for simulators, tests and members with one thread."""

    n_threads: int = 1

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply ``function`` to every item in turn."""
        return [function(item) for item in items]


class InPieces:
    """Has work cut into the same pieces whatever the threads, so that sums have the same bits.

    Parameters
    ----------
    parallel : Parallel
        Its threads take the pieces.
    n_pieces : int
        What ``n_threads`` is to those who cut the work.
    """

    def __init__(self, parallel: Parallel, n_pieces: int = 16) -> None:
        self.n_threads = n_pieces
        self._parallel = parallel

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply ``function`` to every item; each thread takes consecutive ones."""
        n = min(self._parallel.n_threads, len(items))
        ends = [len(items) * k // n for k in range(n + 1)] if n else [0]
        groups = [items[low:high] for low, high in itertools.pairwise(ends)]
        done = self._parallel.map(lambda some: [function(item) for item in some], groups)
        return list(itertools.chain.from_iterable(done))


def runs(chunks: Sequence[Chunk], n_runs: int) -> list[Sequence[Chunk]]:
    """Cut the chunks into at most ``n_runs`` consecutive runs of about equal rows."""
    ends = np.cumsum([chunk.n_rows for chunk in chunks])
    if not len(ends) or n_runs <= 1:
        return [chunks] if len(ends) else []
    shares = ends[-1] * np.arange(1, n_runs) / n_runs
    cuts = sorted({0, len(chunks), *np.searchsorted(ends, shares, side="left").tolist()})
    return [chunks[low:high] for low, high in itertools.pairwise(cuts)]
