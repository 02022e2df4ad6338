"""Numbers of all chunks of a job, by block and then by ordinal, for tables with a row per chunk.

Found by one exchange before the first round, since only members know how many chunks a block has.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final

import numpy as np

from elasticml.algorithms.base import Arrays, Exchange, Outcome, Work
from elasticml.arrays import F64, I64
from elasticml.data.chunks.chunk import Chunk

#: The operation.
CHUNK_COUNTS: Final = "chunk_counts"


def number_chunks(n_blocks: int) -> Generator[Exchange, Outcome, F64]:
    """Return the number of each block's first chunk, then the number of chunks, (n_blocks + 1,)."""
    outcome = yield Exchange(
        operation=CHUNK_COUNTS,
        model={},
        returns={"chunks": (n_blocks,)},
        reduce="max",
        require="everybody",
    )
    return np.append(0.0, np.cumsum(outcome.arrays["chunks"]))


def chunk_counts(work: Work, chunks: Sequence[Chunk]) -> Arrays:
    """Return a member's share of the exchange: at least how many chunks each block has."""
    counts = np.zeros(work.returns["chunks"])
    for chunk in chunks:
        counts[chunk.id.block] = max(counts[chunk.id.block], chunk.id.ordinal + 1)
    return {"chunks": counts}


def numbers_of(starts: F64, chunks: Sequence[Chunk]) -> I64:
    """Return the numbers of chunks, (n,)."""
    return np.array([int(starts[c.id.block]) + c.id.ordinal for c in chunks], np.int64)
