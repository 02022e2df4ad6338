"""Sources of Dask collections of all kinds, and the tables in them: frames, bags, delayed ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, get_args

import dask
import pyarrow

from elasticml.data.chunks.chunk import Dtype
from elasticml.data.chunks.rows import Rows, matrix_of
from elasticml.data.dataset_stats import BlockSummary, merge_summaries
from elasticml.data.readers.dask_partitions import (
    DaskArraySource,
    DaskSource,
    array_source,
    partition_graph,
    partition_title,
    partitions_of,
    row_parts,
)
from elasticml.data.readers.tables import (
    ColumnType,
    TableEncoder,
    TableFormat,
    append_columns,
    arrow_column,
    arrow_table,
    check_columns,
    roles_of_vectors,
    type_of_arrow,
)
from elasticml.data.source import BLOCK_BYTES, BlockInfo, HeldOut, source_from_spec
from elasticml.errors import ConfigError, DataError, one_line
from elasticml.specification.settings_model import Count, unknown_choice


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


def from_dask(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    label: str | int | None = None,
    weight: str | int | None = None,
    types: Mapping[str, ColumnType] | None = None,
    dtype: Dtype = "float64",
    **options: Any,
) -> DaskSource:
    """Return a source for Dask collections, whose rows stay on the workers; nothing is computed.

    Members make their chunks of the partitions where those are. Neither the client nor the
    scheduler touches a row. A partition that was lost is computed again from its graph, which must
    give the same rows in the same order each time.

    Parameters
    ----------
    X : dask array (n, d), dask dataframe, dask bag, delayed object or sequence of those
        Chunks of rows may have unknown sizes. A bag holds records, mappings of names to values. A
        delayed object is one partition: ``(X, y)`` or ``(X, y, weights)``, or with ``label`` a
        table (pandas, pyarrow) or a list of records.
    y, sample_weight : dask array (n,) or dask series, optional
        In the partitions of X; arrays are rechunked to those.
    label, weight : str or int, optional
        Columns of a table, by name, or by position from 0.
    types : mapping of str to "number", "boolean", "text" or "date", optional
        The columns of records and of delayed tables, which are not known before they are computed.
    dtype : "float64" or "float32"
        Type of the stored values.
    **options
        How the columns of a table become features: ``categorical``, ``ignore``, ``missing`` and
        the others of :func:`elasticml.read_parquet`.

    Raises
    ------
    ConfigError
        When X is not a Dask collection, or labels, weights or columns do not fit it.

    Examples
    --------
    >>> import dask.array as da
    >>> source = em.from_dask(da.from_array(X, (50, 5)), da.from_array(y, 50))
    >>> em.Job(em.CoCoA(), source, stop=stop).run(client).summary["examples"]
    200
    """
    if dtype not in get_args(Dtype):
        raise unknown_choice(dtype, get_args(Dtype), "dtype")
    kind = _kind_of(X)
    if kind == "delayed":
        X = _as_list(X)
    if kind in ("dataframe", "bag") or (kind == "delayed" and label is not None):
        found = column_types(X, types)
        options = {**options, "dtype": dtype}
        return table_source(X, found, (label, weight), (y, sample_weight), options)
    for_tables = [label, weight, types, *options.values()]
    if any(option is not None for option in for_tables):
        names = ", ".join(("label", "weight", *options))
        raise ConfigError(f"{names} and types are for tables, not arrays")
    if kind == "array":
        return array_source(row_parts(X, y, sample_weight), dtype, (X, y, sample_weight))
    if y is not None or sample_weight is not None:
        raise ConfigError(
            "y: a delayed object contains its labels, it is (X, y) or (X, y, weights)"
        )
    parts = X
    name, graph = partition_graph([parts])
    made = DaskArraySource(digest=name, rows=(None,) * len(parts), dtype=dtype)
    return made.of(graph, parts)


_Kind = Literal["array", "dataframe", "bag", "delayed"]


def _kind_of(X: Any) -> _Kind:
    first = X[0] if isinstance(X, list | tuple) and X else X
    if hasattr(first, "__dask_graph__"):
        from dask.delayed import Delayed  # which seems to have any attribute

        if all(isinstance(one, Delayed) for one in _as_list(X)):
            return "delayed"
        if hasattr(X, "rechunk"):
            return "array"
        if hasattr(X, "npartitions"):
            return "dataframe" if hasattr(X, "columns") else "bag"
    raise ConfigError(
        f"X is a {type(X).__name__}, wanted a Dask array, dataframe or bag, or delayed objects; "
        "use em.from_arrays for arrays in memory, em.from_frame for frames"
    )


def _as_list(X: Any) -> list[Any]:
    """Return the delayed objects of a sequence, or of a single one."""
    return list(X) if isinstance(X, list | tuple) else [X]
