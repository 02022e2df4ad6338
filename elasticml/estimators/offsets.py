"""Offsets of generalised linear models: numbers that are added to the margins of rows.

``fit(..., offset=...)`` takes one number for each row, or the name or number of a column of X whose
coefficient is then 1. A model that was fitted with numbers needs numbers for the rows to predict,
as glmnet's models do; one that was fitted with a column finds them there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from elasticml.arrays import F64, is_lazy


def is_column(offset: Any) -> bool:
    """Whether an offset names a column instead of giving the numbers."""
    return isinstance(offset, str | int | np.integer) and not isinstance(offset, bool)


def column_of(offset: Any, names: Sequence[Any], width: int) -> int:
    """Return the number of the offset's column.

    Raises
    ------
    ValueError
        When there is no such column.
    """
    if isinstance(offset, str):
        if offset not in names:
            listed = ", ".join(map(str, names[:8])) or "none, since X has no names"
            raise ValueError(f"offset is {offset!r}, wanted a column of X: {listed}")
        return list(names).index(offset)
    if not 0 <= offset < width:
        raise ValueError(f"offset is {offset}, wanted the number of a column of X below {width}")
    return int(offset)


def numbers_of(offset: Any, n: int) -> F64:
    """Return an offset as an array, (n,).

    Raises
    ------
    ValueError
        When it is not one finite number for each of n rows.
    """
    if is_lazy(offset):
        raise ValueError("offset is a Dask collection, wanted the name or number of a column of X")
    values = np.asarray(offset, np.float64)
    if values.shape == (n, 1):
        values = values[:, 0]
    if values.shape != (n,) or not np.isfinite(values).all():
        raise ValueError(f"offset has shape {values.shape}, wanted {n} finite numbers, one per row")
    return values


def taken_out(X: Any, at: int) -> tuple[Any, Any]:
    """Return a column, (n,), and the rows without it; of a Dask collection, lazily."""
    if is_lazy(X) and hasattr(X, "columns"):
        name = X.columns[at]
        return X[name], X.drop(columns=[name])
    others = [j for j in range(X.shape[1]) if j != at]
    if is_lazy(X):
        return X[:, at], X[:, others]
    values = X[:, [at]]
    values = values.toarray() if scipy.sparse.issparse(values) else values
    return np.asarray(values, np.float64).ravel(), X[:, others]


def appended(X: Any, values: F64) -> Any:
    """Return the rows with one more column."""
    column = values.astype(X.dtype)[:, None]
    if scipy.sparse.issparse(X):
        return type(X)(scipy.sparse.hstack([X, type(X)(column)]))
    return np.hstack([X, column])
