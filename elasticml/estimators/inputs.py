"""What an estimator is given, as arrays: files and sources are read, Dask collections computed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


def taken(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    n_columns: int | None = None,
    client: Any = None,
) -> tuple[Any, Any, Any]:
    """Return rows, targets and weights in this process's memory; what is there already is left.

    Parameters
    ----------
    X : array_like, sparse, Dask array or dataframe, path, URL, or source
        A name's end tells the format, as ``elasticml convert`` has it; a folder is one that it has
        written; ``.npy`` is an array. A source is what ``em.read_csv`` and its like return.
    y, sample_weight : array_like, Dask array or series, or path of an ``.npy`` file, optional
        Of rows that a file holds its labels and weights, where not given. For a CSV or Parquet file
        ``y`` is the column of the labels, by name or place; by default the last.
    n_columns : int, optional
        That the model has: a file's values in wider ones are dropped.
    client : distributed.Client, optional
        Whose cluster computes Dask collections; by default Dask's own choice.

    Raises
    ------
    ConfigError
        When a file is missing, or its name does not tell a format.
    DataError
        When what it holds is wrong, or no rows of numbers.
    """
    if any(_is_named(one) for one in (X, y, sample_weight)):
        # Loads what files need, which takes longer than many fits.
        from elasticml.estimators.files import read

        X, y, sample_weight = read(X, y, sample_weight, n_columns)
    X, y, sample_weight = _computed([X, y, sample_weight], client)
    return X, y, sample_weight


def rows_taken(X: Any, *, n_columns: int | None) -> Any:
    """Return rows alone, as :func:`taken` does; labels and weights that a file holds are left.

    Raises
    ------
    ConfigError
        Also where a column of labels would have to be told from the others.
    """
    if _is_named(X):
        from elasticml.estimators.files import read_rows

        X = read_rows(X, n_columns)
    return _computed([X], None)[0]


def _is_named(X: Any) -> bool:
    """Whether it says where rows are, by a name or as a source, and is not the rows themselves."""
    return isinstance(X, str | os.PathLike) or (hasattr(X, "blocks") and hasattr(X, "with_columns"))


def _computed(given: Sequence[Any], client: Any) -> list[Any]:
    """Compute what Dask is to compute, all of it in one graph."""
    if not any(hasattr(one, "__dask_graph__") for one in given):
        return list(given)
    # Whoever has a collection has loaded the library.
    import dask

    scheduler = {} if client is None or isinstance(client, str) else {"scheduler": client}
    return list(dask.compute(*given, **scheduler))
