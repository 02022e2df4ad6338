"""Data from NumPy or SciPy arrays in the client's memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, Self, get_args

from numpy.typing import ArrayLike
from pydantic import PrivateAttr

from elasticml.data.chunks.by_columns import COLUMNS, check_by, rows_by_columns
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.rows import (
    Rows,
    rows_digest,
    rows_nbytes,
    rows_of_arrays,
    slice_rows,
)
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.formats import Format
from elasticml.data.readers.files import fingerprint
from elasticml.data.source import (
    BLOCK_BYTES,
    BlockInfo,
    Source,
    resolve_chunk_bytes,
    survey_all,
)
from elasticml.errors import ConfigError
from elasticml.ids import format_size
from elasticml.specification.settings_model import (
    Dtype,
    Index,
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
    nbytes = rows_nbytes(rows, dtype)
    check_in_memory(nbytes, "arrays take")
    return ArraySource(
        n_rows=len(rows.labels),
        columns=rows.n_columns,
        nbytes=nbytes,
        digest=rows_digest(rows, dtype),
        dtype=dtype,
        by=by,
    ).of(rows)


def check_in_memory(nbytes: int, what: str) -> None:
    """Refuse more than can be sent with a job."""
    if nbytes > IN_MEMORY_BYTES_MAX:
        raise ConfigError(
            f"{what} {format_size(nbytes)}, at most {format_size(IN_MEMORY_BYTES_MAX)} can be "
            "sent with a job; write them to a shared path and name that"
        )


class MemorySource(Format):
    """Rows in the client's memory, in blocks of about 8 MiB; in other processes their numbers."""

    n_rows: Index
    nbytes: Index
    #: Digest of the values.
    digest: str
    #: What has the rows; None in other processes than the client's.
    _rows: Any = PrivateAttr(default=None)

    @property
    def is_in_memory(self) -> bool:
        """Whether the chunks must be sent with the job, as they cannot be read elsewhere."""
        return True

    @property
    def rows(self) -> Any:
        """The rows; None where they are not."""
        return self._rows

    def of(self, rows: Any) -> Self:
        """Return the source in the client, which has the rows."""
        made = self.model_copy()
        made._rows = rows
        return made

    def fingerprint(self) -> str:
        """Return 16 hex digits over the values and the options."""
        return fingerprint(self.options())

    def blocks(self) -> list[BlockInfo]:
        """Return blocks, which are ranges of rows."""
        step = self._step()
        sizes = [min(step, self.n_rows - at) for at in range(0, self.n_rows, step)]
        columns = getattr(self, "columns", None)
        return [
            BlockInfo(index=i, nbytes=self.nbytes * n // self.n_rows, rows=n, columns=columns)
            for i, n in enumerate(sizes)
        ]

    def _range(self, block: int) -> tuple[int, int]:
        """Return the first row of a block, and the one after its last.

        Raises
        ------
        ConfigError
            When the rows are in another process.
        """
        if self._rows is None:
            raise ConfigError(
                "rows in memory cannot be read again outside the client that has them; write them "
                "to a shared path and name that"
            )
        return block * self._step(), min((block + 1) * self._step(), self.n_rows)

    def _step(self) -> int:
        return max(1, self.n_rows * BLOCK_BYTES // max(1, self.nbytes))


class ArraySource(MemorySource):
    """Arrays in the client's memory. Made by :func:`from_arrays`."""

    format = "arrays"
    given_again = "em.from_arrays(X, y)"

    columns: Index
    #: Whether the rows of chunks are examples ("rows") or features ("columns").
    by: Literal["rows", "columns"] = "rows"

    def __repr__(self) -> str:
        size = f"{self.n_rows} rows, {self.columns} columns, {format_size(self.nbytes)}"
        return f"ArraySource({size}{', by columns' if self.by == COLUMNS else ''})"

    def with_columns(self, n_columns: int) -> Self:
        """Return a source with ``n_columns`` columns; unchanged if by columns (then examples)."""
        return self if self.by == COLUMNS else super().with_columns(n_columns)

    def rows_of(self, block: int) -> Iterator[Rows]:
        """Yield a range of rows."""
        start, stop = self._range(block)
        yield slice_rows(self.rows, start, stop)


def chunks_in_memory(
    source: Source, chunk_bytes: int | None, n_members: int
) -> tuple[list[Chunk], list[BlockSummary]]:
    """Partition all rows of a source in memory, after a survey if it needs one.

    Raises
    ------
    ConfigError
        When it is a placeholder, outside the client process.
    """
    ready = survey_all(source)
    size = resolve_chunk_bytes(ready, chunk_bytes, n_members)
    parts = [ready.read(block.index, size, n_members) for block in ready.blocks()]
    return [chunk for part, _ in parts for chunk in part], [summary for _, summary in parts]
