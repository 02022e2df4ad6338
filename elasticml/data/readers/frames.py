"""Frames in the client's memory: pandas, polars, Arrow, and all others that export Arrow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow

from elasticml.data.chunks.rows import Rows, matrix_of
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.readers.arrays import MemorySource, check_in_memory
from elasticml.data.readers.tables import (
    ColumnType,
    Place,
    TableEncoder,
    TableFormat,
    append_columns,
    arrow_table,
    roles_of_vectors,
    type_of_arrow,
)
from elasticml.data.source import HeldOut, survey_all
from elasticml.errors import DataError

#: Rows that are copied at once to be digested.
_DIGESTED_ROWS: Final = 65_536


class FrameSource(MemorySource, TableFormat):
    """A frame in the client's memory. Made by :func:`from_frame`."""

    format = "frame"
    reader = "from_frame"
    given_again = "em.from_frame(frame, label=...)"

    path: str = "the frame"

    @property
    def needs_survey(self) -> bool:
        """Whether the encoding was not fitted yet; never in a placeholder."""
        return self.rows is not None and super().needs_survey

    def names_and_types(self) -> tuple[list[str], list[ColumnType]]:
        """Return the names and types of the columns."""
        schema = self.rows.schema
        return schema.names, [type_of_arrow(kind) for kind in schema.types]

    def rows_of(self, block: int) -> Iterator[Rows]:
        """Return the encoded rows of a block."""
        return self.encoded([self._part(block)], self.path)

    def survey(self, block: int, held: HeldOut = None) -> BlockSummary:
        """Return the statistics of one block on which the encoding depends."""
        return self.surveyed(block, [self._part(block)], self.path, held)

    def _part(self, block: int) -> tuple[Any, Place]:
        start, stop = self._range(block)
        return self.rows.slice(start, stop - start), lambda row: f"row {start + row}"


def from_frame(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    label: str | int | None = None,
    weight: str | int | None = None,
    **options: Any,
) -> FrameSource:
    """Return a source for a frame in memory: numbers, text, categories, dates, and gaps.

    Its columns are encoded as those of files are. ``em.from_pandas`` is another name.

    Parameters
    ----------
    X : pandas or polars DataFrame, Arrow table, or another frame with ``__arrow_c_stream__``
    y, sample_weight : series or array_like (n,), optional
        Labels and weights that are no columns of X.
    label, weight : str or int, optional
        Columns of X, by name, or by position from 0.
    **options
        How the columns become features: ``categorical``, ``ignore``, ``missing`` and the others of
        :func:`elasticml.read_parquet`.

    Raises
    ------
    ConfigError
        When the frame takes more than 2 GiB, or an option does not fit it.
    DataError
        When it is no table.

    Examples
    --------
    >>> import pyarrow as pa
    >>> frame = pa.table({"city": ["Rome", "Oslo"] * 100, "late": [1, 0] * 100})
    >>> source = em.from_frame(frame, label="late")
    >>> em.Job(em.CoCoA(), source, stop=stop).run(client).summary["examples"]
    200
    """
    table = arrow_table(X).replace_schema_metadata()
    roles, joined = roles_of_vectors((label, weight), (y, sample_weight), table.column_names)
    table = append_columns(table, joined, "the frame")
    if not table.num_rows:
        raise DataError("the frame holds no rows, wanted at least one")
    check_in_memory(table.nbytes, "the frame takes")
    made = _source(table, digest=_digest(table), label=roles[0], weight=roles[1], **options)
    made.roles()  # the roles must fit
    return made


from_pandas = from_frame


def _source(table: Any, **options: Any) -> FrameSource:
    return FrameSource(n_rows=table.num_rows, nbytes=table.nbytes, **options).of(table)


def encoded_frame(X: Any) -> tuple[Any, TableEncoder]:
    """Return a frame without labels as an array or CSR array (n, d), and its encoding.

    Raises
    ------
    DataError
        When it has missing values, or is no table.
    """
    table = arrow_table(X).replace_schema_metadata()
    label = "elasticml label"
    labelled = append_columns(table, {label: np.zeros(table.num_rows)}, "the frame")
    ready: Any = survey_all(_source(labelled, digest="", label=label))
    encoder = replace(ready.fitted_encoder(), label="")
    return matrix_of(encoder.features(table, "the frame", "row {}".format, {})), encoder


def _digest(table: Any) -> str:
    """Return a digest of the values and their types, 16 hex digits."""
    found = hashlib.blake2b(table.schema.serialize(), digest_size=8)
    for start in range(0, table.num_rows, _DIGESTED_ROWS):
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table.slice(start, _DIGESTED_ROWS))
        found.update(sink.getvalue())
    return found.hexdigest()
