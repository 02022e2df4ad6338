"""The data at the driver: what members report of blocks, and chunks that only the driver has."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from elasticml.collective.frames import Frame, Kind
from elasticml.data.facts import BlockSummary, DataFacts, merge_summaries
from elasticml.data.source import Source


class Intake:
    """A job's source, and the facts about it as they become known.

    Parameters
    ----------
    source : Source
    bodies : mapping of int to list of (str, bytes-like)
        Chunk ids and bodies of an in-memory source, by block; empty for other sources.
    summaries : sequence of BlockSummary
        Of an in-memory source's blocks.
    """

    def __init__(
        self,
        source: Source,
        bodies: Mapping[int, list[tuple[str, Any]]],
        summaries: Sequence[BlockSummary],
    ) -> None:
        self.source = source
        #: None until every block has been read.
        self.facts: DataFacts | None = None
        self._bodies = bodies
        self._summaries = {summary.block: summary for summary in summaries}

    def note(self, summary: Mapping[str, Any] | None) -> None:
        """Take a block's summary in; None for blocks whose summary came with the job."""
        if summary is not None:
            read = BlockSummary.from_json(summary)
            self._summaries[read.block] = read

    def merge(self, survey: bool) -> DataFacts:
        """Merge all summaries; after a survey the source reads with what they say.

        Raises
        ------
        DataError
            When the blocks do not go together, or hold no rows.
        """
        facts = merge_summaries([self._summaries[b] for b in sorted(self._summaries)])
        if survey:
            self.source = self.source.with_facts(facts)
        else:
            self.facts = facts
        return facts

    def frames(self, blocks: Collection[int]) -> Iterator[Frame]:
        """Make the frames that carry an in-memory source's chunks to a member."""
        for block in sorted(blocks):
            for name, body in self._bodies.get(block, ()):
                yield Frame(kind=Kind.CHUNK, prefix={"chunk": name}, payload=memoryview(body))
