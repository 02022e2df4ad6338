"""Frames in the client's memory: pandas, polars, Arrow, and all others that export Arrow."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow
from pydantic import PrivateAttr

from elasticml.data.chunks.chunker import Rows
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.readers.arrays import check_in_memory, not_here
from elasticml.data.readers.files import fingerprint
from elasticml.data.readers.table_encoding import (
    Place,
    TableColumns,
    TableEncoder,
    append_columns,
    arrow_table,
    matrix_of,
    resolve_columns,
    type_of_arrow,
)
from elasticml.data.readers.tables import TableFormat, roles_of_vectors
from elasticml.data.source import BLOCK_BYTES, BlockInfo, HeldOut, survey_all
from elasticml.errors import DataError
from elasticml.specification.settings_model import Index


class FrameSource(TableFormat):
    """Rows of a frame in the client's memory, in blocks of about 8 MiB."""

    format = "frame"
    reader = "from_frame"

    path: str = "the frame"
    n_rows: Index
    nbytes: Index
    #: Digest of the values.
    digest: str
    #: The Arrow table; None in a placeholder, which lists the blocks of rows that were sent.
    _table: Any = PrivateAttr(default=None)

    @property
    def is_in_memory(self) -> bool:
        """Whether the chunks must be sent with the job, as they cannot be read elsewhere."""
        return True

    @property
    def rows(self) -> Any:
        """The table; None in a placeholder."""
        return self._table

    @property
    def needs_survey(self) -> bool:
        """Whether the encoding was not fitted yet; never in a placeholder."""
        return self._table is not None and super().needs_survey

    def fingerprint(self) -> str:
        """Return 16 hex digits over the values and the options."""
        return fingerprint(self.options())

    def columns(self) -> TableColumns:
        """Return the roles and types of the columns."""
        schema = self._here().schema
        types = [type_of_arrow(kind) for kind in schema.types]
        return resolve_columns(schema.names, types, self, self.path)

    def blocks(self) -> list[BlockInfo]:
        """Return blocks, which are ranges of rows."""
        step = self._step()
        sizes = [min(step, self.n_rows - at) for at in range(0, self.n_rows, step)]
        return [
            BlockInfo(index=i, nbytes=self.nbytes * n // self.n_rows, rows=n)
            for i, n in enumerate(sizes)
        ]

    def rows_of(self, block: int) -> Iterator[Rows]:
        """Return the encoded rows of a block."""
        return self.encoded([self._part(block)], self.path)

    def survey(self, block: int, held: HeldOut = None) -> BlockSummary:
        """Return the statistics of one block on which the encoding depends."""
        return self.surveyed(block, [self._part(block)], self.path, held)

    def _step(self) -> int:
        return max(1, self.n_rows * BLOCK_BYTES // max(1, self.nbytes))

    def _part(self, block: int) -> tuple[Any, Place]:
        start = block * self._step()
        return self._here().slice(start, self._step()), lambda row: f"row {start + row}"

    def _here(self) -> Any:
        if self._table is None:
            raise not_here("frames")
        return self._table


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
    made.columns()  # the roles must fit
    return made


from_pandas = from_frame


def _source(table: Any, **options: Any) -> FrameSource:
    made = FrameSource(n_rows=table.num_rows, nbytes=table.nbytes, **options)
    made._table = table
    return made


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


class _Hashing:
    """A file that only hashes what is written."""

    closed = False

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=8)

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing."""


def _digest(table: Any) -> str:
    file = _Hashing()
    sink = pyarrow.PythonFile(file, "w")
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table, BLOCK_BYTES)
    return file.hash.hexdigest()
