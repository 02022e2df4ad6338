"""What is done to each of a member's chunks by itself, by as many threads as that is worth."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.parallel import runs
from elasticml.data.chunk import Chunk

_Result = TypeVar("_Result")

#: Numbers that a thread has to go through before it pays to wake it up: some 0.2 ms.
NUMBERS_PER_THREAD: Final = 100_000


def each(
    function: Callable[[Chunk], _Result],
    chunks: Sequence[Chunk],
    numbers: int,
    parallel: Parallel,
) -> list[_Result]:
    """Call the function for every chunk; threads take runs of chunks with about as many rows.

    Parameters
    ----------
    numbers : int
        That all calls together go through: rows, or stored values.

    Returns
    -------
    list
        In the order of the chunks: what is made of it does not depend on the threads.
    """
    n_threads = max(1, min(parallel.n_threads, numbers // NUMBERS_PER_THREAD))

    def one(some: Sequence[Chunk]) -> list[Any]:
        return [function(chunk) for chunk in some]

    return list(itertools.chain.from_iterable(parallel.map(one, runs(chunks, n_threads))))
