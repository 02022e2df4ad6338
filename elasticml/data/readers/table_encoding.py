"""Encode a table's rows as numbers by the fitted encoding of each column."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray
from pydantic import Field

from elasticml.data.chunks.chunker import Rows
from elasticml.data.chunks.rows import rows_of_matrix
from elasticml.data.json_record import JsonRecord
from elasticml.errors import DataError, one_line, shown

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
    return some_rows(table, place, ~_missing(table.column(label)))


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


def _missing(column: Any) -> NDArray[np.bool_]:
    missing: NDArray[np.bool_] = column.is_null(nan_is_null=True).to_numpy()
    return missing


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
