"""Convert an estimator's inputs to arrays: read files and sources, compute Dask collections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from elasticml.arrays import is_lazy, is_named

if TYPE_CHECKING:
    from elasticml.models.row_input import RowInput


def load_arrays(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    n_columns: int | None = None,
    rows: RowInput | None = None,
) -> tuple[Any, Any, Any]:
    """Return rows, targets and weights in this process's memory; arrays in memory are unchanged.

    Parameters
    ----------
    X : array_like, sparse, frame, Dask array or dataframe, path, URL, or source
        The file name extension determines the format, as for ``elasticml convert``; a folder is
        the output of ``elasticml convert``; ``.npy`` is an array. Sources are the results of
        ``em.read_csv`` and the other readers.
    y, sample_weight : array_like, Dask array or series, or path of an ``.npy`` file, optional
        By default the labels and weights in the file, if X is a file. For a CSV or Parquet file
        ``y`` is the column of the labels, by name or index; by default the last column.
    n_columns : int, optional
        Number of columns of the model; values of a file in further columns are dropped.
    rows : RowInput, optional
        The encoding of the table to which the model was fitted; it is applied to files too.

    Raises
    ------
    ConfigError
        When a file is missing, or its name does not imply a format.
    DataError
        When its content is invalid, or is not rows of numbers.
    """
    return _load(X, y, sample_weight, n_columns, None, rows)[:3]


def load_training(
    X: Any, y: Any, sample_weight: Any, *, client: Any
) -> tuple[Any, Any, Any, RowInput | None]:
    """Return what :func:`load_arrays` returns, and the encoding of a table that has one, else None.

    Tables in files have one, and frames with text or dates.
    """
    X, y, sample_weight, rows = _load(X, y, sample_weight, None, client, None)
    X, rows = _encoded(X, rows)
    return X, y, sample_weight, rows


def _load(
    X: Any, y: Any, sample_weight: Any, n_columns: int | None, client: Any, rows: RowInput | None
) -> tuple[Any, Any, Any, RowInput | None]:
    if any(is_named(one) for one in (X, y, sample_weight)):
        # Imported here: loading what files need takes longer than many fits.
        from elasticml.estimators.file_inputs import read

        X, y, sample_weight, rows = read(X, y, sample_weight, n_columns, rows)
    X, y, sample_weight = computed([X, y, sample_weight], client)
    return X, y, sample_weight, rows


def load_training_rows(X: Any, *, client: Any = None) -> tuple[Any, RowInput | None]:
    """Return rows only, and the encoding of a table as :func:`load_training` does.

    Raises
    ------
    ConfigError
        Also when the file does not say which column holds the labels.
    """
    if is_named(X):
        from elasticml.estimators.file_inputs import refuse_table

        refuse_table(X)
    X, _, _, rows = load_training(X, None, None, client=client)
    return X, rows


def _encoded(X: Any, rows: RowInput | None) -> tuple[Any, RowInput | None]:
    """Encode a frame that does not hold numbers alone."""
    if rows is not None or not hasattr(X, "__arrow_c_stream__") or not hasattr(X, "columns"):
        return X, rows
    if hasattr(X, "iloc") and all(getattr(dtype, "kind", "O") in "biufc" for dtype in X.dtypes):
        return X, None
    # Imported here: they load pyarrow, which arrays in memory do not need.
    from elasticml.data.readers.frames import encoded_frame
    from elasticml.data.readers.tables import arrow_table, type_of_arrow
    from elasticml.models.row_input import RowInput

    table = arrow_table(X)
    if not {type_of_arrow(kind) for kind in table.schema.types} & {"text", "date"}:
        return X, None
    made, encoder = encoded_frame(table)
    return made, RowInput(n_columns=encoder.n_columns, encoder=encoder)


def computed(collections: Sequence[Any], client: Any) -> list[Any]:
    """Compute all Dask collections, in one graph."""
    if not any(map(is_lazy, collections)):
        return list(collections)
    # Dask is loaded already if there is a collection.
    import dask

    scheduler = {} if client is None or isinstance(client, str) else {"scheduler": client}
    return list(dask.compute(*collections, **scheduler))
