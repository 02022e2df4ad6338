"""Sources of Dask collections of all kinds, described in the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from elasticml.data.chunks.chunk import Dtype
from elasticml.data.readers.dask_partitions import (
    DaskArraySource,
    DaskSource,
    array_source,
    partition_graph,
    row_parts,
)
from elasticml.data.readers.dask_tables import column_types, table_source
from elasticml.data.readers.table_encoding import ColumnType
from elasticml.errors import ConfigError
from elasticml.specification.settings_model import unknown_choice


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
