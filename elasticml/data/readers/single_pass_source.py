"""Base class of sources that need no survey: each block can be read without knowing the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from elasticml.data.chunks.chunk import Chunk
    from elasticml.data.source import BlockSummary, DatasetStats


class SinglePassSource:
    """A source that is read in a single pass: it has no vocabulary to collect first.

    For dataclasses with a field ``n_columns``: the number of columns of the training data; None
    for the source's own.
    """

    __slots__ = ()

    @property
    def needs_survey(self) -> bool:
        """Whether blocks must be surveyed first: never."""
        return False

    @property
    def is_costly(self) -> bool:
        """Whether parsed blocks are worth caching: not if they are generated, or in memory."""
        return False

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read one block; see :class:`elasticml.data.source.Source`."""
        raise NotImplementedError

    def survey(self, block: int) -> BlockSummary:
        """Read and summarise a block; single-pass sources do not need it."""
        return self.read(block, None, 1)[1]

    def with_stats(self, facts: DatasetStats) -> Self:
        """Return a source that reads test data with the columns of the training data."""
        return self.with_columns(facts.n_columns)

    def with_columns(self, n_columns: int) -> Self:
        """Return a source with ``n_columns`` columns; values beyond them are dropped."""
        return cast(Self, replace(cast(Any, self), n_columns=n_columns))
