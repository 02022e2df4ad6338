"""Data that are NumPy or SciPy arrays in the client's memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from numpy.typing import ArrayLike

from elasticml.data.by_columns import COLUMNS, check_by, rows_by_columns
from elasticml.data.chunk import Chunk, Dtype
from elasticml.data.cut import Rows
from elasticml.data.facts import BlockSummary
from elasticml.data.files import fingerprint
from elasticml.data.rows import cut_rows, rows_digest, rows_nbytes, rows_of_arrays, slice_rows
from elasticml.data.source import (
    BLOCK_BYTES,
    BlockInfo,
    check_dtype,
    check_keys,
    resolve_chunk_bytes,
)
from elasticml.data.surveyless import Surveyless
from elasticml.errors import ConfigError
from elasticml.terms import format_size

#: Arrays in memory travel from the client through the scheduler; above this they are refused.
IN_MEMORY_BYTES_MAX: Final = 2 * 2**30


def from_arrays(
    X: ArrayLike,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    dtype: Dtype = "float64",
    by: Literal["rows", "columns"] = "rows",
) -> ArraySource:
    """Make a source of arrays in memory.

    Parameters
    ----------
    X : array_like (n, d), or any SciPy sparse matrix or array
        Finite numbers.
    y : array_like (n,)
        Finite numbers.
    sample_weight : array_like (n,), optional
        Finite and not negative; one each where not given.
    dtype : "float64" or "float32"
        Of the stored values.
    by : "rows" or "columns"
        What chunks hold: some examples each, or, for ``PrimalCoCoA``, some features of all
        examples.

    Raises
    ------
    ConfigError
        When the arrays take more than 2 GiB, or columns are not float64.
    DataError
        When lengths differ or a value is not finite.
    """
    check_dtype(dtype)
    check_by(by, dtype)
    make = rows_by_columns if by == COLUMNS else rows_of_arrays
    rows = make(X, y, sample_weight, name="X")
    nbytes = rows_nbytes(rows, dtype)
    if nbytes > IN_MEMORY_BYTES_MAX:
        raise ConfigError(
            f"arrays take {format_size(nbytes)}, at most {format_size(IN_MEMORY_BYTES_MAX)} travel "
            "with a job; write them to a shared path and name that",
            nbytes=nbytes,
        )
    return ArraySource(rows=rows, dtype=dtype, name=rows_digest(rows, dtype), by=by)


def source_from_spec(spec: Mapping[str, Any]) -> ArraySource:
    """Make a stand-in for arrays in memory: it knows its blocks, but only its maker can read."""
    allowed = ("fingerprint", "rows", "columns", "nbytes", "dtype", "n_columns", "by")
    check_keys(spec, allowed, ("fingerprint", "rows", "columns", "nbytes"))
    return ArraySource(
        rows=None,
        shape=(int(spec["rows"]), int(spec["columns"])),
        nbytes=int(spec["nbytes"]),
        dtype=spec.get("dtype", "float64"),
        name=spec["fingerprint"],
        n_columns=spec.get("n_columns"),
        by=spec.get("by", "rows"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySource(Surveyless):
    """Arrays in memory, in blocks of rows of about 8 MiB; readable only where they were made."""

    #: None in a stand-in made from a spec.
    rows: Rows | None
    dtype: Dtype
    #: Digest of the arrays; a part of the fingerprint.
    name: str
    shape: tuple[int, int] = (0, 0)
    nbytes: int = 0
    n_columns: int | None = None
    #: What the rows of chunks are: examples, or with "columns" features.
    by: Literal["rows", "columns"] = "rows"

    @property
    def is_in_memory(self) -> bool:
        """Whether the chunks must be sent along: they cannot be read anywhere else."""
        return True

    def spec(self) -> dict[str, Any]:
        """Name shapes and digest, in a JSON-able dict; the arrays are not in it."""
        n_rows, columns, nbytes = self._sizes()
        return {
            "format": "arrays",
            "rows": n_rows,
            "columns": columns,
            "nbytes": nbytes,
            "fingerprint": self.name,
            "dtype": self.dtype,
            "n_columns": self.n_columns,
            # Chunks are named by this: data by rows are called as they ever were.
            **({"by": self.by} if self.by == COLUMNS else {}),
        }

    def with_columns(self, n_columns: int) -> Self:
        """Read with so many columns; by columns these are examples, of which none is dropped."""
        return self if self.by == COLUMNS else Surveyless.with_columns(self, n_columns)

    def fingerprint(self) -> str:
        """Return 16 hex digits over the arrays and the options."""
        return fingerprint(self.spec())

    def blocks(self) -> list[BlockInfo]:
        """List ranges of rows."""
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
        """Cut one range of rows into chunks; a ConfigError where the arrays are not."""
        if self.rows is None:
            raise ConfigError(
                "arrays in memory cannot be read again away from the client that made them; "
                "write them to a shared path and name that",
            )
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        start = block * self._rows_per_block()
        part = slice_rows(self.rows, start, start + self._rows_per_block())
        return cut_rows(part, self.n_columns, self.fingerprint(), block, size, self.dtype)

    def chunk_bodies(self, chunk_bytes: int | None, n_members: int) -> ChunkBodies:
        """Cut everything, to be sent along with a job.

        Raises
        ------
        ConfigError
            Away from the client that made the arrays.
        """
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        parts = [self.read(block.index, size, n_members) for block in self.blocks()]
        chunks = [chunk for some, _ in parts for chunk in some]
        return ChunkBodies(
            ids=tuple(str(chunk.id) for chunk in chunks),
            bodies=tuple(chunk.body for chunk in chunks),
            summaries=tuple(summary for _, summary in parts),
        )

    def _sizes(self) -> tuple[int, int, int]:
        """Rows, columns and bytes."""
        if self.rows is None:
            return *self.shape, self.nbytes
        return len(self.rows.labels), self.rows.n_columns, rows_nbytes(self.rows, self.dtype)

    def _rows_per_block(self) -> int:
        n_rows, _, nbytes = self._sizes()
        return max(1, n_rows * BLOCK_BYTES // max(1, nbytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkBodies:
    """All chunks of arrays in memory: ids and bodies in one order, and a summary of each block."""

    ids: tuple[str, ...]
    bodies: tuple[memoryview, ...]
    summaries: tuple[BlockSummary, ...]
