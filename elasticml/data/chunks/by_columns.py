"""Column-partitioned data: chunks whose rows are the features of a matrix, and its targets.

Algorithms that work on features instead of examples read ``X.T``: row j of the data holds feature j
of all examples and has the label j. One more row, labelled :data:`TARGETS`, holds the targets. If
examples have weights s, a row labelled :data:`ROOTS` holds their square roots, and every feature is
multiplied by them, so that weighted sums of squares become plain ones. Targets are not multiplied:
class labels must remain distinct.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.rows import Rows, matrix_of, rows_of_arrays, rows_of_matrix
from elasticml.errors import ConfigError, DataError

#: Labels of the rows that are not features.
TARGETS: Final = -1.0
ROOTS: Final = -2.0
#: Value of the key ``by`` in a source's spec.
COLUMNS: Final = "columns"


def rows_by_columns(X: Any, y: ArrayLike, sample_weight: ArrayLike | None, *, name: str) -> Rows:
    """Check arrays, and return them transposed, with the targets as an additional row.

    Parameters
    ----------
    X : array_like (n, d), or any SciPy sparse matrix or array
    y : array_like (n,)
    sample_weight : array_like (n,), optional

    Raises
    ------
    DataError
        As :func:`elasticml.data.chunks.rows.rows_of_arrays`; when there is no feature, or all
        weights are 0.
    """
    import scipy.sparse  # a job that reads files does not need it

    checked = rows_of_arrays(X, y, sample_weight, name=name)
    if checked.n_columns == 0:
        raise DataError(f"{name} has no columns, wanted at least one")
    extra_rows, labels = checked.labels[None, :], [TARGETS]
    roots: NDArray[np.float64] | None = None
    if checked.weights is not None:
        if not np.any(checked.weights > 0.0):
            raise DataError(
                f"{name}: the weights of all examples are 0; give some of them a weight"
            )
        roots = np.sqrt(checked.weights)
        extra_rows, labels = np.stack([checked.labels, roots]), [TARGETS, ROOTS]
    numbers = np.concatenate([np.arange(checked.n_columns, dtype=np.float64), labels])
    if checked.dense is not None:
        columns = np.asarray(checked.dense, np.float64).T
        dense = np.concatenate([columns if roots is None else columns * roots, extra_rows])
        return rows_of_matrix(dense, numbers)
    rows = matrix_of(checked)
    if roots is not None:
        rows = scipy.sparse.diags_array(roots) @ rows
    transposed = scipy.sparse.vstack([rows.T, scipy.sparse.csr_array(extra_rows)], format="csr")
    return rows_of_arrays(transposed, numbers, None, name=name)


def own_coefs(chunk: Chunk, coef: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients (d,) of a chunk's features, (n_rows,).

    They are 0 for rows that are no features, and for features beyond d.
    """
    numbers = chunk.labels.astype(np.int64)
    is_feature = (numbers >= 0) & (numbers < coef.size)
    own = np.zeros(chunk.n_rows)
    own[is_feature] = coef[numbers[is_feature]]
    return own


def is_by_columns(spec: Mapping[str, Any]) -> bool:
    """Whether a source's spec describes data by columns."""
    return spec.get("by") == COLUMNS


def check_by(by: str, dtype: str) -> None:
    """Check how arrays are to be partitioned.

    Raises
    ------
    ConfigError
        When ``by`` is unknown, or columns are to be stored as float32.
    """
    if by not in ("rows", COLUMNS):
        raise ConfigError(f"by is {by!r}, wanted 'rows' or 'columns'")
    if by == COLUMNS and dtype != "float64":
        raise ConfigError(
            f"dtype is {dtype!r}, wanted 'float64' by columns: a residual of lower precision would "
            "hide small gaps"
        )
