"""Data by columns: chunks whose rows are the features of a matrix, and its targets.

What works on features instead of examples takes ``X.T``: row j of the data holds feature j of all
examples and bears the label j. One more row, labelled :data:`TARGETS`, holds the targets; where
examples have weights s, one labelled :data:`ROOTS` holds their roots, and every feature has been
multiplied by them, so that weighted sums of squares are plain ones. Targets have not: labels are
to be told apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from elasticml.data.cut import Rows
from elasticml.data.rows import rows_of_arrays
from elasticml.errors import ConfigError, DataError

#: Labels of the rows that are no features.
TARGETS: Final = -1.0
ROOTS: Final = -2.0
#: What a source's spec says under ``by``.
COLUMNS: Final = "columns"


def rows_by_columns(X: Any, y: ArrayLike, sample_weight: ArrayLike | None, *, name: str) -> Rows:
    """Check arrays, and return them transposed, with the targets as a row of their own.

    Parameters
    ----------
    X : array_like (n, d), or any SciPy sparse matrix or array
    y : array_like (n,)
    sample_weight : array_like (n,), optional

    Raises
    ------
    DataError
        As :func:`elasticml.data.rows.rows_of_arrays`; when there is no feature, or no weight above
        0.
    """
    checked = rows_of_arrays(X, y, sample_weight, name=name)
    if checked.n_columns == 0:
        raise DataError(f"{name} has no columns, wanted at least one")
    beside, labels = checked.labels[None, :], [TARGETS]
    roots: NDArray[np.float64] | None = None
    if checked.weights is not None:
        if not np.any(checked.weights > 0.0):
            raise DataError(
                f"{name}: the weights of all examples are 0; give some of them a weight"
            )
        roots = np.sqrt(checked.weights)
        beside, labels = np.stack([checked.labels, roots]), [TARGETS, ROOTS]
    numbers = np.concatenate([np.arange(checked.n_columns, dtype=np.float64), labels])
    if checked.dense is not None:
        columns = np.asarray(checked.dense, np.float64).T
        dense = np.concatenate([columns if roots is None else columns * roots, beside])
        return Rows(labels=numbers, n_columns=len(checked.labels), dense=dense)
    shape = (len(checked.labels), checked.n_columns)
    rows = scipy.sparse.csr_array((checked.values, checked.indices, checked.indptr), shape=shape)
    if roots is not None:
        rows = scipy.sparse.diags_array(roots) @ rows
    turned = scipy.sparse.vstack([rows.T, scipy.sparse.csr_array(beside)], format="csr")
    return rows_of_arrays(turned, numbers, None, name=name)


def is_by_columns(spec: Mapping[str, Any]) -> bool:
    """Whether a source's spec names data by columns."""
    return spec.get("by") == COLUMNS


def check_by(by: str, dtype: str) -> None:
    """Check how arrays shall be cut.

    Raises
    ------
    ConfigError
        When ``by`` is no such way, or columns shall be stored as float32.
    """
    if by not in ("rows", COLUMNS):
        raise ConfigError(f"by is {by!r}, wanted 'rows' or 'columns'", key="by")
    if by == COLUMNS and dtype != "float64":
        raise ConfigError(
            f"dtype is {dtype!r}, wanted 'float64' by columns: a residual of less would hide small "
            "gaps",
            key="dtype",
        )
