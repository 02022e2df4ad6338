"""Read rows, labels and weights for an estimator from files and sources into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.arrays import is_named
from elasticml.data.chunks.rows import concatenated, matrix_of, rows_of_chunk
from elasticml.data.readers.tables import TableEncoder, TableFormat, encoder_of_numbers
from elasticml.data.source import (
    Source,
    infer_format,
    load_all,
    survey_all,
)
from elasticml.errors import ConfigError, DataError
from elasticml.models.row_input import RowInput, array_in, check_by_rows, source_named

#: Formats in which a column holds the labels.
_TABLES: Final = ("csv", "parquet")


def read(
    X: Any, y: Any, sample_weight: Any, n_columns: int | None, rows: RowInput | None
) -> tuple[Any, Any, Any, RowInput | None]:
    """Read files and sources; see :func:`elasticml.estimators.inputs.load_arrays`.

    Returns
    -------
    X, y, sample_weight
    rows : RowInput or None
        The encoding of X if it is a table.
    """
    given, rows = rows, None
    if not isinstance(X, str | os.PathLike) and is_named(X):
        X, labels, weights, rows = _rows(X, n_columns, given)
    elif not isinstance(X, str | os.PathLike):
        labels, weights = None, None
    elif os.fspath(X).endswith(".npy"):
        X, labels, weights = _array(X), None, None
    else:
        source, y = _source_named(os.fspath(X), y)
        X, labels, weights, rows = _rows(source, n_columns, given)
    y = labels if y is None else y
    sample_weight = weights if sample_weight is None else sample_weight
    y, sample_weight = (
        _array(one) if isinstance(one, str | os.PathLike) else one for one in (y, sample_weight)
    )
    return X, y, sample_weight, rows


def refuse_table(X: Any) -> None:
    """Refuse the name of a file that does not say which of its columns holds labels."""
    if isinstance(X, str | os.PathLike) and infer_format(os.fspath(X)) in _TABLES:
        raise ConfigError(
            f"{os.fspath(X)} does not say which of its columns holds labels: give a source, such "
            "as em.read_csv(path, label=...)"
        )


def _array(name: str | os.PathLike[str]) -> NDArray[Any]:
    path = os.fspath(name)
    if not path.endswith(".npy"):
        raise ConfigError(
            f"y or sample_weight is {path!r}, wanted an array or the path of an .npy file"
        )
    return np.array(array_in(path))


def _source_named(name: str, y: Any) -> tuple[Source, Any]:
    """Return a file's source, and ``y``, which is None if it named the column of labels."""
    if infer_format(name) not in _TABLES:
        return source_named(name), y
    if y is not None and not isinstance(y, str | int | np.integer):
        raise ConfigError(
            f"y of {name} is a {type(y).__name__}, wanted the name or index of its column of labels"
        )
    label = -1 if y is None else y if isinstance(y, str) else int(y)
    return source_named(name, label=label), None


def _numbers_by_name(source: TableFormat, names: Sequence[str]) -> TableEncoder:
    """Return the encoding of a table whose features are the columns of these names, as numbers."""
    ready: Any = survey_all(source)
    fitted: TableEncoder = ready.fitted_encoder()
    numbers = encoder_of_numbers(names)
    numbers.check_names(source.names_and_types()[0], source.path)
    return replace(fitted, columns=numbers.columns)


def _rows(
    source: Source, n_columns: int | None, given: RowInput | None
) -> tuple[Any, NDArray[Any], NDArray[Any] | None, RowInput | None]:
    check_by_rows(source)
    if given is not None and (given.encoder or given.names) and isinstance(source, TableFormat):
        source = source.with_encoder(given.encoder or _numbers_by_name(source, given.names))
    ready = survey_all(source if n_columns is None else source.with_columns(n_columns))
    chunks = load_all(ready)
    if not chunks:
        path = str(source.spec().get("path", "the source"))
        raise DataError(f"{path} holds no examples, wanted at least one")
    rows = concatenated([rows_of_chunk(chunk) for chunk in chunks])
    width, labels = n_columns or rows.n_columns, rows.labels
    encoder = ready.fitted_encoder() if isinstance(ready, TableFormat) else None
    if encoder is not None and encoder.classes is not None:
        labels = np.array(encoder.classes)[labels.astype(np.int64)]
    table = None if encoder is None else RowInput(n_columns=width, encoder=encoder)
    return matrix_of(replace(rows, n_columns=width)), labels, rows.weights, table
