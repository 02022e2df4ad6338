"""What all tables have in common, whether they are in files, in frames or in Dask collections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Self

import numpy as np
import scipy.sparse

from elasticml.data.chunks.chunk import Chunk, Layout
from elasticml.data.chunks.chunker import Rows
from elasticml.data.chunks.rows import matrix_of
from elasticml.data.column_survey import (
    ColumnMoments,
    ColumnSurvey,
    merge_moments,
    moments_of,
    moments_of_values,
)
from elasticml.data.dataset_stats import BlockSummary, DatasetStats
from elasticml.data.formats import Format
from elasticml.data.readers.table_encoding import (
    Column,
    Place,
    TableColumns,
    TableEncoder,
    TableOptions,
    fit_encoder,
    needs_statistics,
    survey_table,
)
from elasticml.data.source import HeldOut
from elasticml.errors import ConfigError

#: Tables with more columns are not searched for columns to warn of.
_MOMENTS_MAX: Final = 1000
#: Nor are categorical columns with more values.
_VALUES_MAX: Final = 50


class TableFormat(Format, TableOptions):
    """A table, whose rows an encoder turns into numbers; it is fitted to the training rows."""

    @property
    def needs_survey(self) -> bool:
        """Whether the encoding depends on all blocks and was not fitted yet."""
        if self.encoder is not None:
            return False
        return bool(self.categorical or needs_statistics(self, self.roles()))

    def roles(self) -> TableColumns:
        """Return the roles and types of the columns."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Return the options that differ from the defaults."""
        given = self.model_dump(mode="json", exclude_defaults=True, exclude={"encoder", "words"})
        return {"format": self.format, **given}

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        if self.encoder is not None:
            return {**super().spec(), "encoder": self.encoder.to_json()}
        return {**super().spec(), "words": self.words}

    def fitted_encoder(self) -> TableEncoder:
        """Return the encoder; one that depends on no statistics is not kept.

        Raises
        ------
        ConfigError
            When the encoding needs a survey and none was done.
        """
        if self.encoder is None and self.needs_survey:
            raise ConfigError(
                f"the encoding of {self.path} depends on all rows: survey all blocks and read with "
                "the merged facts",
                path=self.path,
            )
        fitted: TableEncoder = self.encoder or self._fit({})
        return fitted

    def with_encoder(self, encoder: TableEncoder) -> Self:
        """Return a source with the encoding of another table."""
        return self.model_copy(update={"encoder": encoder})

    def with_stats(self, facts: DatasetStats) -> Self:
        """Return a source with the encoding that a survey gives, or that of the training data.

        Where the survey has found text among numbers, the source needs another survey.
        """
        words = {name: one.word for name, one in facts.columns.items() if one.word is not None}
        if words:
            return self.model_copy(update={"words": {**(self.words or {}), **words}})
        if facts.columns:
            return self.with_encoder(self._fit(facts.columns))
        source = self if facts.n_columns == 0 else self.with_columns(facts.n_columns)
        if facts.encoder is None:
            return source
        return source.with_encoder(TableEncoder.from_json(facts.encoder))

    def _fit(self, surveys: Mapping[str, ColumnSurvey]) -> TableEncoder:
        cells = {**self._texts(), **(self.words or {})}
        return fit_encoder(self, self.roles(), surveys, self.path, cells)

    def _texts(self) -> Mapping[str, str]:
        """Return the first cell of each column of text."""
        return {}

    def surveyed(
        self,
        block: int,
        tables: Sequence[tuple[Any, Place]],
        path: str,
        held: HeldOut = None,
        words: Mapping[str, str] | None = None,
    ) -> BlockSummary:
        """Return the statistics of a block's tables on which the encoding depends."""
        return BlockSummary(
            block=block,
            rows=sum(table.num_rows for table, _ in tables),
            n_columns=0,
            layout=Layout(kind="dense", dtype=self.dtype, n_columns=0),
            columns=survey_table(tables, self, self.roles(), path, words, held),
        )

    def encoded(self, tables: Iterable[tuple[Any, Place]], path: str) -> Iterator[Rows]:
        """Yield the rows of a block's tables."""
        encoder = self.fitted_encoder()
        for table, place in tables:
            notes = dict[str, int]()
            yield replace(encoder.rows(table, path, place, notes), notes=notes)

    def chunks_of_rows(
        self, block: int, parts: Iterable[Rows], chunk_bytes: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Partition the rows of a block into chunks; its summary has the columns' moments."""
        moments = dict[str, ColumnMoments]()
        observed = self._observed(parts, moments)
        chunks, summary = super().chunks_of_rows(block, observed, chunk_bytes)
        return chunks, replace(summary, moments=moments)

    def _observed(self, parts: Iterable[Rows], moments: dict[str, ColumnMoments]) -> Iterator[Rows]:
        """Yield rows, and collect the moments of their columns."""
        encoder = self.fitted_encoder()
        for rows in parts:
            for column, some in _column_moments(encoder, rows).items():
                before = moments.get(column)
                moments[column] = some if before is None else merge_moments([before, some])
            yield rows

    def facts_of(self, block: int) -> dict[str, Any]:
        """Return the encoding, with the first block."""
        if block:
            return {}
        encoder = self.fitted_encoder()
        return {
            "counts": {note.replace("{", "(").replace("}", ")"): 1 for note in encoder.notes},
            "vocabularies": encoder.vocabularies(),
            "encoder": encoder.to_json(),
        }


def roles_of_vectors(
    columns: tuple[Column | None, Column | None], vectors: tuple[Any, Any], names: Iterable[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the columns of labels and weights, and the new columns for those that are vectors.

    Parameters
    ----------
    columns : tuple
        Columns of labels and weights in the table, or None.
    vectors : tuple
        Labels and weights that are no columns of it, or None.
    names : iterable of str
        The columns of the table.

    Raises
    ------
    ConfigError
        When one is both, or there are no labels.
    """
    roles, joined = list[Any](), dict[str, Any]()
    for column, vector, key in zip(columns, vectors, ("label", "weight"), strict=True):
        if vector is None:
            roles.append(column)
            continue
        if column is not None:
            raise ConfigError(f"{key}: got {column!r} and values, wanted one of them")
        roles.append(key if key not in names else f"elasticml {key}")
        joined[roles[-1]] = vector
    if roles[0] is None:
        raise ConfigError("label: name the column of the labels, or give y")
    return roles, joined


def _column_moments(encoder: TableEncoder, rows: Rows) -> dict[str, ColumnMoments]:
    """Return sizes of the columns, and their products with the labels, for warnings."""
    starts = np.cumsum([0, *(column.width for column in encoder.columns)])
    numeric: dict[str, int] = {}
    values: dict[str, slice] = {}
    for column, start in zip(encoder.columns, starts.tolist(), strict=False):
        if column.kind in ("number", "date"):
            numeric[column.name] = start
        elif column.kind == "category" and column.width <= _VALUES_MAX:
            values[column.name] = slice(start, start + column.width)
    if not 0 < len(numeric) + len(values) <= _MOMENTS_MAX:
        return {}
    X, y = matrix_of(rows), rows.labels
    X = X.tocsc() if scipy.sparse.issparse(X) else X
    some = X[:, list(numeric.values())].toarray() if scipy.sparse.issparse(X) else X
    # One transposition reads each cache line once, not once per column.
    columns = np.ascontiguousarray(some.T)
    at = range(len(numeric)) if scipy.sparse.issparse(X) else numeric.values()
    moments = {name: moments_of(columns[k], y) for name, k in zip(numeric, at, strict=True)}
    names = encoder.names()
    for name, place in values.items():
        moments |= moments_of_values(name, names[place], X[:, place], y)
    return moments
