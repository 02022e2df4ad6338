"""Encode a table's columns as rows of numbers: labels, weights, numeric and one-hot features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray

from elasticml.data.chunks.chunker import Rows
from elasticml.errors import ConfigError, DataError
from elasticml.specification.settings_model import did_you_mean

#: A column with more distinct values is most likely not categorical.
VOCABULARY_MAX: Final = 100_000
#: One-hot rows are dense if at least this share of a row is nonzero: 8 bytes a value against 12.
_DENSE_SHARE: Final = 2 / 3

Vocabularies = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """The roles of a table's columns, by name; ``features`` in the order of the table."""

    label: str
    weight: str | None
    features: tuple[str, ...]
    categorical: frozenset[str]

    @property
    def used(self) -> tuple[str, ...]:
        """All columns that must be read."""
        return (self.label, *([] if self.weight is None else [self.weight]), *self.features)

    @property
    def numeric(self) -> tuple[str, ...]:
        """All used columns that are numeric."""
        return tuple(name for name in self.used if name not in self.categorical)


def resolve_columns(
    names: Sequence[str],
    *,
    label: str | int,
    weight: str | int | None,
    categorical: Sequence[str | int],
    ignore: Sequence[str | int],
    path: str,
) -> TableColumns:
    """Resolve a job's columns, given by name or by position (from 0; -1 is the last).

    Raises
    ------
    ConfigError
        When a column does not exist (suggests the nearest name), or no feature is left.
    """

    def find(column: str | int, key: str) -> str:
        if isinstance(column, str) and column in names:
            return column
        if isinstance(column, int) and -len(names) <= column < len(names):
            return names[column]
        raise ConfigError(
            f"data.{key} names column {column!r}, which {path} does not have; it has "
            f"{', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
            f"{did_you_mean(column, names)}",
            key=f"data.{key}",
        )

    if len(set(names)) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise DataError(f"{path}, line 1: column {twice!r} is in the header twice", path=path)
    label_name = find(label, "label")
    weight_name = None if weight is None else find(weight, "weight")
    excluded = {label_name, weight_name, *(find(column, "ignore") for column in ignore)}
    features = tuple(name for name in names if name not in excluded)
    if not features:
        raise ConfigError(
            f"{path} has no column besides {label_name!r}, wanted features", path=path
        )
    return TableColumns(
        label=label_name,
        weight=weight_name,
        features=features,
        categorical=frozenset(find(column, "categorical") for column in categorical),
    )


def table_rows(
    table: Any,
    columns: TableColumns,
    vocabularies: Vocabularies,
    path: str,
    place: Callable[[int], str],
    counts: dict[str, int],
) -> Rows:
    """Encode a table as rows; categorical columns become one-hot at their position.

    Parameters
    ----------
    table : pyarrow.Table
        Contains ``columns.used``.
    place : callable
        Returns the position of a table's row in the file, for messages: "line 7".
    counts : dict, written
        Receives the number of values that are not in the vocabularies.

    Raises
    ------
    DataError
        For missing or infinite values, text in numeric columns, and unknown labels.
    """
    n = table.num_rows
    widths = [len(vocabularies[f]) if f in columns.categorical else 1 for f in columns.features]
    starts = np.concatenate(([0], np.cumsum(widths))).astype(np.int64)
    d, m = int(starts[-1]), len(columns.features)
    # One entry per feature column: its index in the row and its value, (n, m).
    values = np.empty((n, m))
    indices = np.broadcast_to(starts[:-1], (n, m)).copy()
    for j, name in enumerate(columns.features):
        if name in columns.categorical:
            codes = _codes(table, name, vocabularies[name], path, place)
            values[:, j] = codes >= 0
            indices[:, j] += np.maximum(codes, 0)
            _count_unknown(counts, name, codes)
        else:
            values[:, j] = numbers(table, name, path, place)
    labels = _labels(table, columns, vocabularies, path, place)
    weights = None if columns.weight is None else numbers(table, columns.weight, path, place)
    if weights is not None and np.any(weights < 0):
        row = int(np.argmax(weights < 0))
        raise DataError(
            f"{path}, {place(row)}, column {columns.weight!r}: weight is {weights[row]}, wanted at "
            "least 0",
            path=path,
        )
    if d == m and not columns.categorical & set(columns.features):
        return Rows(labels=labels, weights=weights, n_columns=d, dense=values)
    if m >= _DENSE_SHARE * d:
        dense = np.zeros((n, d))
        np.put_along_axis(dense, indices, values, axis=1)
        return Rows(labels=labels, weights=weights, n_columns=d, dense=dense)
    kept = values != 0
    return Rows(
        labels=labels,
        weights=weights,
        n_columns=d,
        indptr=np.concatenate(([0], np.cumsum(kept.sum(axis=1)))).astype(np.int64),
        indices=indices[kept].astype(np.int32),
        values=values[kept],
    )


