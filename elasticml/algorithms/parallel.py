"""``Parallel`` in the calling thread, and how work over chunks is cut for several threads."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from elasticml.algorithms.base import Parallel
from elasticml.arrays import F64


class Serial:
    """Runs everything in the calling thread, for simulators, tests and members with one thread."""

    n_threads: int = 1
    n_nodes: int = 1

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply ``function`` to every item in turn."""
        return [function(item) for item in items]

    def in_teams(self, function: Callable[[int, Parallel], Any], n: int) -> list[Any]:
        """Run one team after the other."""
        return [function(k, self) for k in range(n)]

    def close(self) -> None:
        """Do nothing: there are no threads to stop."""


class FixedPieces:
    """Splits work into a fixed number of pieces, so that sums do not depend on the threads.

    Parameters
    ----------
    parallel : Parallel
        Its threads compute the pieces.
    n_pieces : int
        Reported as ``n_threads`` to the code that splits the work.
    """

    def __init__(self, parallel: Parallel, n_pieces: int = 16) -> None:
        self.n_threads = n_pieces
        self._parallel = parallel

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply ``function`` to every item; each thread takes consecutive items."""
        n = min(self._parallel.n_threads, len(items))
        ends = [len(items) * k // n for k in range(n + 1)] if n else [0]
        groups = [items[low:high] for low, high in itertools.pairwise(ends)]
        results = self._parallel.map(lambda group: [function(item) for item in group], groups)
        return list(itertools.chain.from_iterable(results))

    @property
    def n_nodes(self) -> int:
        """Number of NUMA nodes that the threads span."""
        return self._parallel.n_nodes

    def in_teams(self, function: Callable[[int, Parallel], Any], n: int) -> list[Any]:
        """Divide the pieces among the teams like threads; a team's threads compute its pieces."""
        pieces = shares(self.n_threads, n)
        return self._parallel.in_teams(lambda k, team: function(k, FixedPieces(team, pieces[k])), n)


def shares(n_threads: int, n_teams: int) -> list[int]:
    """Divide threads among teams, at least one each."""
    return [
        max(1, n_threads * (k + 1) // n_teams - n_threads * k // n_teams) for k in range(n_teams)
    ]


class Rows(Protocol):
    """A chunk, or several."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        ...


_Rows = TypeVar("_Rows", bound=Rows)


def runs(chunks: Sequence[_Rows], n_runs: int) -> list[Sequence[_Rows]]:
    """Split the chunks into at most ``n_runs`` consecutive runs of about equal numbers of rows."""
    ends = np.cumsum([chunk.n_rows for chunk in chunks])
    if not len(ends) or n_runs <= 1:
        return [chunks] if len(ends) else []
    shares = ends[-1] * np.arange(1, n_runs) / n_runs
    cuts = sorted({0, len(chunks), *np.searchsorted(ends, shares, side="left").tolist()})
    return [chunks[low:high] for low, high in itertools.pairwise(cuts)]


def sums_of(parts: Sequence[Mapping[str, F64]]) -> dict[str, F64]:
    """Return the sums of the arrays of one or several parts, by name."""
    return {
        name: np.asarray(functools.reduce(np.add, [part[name] for part in parts]))
        for name in parts[0]
    }


_Result = TypeVar("_Result")

#: Numbers to process per thread for which waking it pays: about 0.2 ms.
NUMBERS_PER_THREAD: Final = 100_000


def map_chunks(
    function: Callable[[_Rows], _Result],
    chunks: Sequence[_Rows],
    numbers: int,
    parallel: Parallel,
) -> list[_Result]:
    """Call the function for every chunk; threads take consecutive chunks of similar total rows.

    Parameters
    ----------
    numbers : int
        Numbers that all calls together process: rows, or stored values.

    Returns
    -------
    list
        In the order of the chunks, so that results do not depend on the threads.
    """
    n_threads = max(1, min(parallel.n_threads, numbers // NUMBERS_PER_THREAD))

    def one(some: Sequence[_Rows]) -> list[Any]:
        return [function(chunk) for chunk in some]

    return list(itertools.chain.from_iterable(parallel.map(one, runs(chunks, n_threads))))
