"""Data from NumPy or SciPy arrays in the client's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, Self, get_args

from numpy.typing import ArrayLike

from elasticml.data.chunks.by_columns import COLUMNS, check_by, rows_by_columns
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.chunker import Rows
from elasticml.data.chunks.rows import (
    cut_rows,
    rows_digest,
    rows_nbytes,
    rows_of_arrays,
    slice_rows,
)
from elasticml.data.dataset_stats import BlockSummary, DatasetStats
from elasticml.data.readers.files import fingerprint
from elasticml.data.source import (
    BLOCK_BYTES,
    BlockInfo,
    HeldOut,
    Source,
    resolve_chunk_bytes,
    survey_all,
)
from elasticml.errors import ConfigError
from elasticml.ids import format_size
from elasticml.specification.settings_model import (
    Count,
    Dtype,
    Index,
    SettingsModel,
    read_settings,
    unknown_choice,
)

#: Arrays in memory are sent from the client through the scheduler; larger ones are refused.
IN_MEMORY_BYTES_MAX: Final = 2 * 2**30


def from_arrays(
    X: ArrayLike,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    dtype: Dtype = "float64",
    by: Literal["rows", "columns"] = "rows",
) -> ArraySource:
    """Return a source for arrays in memory.

    Parameters
    ----------
    X : array_like (n, d), or any SciPy sparse matrix or array
        Finite numbers.
    y : array_like (n,)
        Finite numbers.
    sample_weight : array_like (n,), optional
        Finite and not negative; 1 by default.
    dtype : "float64" or "float32"
        Type of the stored values.
    by : "rows" or "columns"
        Whether a chunk holds some of the examples, or, for ``PrimalCoCoA``, some features of all
        examples.

    Raises
    ------
    ConfigError
        When the arrays take more than 2 GiB, or columns are not float64.
    DataError
        When lengths differ or a value is not finite.

    Examples
    --------
    >>> source = em.from_arrays(X, y, sample_weight=np.ones(200))
    >>> em.Job(em.CoCoA(), source, stop=stop).run(client).summary["examples"]
    200
    """
    if dtype not in get_args(Dtype):
        raise unknown_choice(dtype, get_args(Dtype), "data.dtype")
    check_by(by, dtype)
    build_rows = rows_by_columns if by == COLUMNS else rows_of_arrays
    rows = build_rows(X, y, sample_weight, name="X")
    check_in_memory(rows_nbytes(rows, dtype), "arrays take")
    return ArraySource(rows=rows, dtype=dtype, name=rows_digest(rows, dtype), by=by)


def check_in_memory(nbytes: int, what: str) -> None:
    """Refuse more than can be sent with a job."""
    if nbytes > IN_MEMORY_BYTES_MAX:
        raise ConfigError(
            f"{what} {format_size(nbytes)}, at most {format_size(IN_MEMORY_BYTES_MAX)} can be "
            "sent with a job; write them to a shared path and name that",
            nbytes=nbytes,
        )


def not_here(what: str) -> ConfigError:
    """Return the error about data in the memory of another process."""
    return ConfigError(
        f"{what} in memory cannot be read again outside the client that created them; write them "
        "to a shared path and name that"
    )


class ArraysSpec(SettingsModel):
    """What the spec of arrays in memory says: they are sent with the job."""

    format: Literal["arrays"]
    fingerprint: str
    rows: Index
    columns: Index
    nbytes: Index
    dtype: Dtype = "float64"
    n_columns: Count | None = None
    by: Literal["rows", "columns"] = "rows"


def source_of(spec: Mapping[str, Any]) -> ArraySource:
    """Build a placeholder for arrays in memory: it lists its blocks, but cannot read them."""
    told = read_settings(ArraysSpec, spec, "data")
    return ArraySource(
        rows=None,
        shape=(told.rows, told.columns),
        nbytes=told.nbytes,
        dtype=told.dtype,
        name=told.fingerprint,
        n_columns=told.n_columns,
        by=told.by,
    )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ArraySource:
    """Arrays in memory, in blocks of rows of about 8 MiB; readable only in the client process."""

    #: None in a placeholder built from a spec.
    rows: Rows | None
    dtype: Dtype
    #: Digest of the arrays; part of the fingerprint.
    name: str
    shape: tuple[int, int] = (0, 0)
    nbytes: int = 0
    n_columns: int | None = None
    #: Whether the rows of chunks are examples ("rows") or features ("columns").
    by: Literal["rows", "columns"] = "rows"

    #: Blocks need no survey, and are not worth caching.
    needs_survey: ClassVar[bool] = False
    is_costly: ClassVar[bool] = False

    def __repr__(self) -> str:
        n_rows, columns, nbytes = self._sizes()
        size = f"{n_rows} rows, {columns} columns, {format_size(nbytes)}"
        return f"ArraySource({size}{', by columns' if self.by == COLUMNS else ''})"

    @property
    def is_in_memory(self) -> bool:
        """Whether the chunks must be sent with the job, as they cannot be read elsewhere."""
        return True

    def spec(self) -> dict[str, Any]:
        """Return shapes and digest in a JSON-able dict; the arrays are not included."""
        n_rows, columns, nbytes = self._sizes()
        return {
            "format": "arrays",
            "rows": n_rows,
            "columns": columns,
            "nbytes": nbytes,
            "fingerprint": self.name,
            "dtype": self.dtype,
            "n_columns": self.n_columns,
            # The spec determines chunk ids: data by rows keep the ids they had before this key.
            **({"by": self.by} if self.by == COLUMNS else {}),
        }

    def with_columns(self, n_columns: int) -> Self:
        """Return a source with ``n_columns`` columns; unchanged if by columns (then examples)."""
        return self if self.by == COLUMNS else replace(self, n_columns=n_columns)

    def with_stats(self, facts: DatasetStats) -> Self:
        """Return a source that reads test data with the columns of the training data."""
        return self.with_columns(facts.n_columns)

    def survey(self, block: int, held: HeldOut = None) -> BlockSummary:
        """Read and summarise a block; there is no need."""
        return self.read(block, None, 1)[1]

    def fingerprint(self) -> str:
        """Return 16 hex digits over the arrays and the options."""
        return fingerprint(self.spec())

    def blocks(self) -> list[BlockInfo]:
        """Return blocks, which are ranges of rows."""
        n_rows, columns, nbytes = self._sizes()
        step = self._rows_per_block()
        return [
            BlockInfo(
                index=i,
                nbytes=nbytes * min(step, n_rows - at) // n_rows,
                rows=min(step, n_rows - at),
                columns=columns,
            )
            for i, at in enumerate(range(0, n_rows, step))
        ]

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Partition one range of rows into chunks; raises ConfigError in a placeholder."""
        if self.rows is None:
            raise not_here("arrays")
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        start = block * self._rows_per_block()
        part = slice_rows(self.rows, start, start + self._rows_per_block())
        return cut_rows(part, self.n_columns, self.fingerprint(), block, size, self.dtype)

    def _sizes(self) -> tuple[int, int, int]:
        """Return the numbers of rows, columns and bytes."""
        if self.rows is None:
            return *self.shape, self.nbytes
        return len(self.rows.labels), self.rows.n_columns, rows_nbytes(self.rows, self.dtype)

    def _rows_per_block(self) -> int:
        n_rows, _, nbytes = self._sizes()
        return max(1, n_rows * BLOCK_BYTES // max(1, nbytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkBodies:
    """All chunks of arrays in memory: ids and bodies in the same order, and block summaries."""

    ids: tuple[str, ...]
    bodies: tuple[memoryview, ...]
    summaries: tuple[BlockSummary, ...]


def chunk_bodies(source: Source, chunk_bytes: int | None, n_members: int) -> ChunkBodies:
    """Partition all rows of a source in memory, after a survey if it needs one.

    Raises
    ------
    ConfigError
        When it is a placeholder, outside the client process.
    """
    ready = survey_all(source)
    size = resolve_chunk_bytes(ready, chunk_bytes, n_members)
    parts = [ready.read(block.index, size, n_members) for block in ready.blocks()]
    chunks = [chunk for part, _ in parts for chunk in part]
    return ChunkBodies(
        ids=tuple(str(chunk.id) for chunk in chunks),
        bodies=tuple(chunk.body for chunk in chunks),
        summaries=tuple(summary for _, summary in parts),
    )
