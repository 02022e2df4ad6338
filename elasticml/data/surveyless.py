"""What sources answer alike whose blocks mean the same whatever the others hold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from elasticml.data.chunk import Chunk
    from elasticml.data.source import BlockSummary, DataFacts


class Surveyless:
    """No vocabulary has to be gathered before the first block is read.

    For dataclasses with a field ``n_columns``: the columns of the training data, None for a
    source's own.
    """

    __slots__ = ()

    @property
    def needs_survey(self) -> bool:
        """Whether blocks must be surveyed first: never."""
        return False

    @property
    def is_costly(self) -> bool:
        """Whether parsed blocks are worth a cache: not what is drawn, or in memory."""
        return False

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read one block; see :class:`elasticml.data.source.Source`."""
        raise NotImplementedError

    def survey(self, block: int) -> BlockSummary:
        """Summarise a block as reading it does; nobody needs to."""
        return self.read(block, None, 1)[1]

    def with_facts(self, facts: DataFacts) -> Self:
        """Read test data with the columns of the training data."""
        return self.with_columns(facts.n_columns)

    def with_columns(self, n_columns: int) -> Self:
        """Read with so many columns; values in wider ones are dropped."""
        return cast(Self, replace(cast(Any, self), n_columns=n_columns))
