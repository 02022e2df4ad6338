"""What all tables have in common, whether they are in files, in frames or in Dask collections.

That is the roles of their columns, the survey of the training rows, the encoder fitted to it, and
how it makes numbers of rows.
"""

from __future__ import annotations

import itertools
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray
from pydantic import Field, field_serializer, field_validator
from pydantic.json_schema import SkipJsonSchema

from elasticml.data.chunks.chunk import Chunk, Layout
from elasticml.data.chunks.rows import Rows, matrix_of, rows_of_matrix
from elasticml.data.dataset_stats import (
    BlockSummary,
    ColumnMoments,
    ColumnSurvey,
    DatasetStats,
    merge_moments,
    moments_of,
    survey_numbers,
    survey_texts,
)
from elasticml.data.formats import Format
from elasticml.data.json_record import JsonRecord
from elasticml.data.source import HeldOut
from elasticml.errors import ConfigError, DataError, one_line, shown
from elasticml.specification.settings_model import (
    AS_TUPLE,
    KEEP_INT,
    Count,
    Flag,
    did_you_mean,
)

#: One-hot rows are dense if at least this share of a row is nonzero: 8 bytes a value against 12.
_DENSE_SHARE: Final = 2 / 3
_DAY_US: Final = 86_400_000_000

#: Texts that mean a missing value, as in pandas, and the question mark of many public tables.
MISSING: Final = (
    *("", "?", "NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "NaN", "nan", "-NaN", "-nan"),
    *("NULL", "null", "None", "-1.#IND", "1.#IND", "-1.#QNAN", "1.#QNAN"),
)

_NUMBER: Final = re.compile(
    r"[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|inf|infinity|nan)", re.IGNORECASE | re.ASCII
)

ColumnType = Literal["number", "boolean", "text", "date"]
_MONTH_FIRST: Final = r"(\d\d?)/(\d\d?)/(\d{4})"
#: The ways to write a date, and how each becomes that of ISO 8601.
_DATES: Final = {
    r"(\d{4})[-/](\d\d?)[-/](\d\d?)": r"\1-\2-\3",
    r"(\d\d?)\.(\d\d?)\.(\d{4})": r"\3-\2-\1",
    _MONTH_FIRST: r"\3-\1-\2",
}
_TIME: Final = r"([ T]\d\d?:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d(:?\d\d)?)?)?"
#: Months, days and hours of one digit, in dates that begin with the year.
_ONE_DIGIT: Final = (r"^(\d{4}-)(\d\b)", r"^(\d{4}-\d\d-)(\d\b)", r"^([\d-]{10}[ T])(\d:)")
Place = Callable[[int], str]
F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnEncoding(JsonRecord):
    """The fitted encoding of one feature column."""

    without_defaults: ClassVar[bool] = True

    name: str
    kind: Literal["number", "category", "hash", "date"]
    #: What replaces a missing number; None if missing values are an error.
    fill: float | None = None
    #: Whether a further column marks missing numbers.
    indicator: bool = False
    #: Values with a column each, sorted; None, the last, is the missing value.
    categories: tuple[str | None, ...] = ()
    #: Whether all other values share a column.
    other: bool = False
    #: Number of columns into which values are hashed.
    buckets: Annotated[int, Field(ge=0)] = 0
    #: The numbers that represent a date.
    parts: tuple[str, ...] = ()
    #: Whether the numbers 0 and 1 are false and true.
    is_boolean: bool = False
    #: Whether the categories are the column's own values, not numbers written as text.
    is_text: bool = False

    @property
    def width(self) -> int:
        """Number of columns of the encoded rows."""
        if self.kind == "category":
            return len(self.categories) + self.other
        if self.kind == "hash":
            return self.buckets
        return (len(self.parts) if self.kind == "date" else 1) + self.indicator

    def names(self) -> Iterator[str]:
        """Yield the names of the encoded columns."""
        if self.kind == "hash":
            yield from (f"{self.name}#{bucket}" for bucket in range(self.buckets))
        elif self.kind == "category":
            yield from (f"{self.name}={'' if c is None else c}" for c in self.categories)
            if self.other:
                yield f"{self.name}=(other)"
        else:
            yield from [f"{self.name}.{part}" for part in self.parts] or [self.name]
            if self.indicator:
                yield f"{self.name} is missing"

    def entries(
        self, table: Any, path: str, place: Place, unknown: str, counts: dict[str, int]
    ) -> list[tuple[F64, NDArray[np.int64] | int]]:
        """Return the column's values and their positions within its encoded columns, each (n,).

        Raises
        ------
        DataError
            For missing, infinite and unknown values that the encoding does not accept.
        """
        if self.kind == "category":
            codes = self._codes(table, path, place)
            missed = codes < 0
            if unknown == "error" and missed.any():
                row = int(np.argmax(missed))
                value = table.column(self.name)[row].as_py()
                wanted = "one that training saw; correct it, or set data.unknown: ignore"
                raise _wrong_value(path, place(row), self.name, value, wanted)
            if self.other:
                return [(np.ones(codes.size), np.where(missed, len(self.categories), codes))]
            _count_unknown(counts, self.name, missed)
            return [((~missed).astype(np.float64), np.maximum(codes, 0))]
        if self.kind == "hash":
            return [(np.ones(table.num_rows), self._buckets(table))]
        read = days_of if self.kind == "date" else numbers
        column = read(table, self.name, path, place, self.fill is not None)
        missing = np.isnan(column)
        if missing.any():
            text = f"{{}} missing values of column {_shown(self.name)!r} became {self.fill:.6g}"
            counts[text] = counts.get(text, 0) + int(missing.sum())
        filled = column if self.fill is None else np.where(missing, self.fill, column)
        found = date_parts(filled, self.parts) if self.kind == "date" else [filled]
        entries: list[tuple[F64, NDArray[np.int64] | int]] = [
            (one, at) for at, one in enumerate(found)
        ]
        if self.indicator:
            entries.append((missing.astype(np.float64), len(found)))
        return entries

    def _codes(self, table: Any, path: str, place: Place) -> NDArray[np.int64]:
        """Return the indices of the values in ``categories``, (n,); -1 for unknown values."""
        column = texts(table, self.name, path, place, self.fill is not None)
        return _indices(column, self.categories)

    def _buckets(self, table: Any) -> NDArray[np.int64]:
        column = as_texts(table.column(self.name)).combine_chunks().dictionary_encode()
        if isinstance(column, pyarrow.ChunkedArray):
            column = column.unify_dictionaries().combine_chunks()
        hashed = [
            zlib.crc32(text.encode()) % self.buckets for text in column.dictionary.to_pylist()
        ]
        # A missing value is hashed like an empty text.
        by_code = np.array([*hashed, zlib.crc32(b"") % self.buckets], np.int64)
        codes: NDArray[np.int64] = by_code[column.indices.fill_null(len(hashed)).to_numpy()]
        return codes


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEncoder(JsonRecord):
    """The fitted map from a table's rows to rows of numbers, and from its labels to codes."""

    without_defaults: ClassVar[bool] = True

    label: str
    #: Words of the label codes 0, 1, ...; None if labels are numbers.
    classes: tuple[str, ...] | None
    #: Whether the words are true and false.
    is_boolean: bool = False
    weight: str | None
    columns: tuple[ColumnEncoding, ...]
    #: Whether rows without a label are skipped.
    skips_unlabelled: bool = False
    unknown: str = "ignore"
    missing_columns: str = "error"
    extra_columns: str = "ignore"
    #: Reader options of CSV files.
    delimiter: str | None = None
    header: bool = True
    na_values: tuple[str, ...] = ()
    #: Sentences about columns that were found to be categorical, or have many values.
    notes: tuple[str, ...] = ()

    @property
    def n_columns(self) -> int:
        """Number of columns of the encoded rows."""
        return sum(column.width for column in self.columns)

    @property
    def used(self) -> tuple[str, ...]:
        """Columns of training data."""
        return (
            self.label,
            *([] if self.weight is None else [self.weight]),
            *(column.name for column in self.columns),
        )

    @property
    def types(self) -> dict[str, ColumnType]:
        """The types as which columns of text files are read; dates are texts."""
        found: dict[str, ColumnType] = dict.fromkeys(self.used, "number")
        for column in self.columns:
            if column.is_boolean or column.kind != "number":
                found[column.name] = "boolean" if column.is_boolean else "text"
        if self.classes is not None:
            found[self.label] = "boolean" if self.is_boolean else "text"
        return found

    @property
    def is_plain(self) -> bool:
        """Whether names and vocabularies say all: there are no fills, hashes, dates."""
        return all(
            column.fill is None and not column.other and column.kind in ("number", "category")
            for column in self.columns
        )

    def names(self, most: int | None = None) -> list[str]:
        """Return the names of the encoded columns, or of the first ``most`` of them."""
        return list(
            itertools.islice((name for column in self.columns for name in column.names()), most)
        )

    def vocabularies(self) -> dict[str, list[str]]:
        """Return the values of the categorical columns, the label's included."""
        some = {
            c.name: [text for text in c.categories if text is not None]
            for c in self.columns
            if c.kind == "category"
        }
        if self.classes is not None and not self.is_boolean:
            some[self.label] = list(self.classes)
        return dict(sorted(some.items()))

    # --- rows ---------------------------------------------------------------------------------

    def rows(self, table: Any, path: str, place: Place, counts: dict[str, int]) -> Rows:
        """Encode a table with labels; ``counts`` receives what notes say.

        Raises
        ------
        DataError
            For missing or infinite values, text in numeric columns, and unknown labels.
        """
        if self.label not in table.column_names:
            raise DataError(
                f"{path} has no column {shown(self.label)}, which holds the labels; give y"
            )
        check_columns(path, table.column_names, [column.name for column in self.columns])
        given = table.num_rows
        if self.skips_unlabelled:
            table, place = with_label(table, self.label, place)
        if skipped := given - table.num_rows:
            text = f"{{}} rows without a label in column {_shown(self.label)!r} were skipped"
            counts[text] = counts.get(text, 0) + skipped
        features = self.features(table, path, place, counts)
        labels = self.labels(table, path, place)
        weights = None
        # Data to score may lack the weights.
        if self.weight is not None and self.weight in table.column_names:
            weights = numbers(table, self.weight, path, place)
            if np.any(weights < 0):
                row = int(np.argmax(weights < 0))
                raise _wrong_value(path, place(row), self.weight, weights[row], "at least 0")
        return replace(features, labels=labels, weights=weights)

    def features(self, table: Any, path: str, place: Place, counts: dict[str, int]) -> Rows:
        """Encode a table's features; all labels are 0.

        Raises
        ------
        DataError
            As :meth:`rows`.
        """
        n, d, start = table.num_rows, self.n_columns, 0
        values, indices = [], []
        for column in self.columns:
            for numbers_, at in column.entries(table, path, place, self.unknown, counts):
                values.append(numbers_)
                indices.append(np.broadcast_to(np.asarray(at + start, np.int64), n))
            start += column.width
        labels, m = np.zeros(n), len(values)
        X: Any = np.column_stack(values) if n else np.empty((0, m))
        if all(column.kind in ("number", "date") for column in self.columns):
            return rows_of_matrix(X, labels)
        places = np.column_stack(indices) if n else np.empty((0, m), np.int64)
        if m >= _DENSE_SHARE * d:
            dense = np.zeros((n, d))
            np.put_along_axis(dense, places, X, axis=1)
            return rows_of_matrix(dense, labels)
        kept = X != 0
        indptr = np.concatenate(([0], np.cumsum(kept.sum(axis=1)))).astype(np.int64)
        return Rows(
            labels=labels,
            n_columns=d,
            indptr=indptr,
            indices=places[kept].astype(np.int32),
            values=X[kept],
        )

    def labels(self, table: Any, path: str, place: Place) -> F64:
        """Return labels (n,): numbers unchanged, words as indices into the sorted classes."""
        name = self.label
        if self.classes is None or self.is_boolean:
            return numbers(table, name, path, place)
        codes = _indices(texts(table, name, path, place, False), self.classes)
        if np.any(codes < 0):
            row = int(np.argmax(codes < 0))
            wanted = f"a label, one of {', '.join(map(str, self.classes[:20]))}"
            raise _wrong_value(path, place(row), name, table.column(name)[row].as_py(), wanted)
        return codes.astype(np.float64)

    def check_names(self, names: Sequence[str], what: str) -> None:
        """Check the columns of data to predict, as the settings say.

        Raises
        ------
        DataError
            When columns are missing, or further ones are an error.
        """
        wanted = [column.name for column in self.columns]
        missing = [name for name in wanted if name not in names]
        if missing and self.missing_columns == "error":
            raise DataError(
                f"{what} lacks column{'s' * (len(missing) > 1)} {listed(missing)}, wanted "
                f"{listed(wanted)} as in training; add them, or train with "
                "data.missing_columns: fill"
            )
        extra = [name for name in names if name not in self.used]
        if extra and self.extra_columns == "error":
            raise DataError(
                f"{what} has column{'s' * (len(extra) > 1)} {listed(extra)}, which training did "
                "not have; drop them, or train with data.extra_columns: ignore"
            )

    def filled(self, table: Any) -> Any:
        """Return a table with the columns that it lacks, all their values missing."""
        for column in self.columns:
            if column.name not in table.column_names:
                kind = pyarrow.float64() if column.kind == "number" else pyarrow.string()
                table = table.append_column(column.name, pyarrow.nulls(table.num_rows, kind))
        return table


def _indices(column: Any, vocabulary: Sequence[str | None]) -> NDArray[np.int64]:
    """Return the indices of a column's texts in a vocabulary, (n,); -1 for others."""
    values = pyarrow.array(list(vocabulary), pyarrow.string())
    indices = pyarrow.compute.index_in(column, value_set=values)
    codes: NDArray[np.int64] = indices.fill_null(-1).to_numpy().astype(np.int64)
    return codes


def encoder_of_numbers(names: Sequence[str]) -> TableEncoder:
    """Return the encoder of a table whose columns are numbers, and that has no labels."""
    columns = tuple(ColumnEncoding(name=name, kind="number") for name in names)
    return TableEncoder(label="", classes=None, weight=None, columns=columns)


def with_label(table: Any, label: str, place: Place) -> tuple[Any, Place]:
    """Return the rows that have a label, and the function that locates them."""
    missing: NDArray[np.bool_] = table.column(label).is_null(nan_is_null=True).to_numpy()
    return some_rows(table, place, ~missing)


def some_rows(table: Any, place: Place, mask: NDArray[np.bool_]) -> tuple[Any, Place]:
    """Return the rows of a mask, and the function that locates them."""
    if mask.all():
        return table, place
    kept = np.flatnonzero(mask)
    return table.take(kept), lambda row: place(int(kept[row]))


# Frames as Arrow tables; Arrow columns as numbers, texts and dates.


def arrow_table(X: Any, what: str = "the frame") -> Any:
    """Return a frame (pandas, polars, any library that exports Arrow) as an Arrow table.

    Raises
    ------
    DataError
        When ``what`` is a single column, has two columns of one name, or a column without a common
        type.
    """
    if isinstance(X, pyarrow.Table):
        return X
    if isinstance(X, pyarrow.RecordBatch):
        return pyarrow.Table.from_batches([X])
    try:
        if hasattr(X, "iloc"):  # pandas would add its index as a column
            table = pyarrow.Table.from_pandas(X, preserve_index=False)
        else:
            table = pyarrow.table(X)
    except (pyarrow.ArrowException, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{what} cannot be read as a table: {one_line(error)}") from None
    # Arrow takes no rows of views, in which polars keeps text.
    kinds = [
        pyarrow.large_string() if pyarrow.types.is_string_view(kind) else kind
        for kind in table.schema.types
    ]
    schema = pyarrow.schema(zip(map(str, table.column_names), kinds, strict=True))
    return table.rename_columns(schema.names).cast(schema)


def arrow_column(values: Any, what: str) -> Any:
    """Return a series of any library, or an array, as an Arrow column."""
    if hasattr(values, "to_frame"):
        return arrow_table(values.to_frame("column"), what).column(0)
    return pyarrow.array(np.ravel(np.asarray(values)), from_pandas=True)


def append_columns(table: Any, columns: Mapping[str, Any], what: str) -> Any:
    """Return a table with further columns, such as labels that are a series of their own.

    Raises
    ------
    DataError
        When one has another number of values than ``what``.
    """
    for name, values in columns.items():
        column = arrow_column(values, what)
        if len(column) != table.num_rows:
            raise DataError(
                f"{what} has {table.num_rows} rows and {len(column)} values of {name}, wanted one "
                "each"
            )
        table = table.append_column(name, column)
    return table


def type_of_arrow(kind: Any) -> ColumnType:
    """Return the type of an Arrow column; other than text, booleans and dates are numbers."""
    types = pyarrow.types
    if types.is_dictionary(kind):
        return "text"
    if types.is_boolean(kind):
        return "boolean"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "date"
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return "text" if is_text else "number"


def numbers(table: Any, name: str, path: str, place: Place, accepts_missing: bool = False) -> F64:
    """Return a numeric column (n,), missing values as NaN.

    Raises
    ------
    DataError
        For text, infinities, and missing values unless they are accepted.
    """
    column = table.column(name)
    kind = column.type
    if pyarrow.types.is_null(kind):
        column = column.cast(pyarrow.float64())
    elif type_of_arrow(kind) == "text":
        column = _parsed(column, name, path, place)
    elif not _is_numeric(kind):
        raise DataError(
            f"column {shown(name)} of {path} holds {kind}, wanted numbers; list it in "
            "data.categorical or data.ignore"
        )
    if pyarrow.types.is_boolean(column.type):
        column = column.cast(pyarrow.uint8())
    values: F64 = column.cast(pyarrow.float64(), safe=False).to_numpy()
    if not accepts_missing:
        _refuse_missing(np.isnan(values), name, path, place)
    endless = np.isinf(values)
    if endless.any():
        row = int(np.argmax(endless))
        wanted = f"a finite number ({int(endless.sum())} such values)"
        raise _wrong_value(path, place(row), name, values[row], wanted)
    return values


def texts(table: Any, name: str, path: str, place: Place, accepts_missing: bool) -> Any:
    """Return a column as text, a ChunkedArray.

    Raises
    ------
    DataError
        For missing values unless they are accepted, and for lists, records and other values.
    """
    try:
        column = as_texts(table.column(name))
    except (pyarrow.ArrowNotImplementedError, pyarrow.ArrowInvalid) as error:
        raise DataError(
            f"column {shown(name)} of {path} cannot be categories ({one_line(error)}); list it in "
            "data.ignore"
        ) from None
    if column.null_count and not accepts_missing:
        _refuse_missing(column.is_null().to_numpy(), name, path, place)
    return column


def as_texts(column: Any) -> Any:
    """Return a column's values as text; whole numbers without a point, NaN as missing."""
    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not pyarrow.types.is_floating(column.type):
        return column.cast(pyarrow.string())
    compute = pyarrow.compute
    column = compute.if_else(compute.is_nan(column), None, column)
    # A whole number may have been read beside missing values; no text of it is rounded.
    is_whole = compute.equal(compute.floor(column), column)
    is_whole = compute.and_(is_whole, compute.less(compute.abs(column), 2.0**63))
    whole = column.cast(pyarrow.int64(), safe=False).cast(pyarrow.string())
    return compute.if_else(is_whole, whole, column.cast(pyarrow.string()))


def date_parts(days: F64, parts: Sequence[str]) -> list[F64]:
    """Return the numbers that represent dates, each (n,).

    Days count from 1970-01-01, UTC; weekdays from Monday, which is 0; hours are fractions.
    """
    stamps = pyarrow.array((days * _DAY_US).round().astype(np.int64), pyarrow.timestamp("us"))
    calendar = {
        "year": pyarrow.compute.year,
        "month": pyarrow.compute.month,
        "day": pyarrow.compute.day,
        "weekday": pyarrow.compute.day_of_week,
    }
    found = {"days": days, "hour": (days % 1.0) * 24.0}
    return [
        found[part] if part in found else calendar[part](stamps).to_numpy().astype(np.float64)
        for part in parts
    ]


def are_dates(texts: Iterable[str]) -> bool:
    """Whether texts are dates, all written in one way.

    ``1/2/2013`` counts only if another text shows that the month is first.
    """
    for order in _DATES:
        date = re.compile(order + _TIME)
        if all(date.fullmatch(text) for text in texts):
            return order != _MONTH_FIRST or any(int(text.split("/")[1]) > 12 for text in texts)
    return False


def _iso(column: Any) -> Any:
    """Return texts of dates as ISO 8601 writes them."""
    for order, iso in _DATES.items():
        column = pyarrow.compute.replace_substring_regex(column, f"^{order}", iso)
    for one in _ONE_DIGIT:
        column = pyarrow.compute.replace_substring_regex(column, one, r"\10\2")
    return column


def days_of(table: Any, name: str, path: str, place: Place, accepts_missing: bool) -> F64:
    """Return a column of dates as days since 1970, (n,), missing ones as NaN.

    Raises
    ------
    DataError
        For text that is no date, and missing values unless they are accepted.
    """
    column = table.column(name)
    if type_of_arrow(column.type) == "text":
        column = column.cast(pyarrow.string())
        kinds = (pyarrow.timestamp("us"), pyarrow.timestamp("us", "UTC"))
        for as_iso, kind in itertools.product((False, True), kinds):
            try:
                column = (_iso(column) if as_iso else column).cast(kind)
                break
            except pyarrow.ArrowInvalid:
                continue
        else:
            row = max(first_wrong(_iso(column), kind)[0] for kind in kinds)
            value = column[row].as_py()
            raise wrong_cell(path, place(row), name, value, "a date as 2013-01-31")
    elif type_of_arrow(column.type) != "date" and not pyarrow.types.is_null(column.type):
        raise DataError(f"column {shown(name)} of {path} holds {column.type}, wanted dates")
    missing = column.is_null().to_numpy()
    if not accepts_missing:
        _refuse_missing(missing, name, path, place)
    unzoned = (
        column if pyarrow.types.is_timestamp(column.type) else column.cast(pyarrow.timestamp("us"))
    )
    stamps = unzoned.cast(pyarrow.timestamp("us", unzoned.type.tz), safe=False)
    micros = stamps.cast(pyarrow.int64()).fill_null(0).to_numpy()
    return np.where(missing, np.nan, micros / _DAY_US)


def _parsed(column: Any, name: str, path: str, place: Place) -> Any:
    """Return a column of text as numbers, which they were in training."""
    cells = without_missing(column.cast(pyarrow.string()), MISSING)
    bare = pyarrow.compute.utf8_trim_whitespace(cells)
    try:
        return bare.cast(pyarrow.float64())
    except pyarrow.ArrowInvalid:
        row, value = first_wrong(bare, pyarrow.float64())
        raise wrong_cell(path, place(row), name, value, "a number") from None


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    return _NUMBER.fullmatch(text.strip()) is not None


def without_missing(column: Any, missing: Sequence[str]) -> Any:
    """Return a column of text in which the texts that mean a missing value are null.

    Blanks around them do not count; other texts keep theirs.
    """
    bare = pyarrow.compute.utf8_trim_whitespace(column)
    is_missing = pyarrow.compute.is_in(bare, value_set=pyarrow.array(missing, pyarrow.string()))
    return pyarrow.compute.if_else(is_missing, pyarrow.scalar(None, pyarrow.string()), column)


def first_wrong(cells: Any, kind: Any) -> tuple[int, str]:
    """Return the first text that is not of an Arrow type, and its row; there must be one."""
    start, stop = 0, len(cells)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            cells.slice(start, middle - start).cast(kind)
            start = middle
        except pyarrow.ArrowInvalid:
            stop = middle
    return start, cells[start].as_py()


def wrong_cell(path: str, place: str, column: str, value: str, wanted: str) -> DataError:
    """Return the error about a cell that its column cannot hold."""
    remedy = (
        "correct it, add it to data.na_values if it means a missing value, or list the column in "
        "data.categorical or data.ignore"
    )
    return _wrong_value(path, place, column, value[:40], f"{wanted}; {remedy}")


def _wrong_value(path: str, place: str, column: str, value: Any, wanted: str) -> DataError:
    got = repr(value) if isinstance(value, str) else value
    return DataError(f"{path}, {place}, column {shown(column)}: value is {got}, wanted {wanted}")


def _is_numeric(kind: Any) -> bool:
    types = pyarrow.types
    return bool(
        types.is_floating(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
    )


def _count_unknown(counts: dict[str, int], name: str, missed: NDArray[np.bool_]) -> None:
    unknown = int(np.count_nonzero(missed))
    if unknown:
        text = f"{{}} values of column {_shown(name)!r} were not seen in training and became zeros"
        counts[text] = counts.get(text, 0) + unknown


def _shown(name: str) -> str:
    """Return a name without braces, which templates of notes use for counts."""
    return name.replace("{", "(").replace("}", ")")


def check_columns(path: str, there: Sequence[str], names: Sequence[str]) -> None:
    """Check that data have the columns of the first file, or of the training data.

    Raises
    ------
    DataError
        When they lack one.
    """
    missing = [name for name in names if name not in there]
    if missing:
        raise DataError(
            f"{path} lacks column {shown(missing[0])} ({len(missing)} in all), wanted the columns "
            f"of the training data; it has {listed(there)}"
        )


def listed(names: Sequence[str]) -> str:
    """Return the first ten names for a sentence."""
    return ", ".join(map(shown, names[:10])) + (", ..." if len(names) > 10 else "")


def _refuse_missing(missing: NDArray[np.bool_], name: str, path: str, place: Place) -> None:
    if missing.any():
        count = int(missing.sum())
        raise DataError(
            f"column {shown(name)} of {path} has {count} missing values, the first in "
            f"{place(int(np.argmax(missing)))}; impute them by data.missing: median (in Python "
            'em.read_csv(path, label, missing="median"), em.from_frame(frame, y, missing="median") '
            "or another reader, also as X of an estimator), remove the rows, or list the column in "
            "data.ignore"
        )


#: Most distinct values of a column that the user lists as categorical.
VOCABULARY_MAX: Final = 100_000
#: Most distinct values of a column that is categorical because it holds text.
VOCABULARY_OF_TEXT: Final = 1000
#: Tables with more columns are not searched for columns to warn of.
_MOMENTS_MAX: Final = 1000
#: Nor are categorical columns with more values.
_VALUES_MAX: Final = 50


#: A column: its name, or its position.
Column = int | str
#: Given as any sequence.
Columns = Annotated[Sequence[Column], AS_TUPLE]
#: How missing numbers are filled: with a column's mean, median, or a constant.
Fill = Literal["error", "mean", "median"] | Annotated[float, KEEP_INT]
DatePart = Literal["days", "year", "month", "day", "weekday", "hour"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """The roles of a table's columns, by name; ``features`` in the order of the table."""

    label: str
    weight: str | None
    features: tuple[str, ...]
    #: Columns that the user lists as categorical.
    listed: frozenset[str]
    #: Columns in which text is an error: the weights, and those that the user lists as numeric.
    numeric: frozenset[str]
    #: Type of each used column.
    types: Mapping[str, ColumnType]

    @property
    def used(self) -> tuple[str, ...]:
        """All columns that must be read."""
        return (self.label, *([] if self.weight is None else [self.weight]), *self.features)

    @property
    def categorical(self) -> tuple[str, ...]:
        """All columns with a vocabulary, sorted."""
        text = {name for name in (self.label, *self.features) if self.types[name] == "text"}
        return tuple(sorted(text | self.listed))


class TableFormat(Format):
    """A table, whose rows an encoder turns into numbers; it is fitted to the training rows.

    Parameters
    ----------
    label, weight : str or int
        Column name, or position from 0; -1 is the last column.
    categorical : sequence of str or int
        Columns to encode as one-hot at their position, with values sorted, besides those that hold
        text. May include the label, whose values become 0, 1, ... in sorted order. A column holds
        numbers if all its cells in all rows are numbers or missing, else text; it may also hold
        ``true`` and ``false`` alone, or dates such as ``2013-01-31``,
        ``2013-01-31T05:15:00Z``, ``2013/1/31`` or ``31.1.2013``; ``1/31/2013`` where a day above 12
        shows that the month is first.
        The result's notes name the first text of each column.
    numeric : sequence of str or int
        Columns in which text is an error, which names its line; it does not make them categories.
        Where all columns are numbers and listed, a pass over the data is saved.
    ignore : sequence of str or int
        Columns that are not features.
    missing : "error", "mean", "median" or float
        Missing values: an error; or numbers are replaced by the column's mean, median or a
        constant, missing categories become one of their own, and rows without a label are skipped.
    missing_indicator : bool
        Whether each column of numbers gets another one that marks the missing ones.
    max_categories : int, optional
        Most categories of a column; by default 100,000 if ``categorical`` lists it, else 1,000.
    rare : "other" or "hash"
        In columns with more values: the less frequent ones share a column, or all values are
        hashed into ``max_categories`` columns.
    dates : sequence of "days", "year", "month", "day", "weekday", "hour"
        Numbers that represent a date: days since 1970, weekdays from Monday, which is 0.
    unknown : "ignore" or "error"
        At prediction, values that training did not see: zeros (or the shared column), or an error.
    missing_columns : "error" or "fill"
        At prediction, columns that the data lack: an error, or their values are missing.
    extra_columns : "ignore" or "error"
        At prediction, columns that training did not have.
    """

    path: str = Field(kw_only=False, description="local path, or URL that fsspec opens")
    label: Column = Field(
        kw_only=False,
        description="column of the labels: its name, or its position from 0; -1 is the last",
    )
    weight: Column | None = None
    categorical: Columns = ()
    numeric: Columns = ()
    ignore: Columns = ()
    missing: Fill = "error"
    missing_indicator: Flag = False
    max_categories: Count | None = None
    rare: Literal["other", "hash"] = "other"
    dates: Annotated[Sequence[DatePart], AS_TUPLE, Field(min_length=1)] = ("days",)
    unknown: Literal["ignore", "error"] = "ignore"
    missing_columns: Literal["error", "fill"] = "error"
    extra_columns: Literal["ignore", "error"] = "ignore"
    #: The fitted encoding of the columns, from a survey of all blocks, or of the training data.
    encoder: SkipJsonSchema[Any] = Field(default=None, repr=False)
    #: Columns that the survey has made categories, and the cell that is no number of each.
    words: SkipJsonSchema[dict[str, str] | None] = Field(default=None, repr=False)

    @field_validator("encoder", mode="after")
    @classmethod
    def _read_encoder(cls, fitted: Any) -> Any:
        return TableEncoder.from_json(fitted) if isinstance(fitted, Mapping) else fitted

    @field_serializer("encoder")
    def _write_encoder(self, encoder: Any) -> Any:
        return None if encoder is None else encoder.to_json()

    def check(self) -> None:
        """Check constraints between fields."""
        if self.missing == "error" and self.missing_columns == "fill":
            raise ValueError("missing_columns: got fill, wanted missing: mean, median, a number")
        if self.missing == "error" and self.missing_indicator:
            raise ValueError("missing_indicator: got true, wanted missing: mean, median, a number")

    @property
    def needs_survey(self) -> bool:
        """Whether the encoding depends on all blocks and was not fitted yet."""
        if self.encoder is not None:
            return False
        if self.categorical:
            return True
        columns = self.roles()
        has_numbers = any(columns.types[name] != "text" for name in columns.features)
        return bool(columns.categorical) or (self.missing in ("mean", "median") and has_numbers)

    def names_and_types(self) -> tuple[Sequence[str], Sequence[ColumnType]]:
        """Return the names and types of the columns."""
        raise NotImplementedError

    def _separated(self) -> str:
        """Return how columns are separated, for messages."""
        return ""

    def roles(self) -> TableColumns:
        """Return the roles of the columns, given by name or by position (from 0; -1 is the last).

        Raises
        ------
        ConfigError
            When a column does not exist (suggests the nearest name), or no feature is left.
        """
        names, types = self.names_and_types()

        def find(column: str | int, key: str) -> str:
            if isinstance(column, str) and column in names:
                return column
            if isinstance(column, int) and -len(names) <= column < len(names):
                return names[column]
            raise ConfigError(
                f"data.{key} names column {shown(column)}, which {self.path} does not have; it has "
                f"{', '.join(map(shown, names[:20]))}{', ...' if len(names) > 20 else ''}"
                f"{self._separated()}{did_you_mean(column, names)}"
            )

        if len(set(names)) != len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise DataError(f"{self.path}, line 1: column {shown(twice)} is in the header twice")
        label = find(self.label, "label")
        weight = None if self.weight is None else find(self.weight, "weight")
        excluded = {label, weight, *(find(column, "ignore") for column in self.ignore)}
        features = tuple(name for name in names if name not in excluded)
        if not features:
            raise ConfigError(
                f"{self.path} has no column besides {label!r}{self._separated()}, wanted features"
            )
        listed = frozenset(find(column, "categorical") for column in self.categorical)
        numeric = frozenset(find(column, "numeric") for column in self.numeric)
        both = sorted(listed & numeric)
        if both:
            raise ConfigError(
                f"data.numeric and data.categorical both name column {shown(both[0])}; name it in "
                "one"
            )
        by_name = dict(zip(names, types, strict=True)) | dict.fromkeys(self.words or (), "text")
        by_name |= dict.fromkeys(numeric, "number")
        return TableColumns(
            label=label,
            weight=weight,
            features=features,
            listed=listed & {label, *features},
            numeric=numeric if weight is None else numeric | {weight},
            types={name: by_name[name] for name in names if name not in excluded or name == label},
        )

    def options(self) -> dict[str, Any]:
        """Return the options that differ from the defaults."""
        given = self.model_dump(mode="json", exclude_defaults=True, exclude={"encoder", "words"})
        return {"format": self.format, **given}

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        if self.encoder is not None:
            return {**super().spec(), "encoder": self.encoder.to_json()}
        return {**super().spec(), "words": self.words}

    def fitted_encoder(self) -> TableEncoder:
        """Return the encoder; one that depends on no statistics is not kept.

        Raises
        ------
        ConfigError
            When the encoding needs a survey and none was done.
        """
        if self.encoder is None and self.needs_survey:
            raise ConfigError(
                f"the encoding of {self.path} depends on all rows: survey all blocks and read with "
                "the merged facts"
            )
        fitted: TableEncoder = self.encoder or self._fit({})
        return fitted

    def with_encoder(self, encoder: TableEncoder) -> Self:
        """Return a source with the encoding of another table."""
        return self.model_copy(update={"encoder": encoder})

    def with_stats(self, facts: DatasetStats) -> Self:
        """Return a source with the encoding that a survey gives, or that of the training data.

        Where the survey has found text among numbers, the source needs another survey.
        """
        words = {name: one.word for name, one in facts.columns.items() if one.word is not None}
        if words:
            return self.model_copy(update={"words": {**(self.words or {}), **words}})
        if facts.columns:
            return self.with_encoder(self._fit(facts.columns))
        source = self if facts.n_columns == 0 else self.with_columns(facts.n_columns)
        if facts.encoder is None:
            return source
        return source.with_encoder(TableEncoder.from_json(facts.encoder))

    def _fit(self, surveys: Mapping[str, ColumnSurvey]) -> TableEncoder:
        """Return the encoder of the table.

        Raises
        ------
        DataError
            When the label has too many values to be classes.
        """
        notes: list[str] = []
        columns, cells = self.roles(), {**self._texts(), **(self.words or {})}
        words = [
            n for n in columns.features if n not in columns.listed and n in columns.categorical
        ]
        dates = [n for n in words if surveys[n].values and are_dates(surveys[n].values)]
        columns = replace(columns, types={**columns.types, **dict.fromkeys(dates, "date")})
        surveys = {**surveys, **{n: _survey_dates(n, surveys[n], self.path) for n in dates}}
        found = [n for n in words if n not in dates]
        if found:
            first = [f"{shown(n)} ({cells[n]})" if n in cells else shown(n) for n in found[:10]]
            more = ", ..." if len(found) > 10 else ""
            notes.append(f"text became categories: {', '.join(first)}{more}")
        mostly = [name for name in found if name in cells and _is_mostly_numbers(surveys[name])]
        if mostly:
            notes.append(
                f"most values are numbers in {listed(mostly)}: if the text there means a missing "
                "value, name it in data.na_values; data.numeric makes it an error"
            )
        encodings = [self._encoding(n, columns, surveys.get(n), notes) for n in columns.features]
        label, classes = columns.label, None
        if label in columns.categorical:
            if len(surveys[label].values) > VOCABULARY_OF_TEXT:
                example = f" (the first is {cells[label]})" if label in cells else ""
                raise DataError(
                    f"column {shown(label)} of {self.path}, the label, holds "
                    f"{len(surveys[label].values)} different texts{example}, wanted numbers or at "
                    f"most {VOCABULARY_OF_TEXT} classes; correct data.label"
                )
            classes = tuple(sorted(surveys[label].values))
        elif columns.types[label] == "boolean":
            classes = ("false", "true")
        return TableEncoder(
            label=label,
            classes=classes,
            is_boolean=label not in columns.categorical and classes is not None,
            weight=columns.weight,
            columns=tuple(encodings),
            skips_unlabelled=self.missing != "error",
            unknown=self.unknown,
            missing_columns=self.missing_columns,
            extra_columns=self.extra_columns,
            delimiter=getattr(self, "delimiter", None),
            header=getattr(self, "header", True),
            na_values=getattr(self, "na_values", ()),
            notes=tuple(notes),
        )

    def _encoding(
        self, name: str, columns: TableColumns, survey: ColumnSurvey | None, notes: list[str]
    ) -> ColumnEncoding:
        """Return the encoding of one feature column."""
        fill: float | None = None
        if self.missing != "error":
            fill = 0.0
            if isinstance(self.missing, int | float):
                fill = float(self.missing)
            elif survey is not None and name not in columns.categorical:
                fill = survey.mean if self.missing == "mean" else survey.median
        if name not in columns.categorical:
            is_date = columns.types[name] == "date"
            return ColumnEncoding(
                name=name,
                kind="date" if is_date else "number",
                fill=fill,
                # Like the category of missing values, only if training has some.
                indicator=self.missing_indicator and (survey is None or survey.missing > 0),
                parts=tuple(self.dates) if is_date else (),
                is_boolean=columns.types[name] == "boolean",
            )
        assert survey is not None
        fill = None if fill is None else 0.0
        default = VOCABULARY_MAX if name in columns.listed else VOCABULARY_OF_TEXT
        most = self.max_categories or default
        values = list(survey.values)
        if len(values) <= most and not survey.is_cut:
            # Missing values are a category if there are any; values that training lacks are zeros.
            none = [None] if fill is not None and survey.missing else []
            return ColumnEncoding(
                name=name,
                kind="category",
                fill=fill,
                categories=(*sorted(values), *none),
                is_text=columns.types[name] == "text",
            )
        count = f"{'more than ' if survey.is_cut else ''}{len(values)}"
        if self.rare == "hash":
            notes.append(
                f"column {shown(name)} has {count} values, which are hashed into {most} columns"
            )
            return ColumnEncoding(name=name, kind="hash", fill=fill, buckets=most)
        kept = values[: most - 1]
        share = 1.0 - sum(survey.values[value] for value in kept) / max(1, survey.rows)
        notes.append(
            f"column {shown(name)} has {count} values: the {len(kept)} most frequent have columns "
            f"of their own, the others ({share:.1%} of the rows) share one"
        )
        return ColumnEncoding(
            name=name, kind="category", fill=fill, categories=tuple(sorted(kept)), other=True
        )

    def _texts(self) -> Mapping[str, str]:
        """Return the first cell of each column of text."""
        return {}

    def surveyed(
        self,
        block: int,
        tables: Sequence[tuple[Any, Place]],
        path: str,
        held: HeldOut = None,
        words: Mapping[str, str] | None = None,
    ) -> BlockSummary:
        """Return the statistics of a block's columns that the encoding depends on.

        They are those of the rows that have a label and are not held out; the classes are those of
        all rows.

        Parameters
        ----------
        held : callable, optional
            From the number of rows that have a label, a mask of those that are held out.
        words : mapping, optional
            Columns that were not taken for text and hold some, and the first such cell of each.

        Raises
        ------
        DataError
            For missing values, unless the job imputes them.
        """
        columns, accepts = self.roles(), self.missing != "error"
        n_rows = sum(table.num_rows for table, _ in tables)
        if accepts:
            tables = [with_label(table, columns.label, place) for table, place in tables]
        trained = tables if held is None else _not_held(tables, held)
        surveys = {
            name: ColumnSurvey(rows=n_rows, word=cell) for name, cell in (words or {}).items()
        }
        for name in columns.categorical:
            counts = Counter[str]()
            rows = missing = 0
            is_label = name == columns.label
            for table, place in tables if is_label else trained:
                column = texts(table, name, path, place, accepts)
                rows, missing = rows + len(column), missing + (0 if is_label else column.null_count)
                for one in pyarrow.compute.value_counts(column.drop_null()).to_pylist():
                    counts[one["values"]] += one["counts"]
            surveys[name] = survey_texts(counts, rows, missing)
        if self.missing in ("mean", "median"):
            for name in columns.features:
                if name in surveys:
                    continue
                read = days_of if columns.types[name] == "date" else numbers
                surveys[name] = survey_numbers([read(t, name, path, at, True) for t, at in trained])
        surveys.setdefault(columns.label, ColumnSurvey(rows=n_rows))
        return BlockSummary(
            block=block,
            rows=n_rows,
            n_columns=0,
            layout=Layout(kind="dense", dtype=self.dtype, n_columns=0),
            columns=surveys,
        )

    def surveyed_columns(self, columns: TableColumns) -> Sequence[str]:
        """Return the columns that :func:`surveyed` reads."""
        numbers = columns.features if self.missing in ("mean", "median") else ()
        return tuple(dict.fromkeys((columns.label, *columns.categorical, *numbers)))

    def encoded(self, tables: Iterable[tuple[Any, Place]], path: str) -> Iterator[Rows]:
        """Yield the rows of a block's tables."""
        encoder = self.fitted_encoder()
        for table, place in tables:
            notes = dict[str, int]()
            yield replace(encoder.rows(table, path, place, notes), notes=notes)

    def chunks_of_rows(
        self, block: int, parts: Iterable[Rows], chunk_bytes: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Partition the rows of a block into chunks; its summary has the columns' moments."""
        moments = dict[str, ColumnMoments]()
        observed = self._observed(parts, moments)
        chunks, summary = super().chunks_of_rows(block, observed, chunk_bytes)
        return chunks, replace(summary, moments=moments)

    def _observed(self, parts: Iterable[Rows], moments: dict[str, ColumnMoments]) -> Iterator[Rows]:
        """Yield rows, and collect the moments of their columns."""
        encoder = self.fitted_encoder()
        for rows in parts:
            for column, some in _column_moments(encoder, rows).items():
                before = moments.get(column)
                moments[column] = some if before is None else merge_moments([before, some])
            yield rows

    def facts_of(self, block: int) -> dict[str, Any]:
        """Return the encoding, with the first block."""
        if block:
            return {}
        encoder = self.fitted_encoder()
        return {
            "counts": {note.replace("{", "(").replace("}", ")"): 1 for note in encoder.notes},
            "vocabularies": encoder.vocabularies(),
            "encoder": encoder.to_json(),
        }


def roles_of_vectors(
    columns: tuple[Column | None, Column | None], vectors: tuple[Any, Any], names: Iterable[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the columns of labels and weights, and the new columns for those that are vectors.

    Parameters
    ----------
    columns : tuple
        Columns of labels and weights in the table, or None.
    vectors : tuple
        Labels and weights that are no columns of it, or None.
    names : iterable of str
        The columns of the table.

    Raises
    ------
    ConfigError
        When one is both, there are no labels, or values are the name of a column.
    """
    roles, joined = list[Any](), dict[str, Any]()
    for column, vector, key in zip(columns, vectors, ("label", "weight"), strict=True):
        if vector is None:
            roles.append(column)
            continue
        if column is not None:
            raise ConfigError(f"{key}: got {column!r} and values, wanted one of them")
        if isinstance(vector, str):
            raise ConfigError(f"{key}: got {vector!r} as values; name a column by {key}={vector!r}")
        roles.append(key if key not in names else f"elasticml {key}")
        joined[roles[-1]] = vector
    if roles[0] is None:
        raise ConfigError("label: name the column of the labels, or give y")
    return roles, joined


def _column_moments(encoder: TableEncoder, rows: Rows) -> dict[str, ColumnMoments]:
    """Return sizes of the columns, and their products with the labels, for warnings."""
    starts = np.cumsum([0, *(column.width for column in encoder.columns)]).tolist()
    places: dict[str, tuple[int, str | None]] = {}
    n_columns = 0
    for column, start in zip(encoder.columns, starts, strict=False):
        if column.kind in ("number", "date"):
            places[column.name] = start, None
        elif column.kind == "category" and column.width <= _VALUES_MAX:
            places |= {name: (start + k, column.name) for k, name in enumerate(column.names())}
        else:
            continue
        n_columns += 1
    if not 0 < n_columns <= _MOMENTS_MAX:
        return {}
    return moments_of(matrix_of(rows), rows.labels, places)


def _not_held(
    tables: Sequence[tuple[Any, Place]], held: Callable[[int], NDArray[np.bool_]]
) -> list[tuple[Any, Place]]:
    sizes = [table.num_rows for table, _ in tables]
    masks = np.split(~held(sum(sizes)), np.cumsum(sizes)[:-1])
    return [some_rows(*one, mask) for one, mask in zip(tables, masks, strict=True)]


def _survey_dates(name: str, texts: ColumnSurvey, path: str) -> ColumnSurvey:
    """Return the statistics of dates whose texts were counted."""
    column = pyarrow.table({name: list(texts.values)})
    days = days_of(column, name, path, lambda row: f"value {row}", False)
    ordered = sorted(zip(days.tolist(), texts.values.values(), strict=True))
    return replace(
        survey_numbers([days]),
        rows=texts.rows,
        missing=texts.missing,
        total=sum(day * n for day, n in ordered),
        points=tuple(ordered),
        values={},
    )


def _is_mostly_numbers(survey: ColumnSurvey) -> bool:
    counted = sum(count for text, count in survey.values.items() if is_number(text))
    return 2 * counted > sum(survey.values.values())