def table_vocabularies(
    table: Any, columns: TableColumns, path: str, place: Callable[[int], str]
) -> dict[str, list[str]]:
    """Return the distinct values of the categorical columns, sorted.

    Raises
    ------
    DataError
        For missing values, and for a column with more than 100,000 distinct values.
    """
    vocabularies = {}
    for name in sorted(columns.categorical):
        texts = _texts(table, name, path, place)
        values = sorted(pyarrow.compute.unique(texts).to_pylist())
        if len(values) > VOCABULARY_MAX:
            raise DataError(
                f"column {name!r} of {path} has {len(values)} distinct values, at most "
                f"{VOCABULARY_MAX} become features; list it in data.ignore",
                path=path,
                column=name,
            )
        vocabularies[name] = values
    return vocabularies


def numbers(table: Any, name: str, path: str, place: Callable[[int], str]) -> NDArray[np.float64]:
    """Return a numeric column (n,); raises DataError for text, missing values and infinities."""
    column = table.column(name)
    kind = column.type
    is_number = pyarrow.types.is_floating(kind) or pyarrow.types.is_integer(kind)
    if not (is_number or pyarrow.types.is_boolean(kind) or pyarrow.types.is_decimal(kind)):
        raise DataError(
            f"column {name!r} of {path} holds {kind}, wanted numbers; list it in data.categorical "
            "or data.ignore",
            path=path,
            column=name,
        )
    floats = column.cast(pyarrow.float64(), safe=False)
    values: NDArray[np.float64] = floats.to_numpy()  # a missing value becomes NaN
    _refuse_missing(np.isnan(values), name, path, place)
    endless = np.isinf(values)
    if endless.any():
        row = int(np.argmax(endless))
        raise DataError(
            f"{path}, {place(row)}, column {name!r}: value is {values[row]}, wanted a finite "
            f"number ({int(endless.sum())} such values)",
            path=path,
            column=name,
        )
    return values


def _labels(
    table: Any,
    columns: TableColumns,
    vocabularies: Vocabularies,
    path: str,
    place: Callable[[int], str],
) -> NDArray[np.float64]:
    """Return labels (n,): numbers unchanged, texts as indices into the sorted vocabulary."""
    name = columns.label
    if name not in columns.categorical:
        return numbers(table, name, path, place)
    codes = _codes(table, name, vocabularies[name], path, place)
    if np.any(codes < 0):
        row = int(np.argmax(codes < 0))
        raise DataError(
            f"{path}, {place(row)}, column {name!r}: label is {table.column(name)[row].as_py()!r}, "
            f"wanted one of {', '.join(map(str, vocabularies[name][:20]))}",
            path=path,
            column=name,
        )
    return codes.astype(np.float64)


def _texts(table: Any, name: str, path: str, place: Callable[[int], str]) -> Any:
    column = table.column(name)
    if column.null_count:
        _refuse_missing(column.is_null().to_numpy(), name, path, place)
    return column.cast(pyarrow.string())


def _codes(
    table: Any, name: str, values: Sequence[str], path: str, place: Callable[[int], str]
) -> NDArray[np.int64]:
    """Return the indices of a column's values in its vocabulary, (n,); -1 for unknown values."""
    vocabulary = pyarrow.array(list(values), pyarrow.string())
    indices = pyarrow.compute.index_in(_texts(table, name, path, place), value_set=vocabulary)
    codes: NDArray[np.int64] = indices.fill_null(-1).to_numpy().astype(np.int64)
    return codes


def _count_unknown(counts: dict[str, int], name: str, codes: NDArray[np.int64]) -> None:
    unknown = int(np.count_nonzero(codes < 0))
    if unknown:
        shown = name.replace("{", "(").replace("}", ")")
        text = f"{{}} values of column {shown!r} were not seen in training and became zeros"
        counts[text] = counts.get(text, 0) + unknown


def _refuse_missing(
    missing: NDArray[np.bool_], name: str, path: str, place: Callable[[int], str]
) -> None:
    if missing.any():
        count = int(missing.sum())
        raise DataError(
            f"column {name!r} of {path} has {count} missing values, the first in "
            f"{place(int(np.argmax(missing)))}; impute them, remove the rows, or list the column "
            "in data.ignore",
            path=path,
            column=name,
            count=count,
        )
