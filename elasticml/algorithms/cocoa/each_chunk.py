"""Apply a function to each of a member's chunks, with as many threads as pay."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.parallel import runs
from elasticml.data.chunk import Chunk

_Result = TypeVar("_Result")

#: Numbers to process per thread for which waking it pays: about 0.2 ms.
NUMBERS_PER_THREAD: Final = 100_000


def map_chunks(
    function: Callable[[Chunk], _Result],
    chunks: Sequence[Chunk],
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

    def one(some: Sequence[Chunk]) -> list[Any]:
        return [function(chunk) for chunk in some]

    return list(itertools.chain.from_iterable(parallel.map(one, runs(chunks, n_threads))))
