"""Tables in Dask collections: dataframes, bags of records, delayed tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import dask
import pyarrow

from elasticml.data.chunks.chunker import Rows
from elasticml.data.chunks.rows import matrix_of
from elasticml.data.dataset_stats import BlockSummary, merge_summaries
from elasticml.data.readers.dask_partitions import (
    DaskSource,
    partition_graph,
    partition_title,
    partitions_of,
)
from elasticml.data.readers.table_encoding import (
    ColumnType,
    TableEncoder,
    append_columns,
    arrow_column,
    arrow_table,
    check_columns,
    type_of_arrow,
)
from elasticml.data.readers.tables import TableFormat, roles_of_vectors
from elasticml.data.source import BLOCK_BYTES, BlockInfo, HeldOut, source_from_spec
from elasticml.errors import ConfigError, DataError, one_line
from elasticml.specification.settings_model import Count


class DaskTableSource(DaskSource, TableFormat):
    """Partitions of a Dask dataframe, of a bag of records, or of delayed tables."""

    format = "dask_table"
    given_again = "em.from_dask(frame, label=...)"

    path: str = "the Dask collection"
    #: Number of partitions.
    partitions: Count
    #: Names of all columns, and their types.
    names: tuple[str, ...]
    types: tuple[Literal["number", "boolean", "text", "date"], ...]
    #: Columns that come from collections of their own, such as the labels; the last of ``names``.
    joined: tuple[str, ...] = ()

    def names_and_types(self) -> tuple[Sequence[str], Sequence[ColumnType]]:
        """Return the names and types of the columns."""
        return self.names, self.types

    def blocks(self) -> list[BlockInfo]:
        """Return one block for each partition, of an unknown number of rows."""
        return [BlockInfo(index=i, nbytes=BLOCK_BYTES) for i in range(self.partitions)]

    def rows_of(self, block: int) -> Iterable[Rows]:
        """Return the encoded rows of a partition: a table, and columns from other collections."""
        table = self._table(block, self.fitted_encoder().used)
        return self.encoded([(table, "row {}".format)], partition_title(block))

    def survey(self, block: int, held: HeldOut = None) -> BlockSummary:
        """Return the statistics of a partition on which the encoding depends."""
        table = self._table(block, self.surveyed_columns(self.roles()))
        return self.surveyed(block, [(table, "row {}".format)], partition_title(block), held)

    def _table(self, block: int, names: Sequence[str]) -> Any:
        """Return columns of a partition as a pyarrow table."""
        title, parts = partition_title(block), self.parts
        joined = dict(zip(self.joined, parts[1:], strict=True))
        table = append_columns(_table_of(parts[0], title), joined, title)
        check_columns(title, table.column_names, names)
        return table.select(list(names))


def _table_of(part: Any, title: str) -> Any:
    """Return a frame, an Arrow table or a sequence of records as an Arrow table."""
    if hasattr(part, "__arrow_c_stream__") or hasattr(part, "iloc"):
        return arrow_table(part, title)
    records = list(part)
    wrong = next((record for record in records if not isinstance(record, Mapping)), None)
    if wrong is not None:
        raise DataError(
            f"{title} holds a {type(wrong).__name__}, wanted records: mappings of names to values"
        )
    try:
        return pyarrow.Table.from_pylist([dict(record) for record in records])
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
        raise DataError(f"{title} is no table: {one_line(error)}") from None


# In the client.


def table_source(
    X: Any,
    types: Mapping[str, ColumnType],
    columns: tuple[str | int | None, str | int | None],
    given: tuple[Any, Any],
    options: Mapping[str, Any],
) -> DaskTableSource:
    """Return the source of a dataframe, a bag of records or delayed tables.

    Parameters
    ----------
    types : mapping
        The type of each column.
    columns : tuple
        Columns of labels and weights, or None.
    given : tuple
        Collections of labels and weights, or None.
    options : mapping
        Further options of :class:`DaskTableSource`.

    Raises
    ------
    ConfigError
        When columns are missing, or partitions do not match.
    """
    tables = X if isinstance(X, list) else list(X.to_delayed())
    roles, vectors = roles_of_vectors(columns, given, types)
    parts = [tables]
    for name, vector in vectors.items():
        parts.append(partitions_of(vector, len(tables), name.removeprefix("elasticml ")))
    text, graph = partition_graph(parts)
    made = DaskTableSource(
        label=roles[0],
        weight=roles[1],
        digest=text,
        partitions=len(tables),
        names=(*types, *vectors),
        types=(*types.values(), *map(_type_of_vector, vectors.values())),
        joined=tuple(vectors),
        **options,
    )
    made.roles()  # the roles must fit
    return made.of(graph, (*(X if isinstance(X, list) else [X]), *vectors.values()))


#: The column that takes the place of labels where an encoding needs none.
_NO_LABEL: Final = "elasticml label"


def encoded_partitions(X: Any, client: Any) -> tuple[list[Any], TableEncoder] | None:
    """Fit the encoding of a Dask frame without labels where its partitions are.

    Returns
    -------
    parts : list of delayed arrays or CSR arrays, one for each partition
    encoder : TableEncoder
        Or None in place of both if all columns are numbers.

    Raises
    ------
    DataError
        When a partition has missing or invalid values.
    """
    types = column_types(X, None)
    if not {"text", "date"} & set(types.values()):
        return None
    labelled: dict[str, ColumnType] = {**types, _NO_LABEL: "number"}
    source: Any = table_source(X, labelled, (_NO_LABEL, None), (None, None), {})
    survey, encode = dask.delayed(_surveyed, pure=True), dask.delayed(_encoded, pure=True)
    parts = list(X.to_delayed())
    while source.needs_survey:
        each = [survey(source.spec(), block, part) for block, part in enumerate(parts)]
        source = source.with_stats(merge_summaries(client.gather(client.compute(each))))
    encoder = replace(source.fitted_encoder(), label="")
    record = encoder.to_json()
    return [encode(record, block, part) for block, part in enumerate(parts)], encoder


def _surveyed(spec: Mapping[str, Any], block: int, part: Any) -> BlockSummary:
    source: Any = source_from_spec(spec)
    summary: BlockSummary = source.with_parts([part.assign(**{_NO_LABEL: 0.0})]).survey(block)
    return summary


def _encoded(record: Mapping[str, Any], block: int, part: Any) -> Any:
    encoder, title = TableEncoder.from_json(record), partition_title(block)
    return matrix_of(encoder.features(arrow_table(part), title, "row {}".format, {}))


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
    schema = arrow_table(_with_text(X._meta_nonempty)).schema
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
    return type_of_arrow(arrow_column(meta, "y").type)
