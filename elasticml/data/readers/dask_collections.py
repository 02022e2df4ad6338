"""Sources of Dask collections of all kinds, described in the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from elasticml.data.chunks.chunk import Dtype
from elasticml.data.readers.dask_partitions import (
    DaskArraySource,
    DaskSource,
    DaskSpec,
    array_source,
    partition_graph,
    row_parts,
)
from elasticml.data.readers.dask_tables import column_types, table_source
from elasticml.data.readers.table_encoding import ColumnType, Fill
from elasticml.errors import ConfigError
from elasticml.specification.settings_model import unknown_choice


def from_dask(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    label: str | int | None = None,
    weight: str | int | None = None,
    categorical: Sequence[str | int] = (),
    ignore: Sequence[str | int] = (),
    missing: Fill = "error",
    types: Mapping[str, ColumnType] | None = None,
    dtype: Dtype = "float64",
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
    categorical, ignore : sequence of str or int
        Columns of a table to encode as one-hot besides those that hold text, and columns that are
        not features, as in :func:`elasticml.read_csv`.
    missing : "error", "mean", "median" or float
        Missing values of a table, as in :func:`elasticml.read_csv`.
    types : mapping of str to "number", "boolean", "text" or "date", optional
        The columns of records and of delayed tables, which are not known before they are computed.
    dtype : "float64" or "float32"
        Type of the stored values.

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
        options = {"categorical": tuple(categorical), "ignore": tuple(ignore), "missing": missing}
        return table_source(
            X,
            column_types(X, types),
            (y, sample_weight),
            (label, weight),
            {**options, "dtype": dtype},
        )
    if label is not None or weight is not None or categorical or ignore or types:
        raise ConfigError("label, weight, categorical, ignore and types are for tables, not arrays")
    if kind == "array":
        return array_source(row_parts(X, y, sample_weight), dtype, (X, y, sample_weight))
    if y is not None or sample_weight is not None:
        raise ConfigError(
            "y: a delayed object contains its labels, it is (X, y) or (X, y, weights)"
        )
    parts = X
    name, graph = partition_graph([parts])
    settings = DaskSpec(fingerprint=name, rows=(None,) * len(parts), dtype=dtype)
    return DaskArraySource(settings=settings, graph=graph, collections=tuple(parts))


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
        "use em.from_arrays for arrays in memory"
    )


def _as_list(X: Any) -> list[Any]:
    """Return the delayed objects of a sequence, or of a single one."""
    return list(X) if isinstance(X, list | tuple) else [X]
