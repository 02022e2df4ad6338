"""Block summaries that members report to the driver, and the chunks of in-memory sources."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from elasticml.collective.frames import Frame, Kind
from elasticml.data.dataset_stats import BlockSummary
from elasticml.ids import ChunkId

#: Bytes per column of a model: about twenty doubles at the driver (the model, its frame, partials,
#: the trainer's own vectors) besides the optimizer's memory; six at a member, and two for each of
#: its threads, which sum their products separately.
DRIVER_BYTES_PER_COLUMN, MEMBER_BYTES_PER_COLUMN, THREAD_BYTES_PER_COLUMN = 160, 48, 16


def columns_that_fit(
    driver_bytes: int, members: Iterable[tuple[int, int]], remembered: int = 0
) -> int:
    """Return the number of columns that a model may have.

    Parameters
    ----------
    driver_bytes : int
        Memory at the driver.
    members : iterable of (int, int)
        Memory, 0 for no limit, and threads of every member.
    remembered : int
        Bytes per column that the trainer keeps, see ``Algorithm.column_bytes``.
    """
    fitting = [driver_bytes // (DRIVER_BYTES_PER_COLUMN + remembered)]
    for nbytes, threads in members:
        if nbytes:
            fitting.append(nbytes // (MEMBER_BYTES_PER_COLUMN + THREAD_BYTES_PER_COLUMN * threads))
    return min(fitting)


class BlockRegistry:
    """Block summaries of a job, and the chunk bodies of an in-memory source.

    Parameters
    ----------
    bodies : mapping of int to list of (str, bytes-like)
        Chunk ids and bodies of an in-memory source, by block; empty for other sources.
    summaries : sequence of BlockSummary
        Summaries of an in-memory source's blocks.
    """

    def __init__(
        self, bodies: Mapping[int, list[tuple[str, Any]]], summaries: Sequence[BlockSummary]
    ) -> None:
        self._bodies = bodies
        self._summaries = {summary.block: summary for summary in summaries}

    def note(self, block: int, summary: Mapping[str, Any] | None) -> None:
        """Record a block's summary; None for blocks whose summary came with the job."""
        if summary is not None:
            read = self._summaries[block] = BlockSummary.from_json(summary)
            if read.block != block:
                raise ValueError(f"a summary of block {read.block} with block {block}")

    def summaries(self) -> list[BlockSummary]:
        """Return the summaries in the order of blocks."""
        return [self._summaries[block] for block in sorted(self._summaries)]

    def frames(
        self, blocks: Collection[int], only: Collection[ChunkId] | None = None
    ) -> Iterator[Frame]:
        """Yield the frames that carry an in-memory source's chunks to a member.

        Parameters
        ----------
        only : collection of ChunkId, optional
            The chunks to send; by default all chunks of the blocks.
        """
        selected = None if only is None else {str(id) for id in only}
        for block in sorted(blocks):
            for name, body in self._bodies.get(block, ()):
                if selected is None or name in selected:
                    payload = memoryview(body)
                    yield Frame(kind=Kind.CHUNK, prefix={"chunk": name}, payload=payload)

    def drop_bodies(self) -> None:
        """Release the chunk bodies: the job is over, only its results are kept."""
        self._bodies = {}
