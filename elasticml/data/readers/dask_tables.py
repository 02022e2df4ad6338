"""Tables in Dask collections: dataframes, bags of records, delayed tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow

from elasticml.data.chunks.chunk import Chunk, Layout
from elasticml.data.dataset_stats import BlockSummary, DatasetStats
from elasticml.data.readers.dask_partitions import (
    DaskSource,
    partition_graph,
    partition_title,
    partitions_of,
    without_format,
)
from elasticml.data.readers.table_encoding import (
    ColumnType,
    TableColumns,
    TableEncoder,
    TableOptions,
    columns_of_survey,
    encoder_from_json,
    fit_encoder,
    needs_statistics,
    resolve_columns,
    survey_table,
    type_of_arrow,
)
from elasticml.data.readers.tabular import column_moments
from elasticml.data.source import BLOCK_BYTES, BlockInfo
from elasticml.errors import ConfigError, DataError, one_line, shown
from elasticml.specification.settings_model import Count, read_settings


class DaskTableSpec(TableOptions):
    """Partitions of Dask tables."""

    format: ClassVar[str] = "dask_table"

    path: str = "the Dask collection"
    #: Digest of the partitions' keys.
    fingerprint: str
    #: Number of partitions.
    partitions: Count
    #: Names of all columns, and their types.
    names: tuple[str, ...]
    types: tuple[Literal["number", "boolean", "text", "date"], ...]
    #: Columns that come from collections of their own, such as the labels; the last of ``names``.
    joined: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DaskTableSource(DaskSource):
    """Partitions of a Dask dataframe, of a bag of records, or of delayed tables."""

    settings: DaskTableSpec
    #: From the survey, or of the training data.
    encoder: TableEncoder | None = None

    @property
    def needs_survey(self) -> bool:
        """Whether the encoding depends on all partitions and was not fitted yet."""
        return self.encoder is None and needs_statistics(self.settings, self._columns())

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt, without its graph."""
        encoder = self.encoder
        return {**super().spec(), **({} if encoder is None else {"encoder": encoder.to_json()})}

    def blocks(self) -> list[BlockInfo]:
        """Return one block for each partition, of an unknown number of rows."""
        return [BlockInfo(index=i, nbytes=BLOCK_BYTES) for i in range(self.settings.partitions)]

    def with_stats(self, facts: DatasetStats) -> DaskTableSource:
        """Return a source with the encoding that a survey gives, or that of the training data."""
        if facts.columns:
            encoder = fit_encoder(self.settings, self._columns(), facts.columns, self.settings.path)
            return replace(self, encoder=encoder)
        source = self if facts.n_columns == 0 else self.with_columns(facts.n_columns)
        if facts.encoder is None:
            return source
        return replace(source, encoder=encoder_from_json(facts.encoder))

    def chunks_of(
        self, block: int, parts: Sequence[Any], chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Make the chunks of a partition: a table, and columns from other collections."""
        counts: dict[str, int] = {}
        encoder = self.fitted_encoder()
        table = self._table(block, parts, encoder.used)
        rows = encoder.rows(table, partition_title(block), "row {}".format, counts)
        chunks, summary = self.cut(rows, block, chunk_bytes, n_members)
        counts |= summary.counts
        moments = column_moments(encoder, rows)
        if block:
            return chunks, replace(summary, counts=counts, moments=moments)
        counts |= {note.replace("{", "(").replace("}", ")"): 1 for note in encoder.notes}
        return chunks, replace(
            summary,
            counts=counts,
            moments=moments,
            vocabularies=encoder.vocabularies(),
            encoder=encoder.to_json(),
        )

    def survey_of(self, block: int, parts: Sequence[Any]) -> BlockSummary:
        """Return the statistics of a partition on which the encoding depends."""
        settings, columns = self.settings, self._columns()
        table = self._table(block, parts, columns_of_survey(settings, columns))
        surveys = survey_table(
            [(table, "row {}".format)], settings, columns, partition_title(block)
        )
        return BlockSummary(
            block=block,
            rows=table.num_rows,
            n_columns=0,
            layout=Layout(kind="dense", dtype=settings.dtype, n_columns=0),
            columns=surveys,
        )

    def with_encoder(self, encoder: TableEncoder) -> DaskTableSource:
        """Return a source with the encoding of another table."""
        return replace(self, encoder=encoder)

    def fitted_encoder(self) -> TableEncoder:
        """Return the encoder; one that depends on no statistics is not kept."""
        settings = self.settings
        return self.encoder or fit_encoder(settings, self._columns(), {}, settings.path)

    def _columns(self) -> TableColumns:
        settings = self.settings
        return resolve_columns(settings.names, settings.types, settings, settings.path)

    def _table(self, block: int, parts: Sequence[Any], names: Sequence[str]) -> Any:
        """Return columns of a partition as a pyarrow table."""
        table = _arrow_table(parts[0], block)
        for name, values in zip(self.settings.joined, parts[1:], strict=True):
            column = _arrow_column(values)
            if len(column) != table.num_rows:
                raise DataError(
                    f"{partition_title(block)} has {table.num_rows} rows and {len(column)} values "
                    f"of {name}, wanted one each"
                )
            table = table.append_column(name, column)
        missing = [name for name in names if name not in table.column_names]
        if missing:
            raise DataError(
                f"{partition_title(block)} has no column {missing[0]!r}; it has "
                f"{', '.join(map(shown, table.column_names[:20]))}"
            )
        return table.select(list(names))


def _arrow_table(part: Any, block: int) -> Any:
    """Return a frame, a pyarrow table or a sequence of records as a pyarrow table."""
    if isinstance(part, pyarrow.Table):
        return part
    try:
        if hasattr(part, "iloc"):  # pandas would add its index as a column
            table = pyarrow.Table.from_pandas(part, preserve_index=False)
            return table.rename_columns([str(name) for name in part.columns])
        if hasattr(part, "__arrow_c_stream__"):
            return pyarrow.table(part)
        records = list(part)
        if all(isinstance(record, Mapping) for record in records):
            return pyarrow.Table.from_pylist([dict(record) for record in records])
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise DataError(f"{partition_title(block)} is no table: {one_line(error)}") from None
    wrong = next(record for record in records if not isinstance(record, Mapping))
    raise DataError(
        f"{partition_title(block)} holds a {type(wrong).__name__}, wanted records: mappings of "
        "names to values"
    )


def _arrow_column(values: Any) -> Any:
    if hasattr(values, "to_frame"):
        return pyarrow.Table.from_pandas(values.to_frame("column"), preserve_index=False).column(0)
    return pyarrow.array(np.ravel(np.asarray(values)), from_pandas=True)


def source_of(spec: Mapping[str, Any]) -> DaskTableSource:
    """Build the source that scheduler and members have: without the graph."""
    settings = read_settings(DaskTableSpec, without_format(spec), "data")
    return DaskTableSource(
        settings=settings.model_copy(update={"encoder": None}), encoder=settings.encoder
    )


# In the client.


def table_source(
    X: Any,
    types: Mapping[str, ColumnType],
    vectors: tuple[Any, Any],
    columns: tuple[str | int | None, str | int | None],
    options: Mapping[str, Any],
) -> DaskTableSource:
    """Return the source of a dataframe, a bag of records or delayed tables.

    Parameters
    ----------
    types : mapping
        The type of each column.
    vectors : tuple
        Collections of labels and weights, or None.
    columns : tuple
        Columns of labels and weights, or None.
    options : mapping
        Further settings of :class:`DaskTableSpec`.

    Raises
    ------
    ConfigError
        When columns are missing, or partitions do not match.
    """
    tables = X if isinstance(X, list) else list(X.to_delayed())
    parts, joined, roles = [tables], dict[str, ColumnType](), list(columns)
    for at, (vector, key) in enumerate(zip(vectors, ("label", "weight"), strict=True)):
        if vector is None:
            continue
        if columns[at] is not None:
            raise ConfigError(f"{key}: got {columns[at]!r} and a collection, wanted one of them")
        name = roles[at] = key if key not in types else f"elasticml {key}"
        joined[name] = _type_of_vector(vector)
        parts.append(partitions_of(vector, len(tables), key))
    if roles[0] is None:
        raise ConfigError("label: name the column of the labels, or give y")
    text, graph = partition_graph(parts)
    settings = DaskTableSpec(
        label=roles[0],
        weight=roles[1],
        fingerprint=text,
        partitions=len(tables),
        names=(*types, *joined),
        types=(*types.values(), *joined.values()),
        joined=tuple(joined),
        **options,
    )
    resolve_columns(settings.names, settings.types, settings, settings.path)
    collections = (
        *(X if isinstance(X, list) else [X]),
        *(vector for vector in vectors if vector is not None),
    )
    return DaskTableSource(settings=settings, graph=graph, collections=collections)


def column_types(X: Any, types: Mapping[str, ColumnType] | None) -> dict[str, ColumnType]:
    """Return the type of each column of a table.

    Raises
    ------
    ConfigError
        When they are not known before records are computed, and not given.
    """
    if not hasattr(X, "columns"):
        if types is None:
            raise ConfigError(
                "types: give the names and types of all columns, such as {'age': 'number', 'city': "
                "'text'}; they are not known before the records are computed"
            )
        return dict(types)
    schema = _arrow_table(_with_text(X._meta_nonempty), 0).schema
    found: dict[str, ColumnType] = {one.name: type_of_arrow(one.type) for one in schema}
    return {name: (types or {}).get(name, kind) for name, kind in found.items()}


def _with_text(meta: Any) -> Any:
    """Return an example frame whose columns of unknown objects are texts, which they mostly are."""
    made = meta.copy()
    for at, dtype in enumerate(meta.dtypes):
        if dtype.kind == "O" and not hasattr(dtype, "categories"):
            made.isetitem(at, "text")
    return made


def _type_of_vector(vector: Any) -> ColumnType:
    meta = vector._meta_nonempty if hasattr(vector, "_meta_nonempty") else vector._meta
    if hasattr(meta, "to_frame"):
        meta = _with_text(meta.to_frame()).iloc[:, 0]
    return type_of_arrow(_arrow_column(meta).type)
