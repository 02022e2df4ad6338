"""Read CSV by byte ranges and Parquet by row groups, both with pyarrow.

The first lines of CSV say its delimiter, its columns and their types. An invalid cell is reported
with its line and column.
"""

from __future__ import annotations

import bisect
import codecs
import contextlib
import csv
import functools
import io
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import PurePosixPath
from typing import Annotated, Any, Final

import pyarrow
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet
from pydantic import Field

from elasticml.data.chunks.rows import Rows
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.formats import FileFormat, reader
from elasticml.data.out_of_core.mapped_memory import process_memory
from elasticml.data.readers.files import (
    DataFile,
    FileBlock,
    Piece,
    block_pieces,
    changed,
    file_info,
    files_of,
    line_number,
    once_per_version,
    open_binary,
    text_blocks,
)
from elasticml.data.readers.tables import (
    MISSING,
    ColumnType,
    Place,
    TableColumns,
    TableEncoder,
    TableFormat,
    are_dates,
    check_columns,
    first_wrong,
    is_number,
    type_of_arrow,
    without_missing,
    wrong_cell,
)
from elasticml.data.source import BLOCK_BYTES, BlockInfo, HeldOut, format_named, infer_format
from elasticml.data.storage.filesystem import is_url
from elasticml.data.storage.untrusted_files import (
    check_expansion,
    reading,
    reads_untrusted_files,
)
from elasticml.errors import ConfigError, DataError, one_line, shown
from elasticml.specification.settings_model import AS_TUPLE, did_you_mean

#: The delimiters that a header may have, the first if it has none of them.
_DELIMITERS: Final = ",;\t|"
_QUOTED: Final = re.compile(r'"[^"]*"')
_NOT_BLANK: Final = re.compile(rb"\S")
_BOOLEAN: Final = re.compile("true|false", re.IGNORECASE)
#: Lines from which the types of the columns are first inferred.
HEAD_LINES: Final = 1000
#: Bytes of small files that are parsed as one text: parsed, they are rarely a block's.
_JOINED_BYTES_MAX: Final = BLOCK_BYTES // 4
#: Longest field, in characters.
_FIELD_MAX: Final = 2**27
_ARROW: Final[Mapping[ColumnType, Any]] = {"number": pyarrow.float64(), "boolean": pyarrow.bool_()}
_WANTED: Final[Mapping[ColumnType, str]] = {"number": "a number", "boolean": "true or false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat:
    """How CSV text is written."""

    delimiter: str
    header: bool
    #: Texts that mean a missing value, besides the usual ones.
    na_values: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """All texts that mean a missing value."""
        return (*MISSING, *self.na_values)


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvColumns:
    """The columns of a CSV file, by its first thousand lines."""

    names: tuple[str, ...]
    types: tuple[ColumnType, ...]
    #: The first cell of each column of text, and its line.
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvText:
    """Whole lines of a CSV file, and how to parse them."""

    path: str
    piece: Piece
    #: Bytes of the header line at the start of the text; 0 if there is none.
    skipped: int
    names: Sequence[str]
    format: CsvFormat

    def place(self, row: int) -> str:
        """Return the line of a row, for messages; blank lines are not rows."""
        return f"line {self._line(row)}"

    def _line(self, row: int) -> int:
        lines = (line for line, fields in self.records() if fields)
        return next(line for at, line in enumerate(lines) if at == row)

    def records(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the records with the lines on which they begin; a blank line has no fields."""
        first = line_number(self.path, self.piece, self.skipped)
        data = io.BytesIO(self.piece.text[self.skipped :])
        text = io.TextIOWrapper(data, "utf-8", "replace", newline="")
        at = 0
        reader = _records(text, self.format.delimiter)
        for fields in reader:
            start, at = at, reader.line_num
            yield first + start, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Cells that are not of the type of their columns, which become categories."""

    #: The first such cell of each column, and its file and line.
    cells: dict[str, str] = field(default_factory=dict)
    #: Columns in which such a cell is an error.
    refused: Collection[str] = ()


def csv_texts(block: FileBlock, format: CsvFormat) -> Iterator[CsvText]:
    """Yield the non-blank pieces of one block."""
    path, names = block.file.path, None
    for piece in block_pieces(block):
        skipped = 0
        if format.header and piece.offset == 0:
            skipped = piece.text.find(b"\n") + 1 or len(piece.text)
        if names is None:
            # Of many small files only the names are looked at.
            names = (
                _names_of(path, _first_records(path, _lines_of(piece.text), format, 1), format)
                if piece.offset == 0
                else csv_columns(path, block.file.token, format).names
            )
        if _NOT_BLANK.search(piece.text, skipped):
            yield CsvText(path=path, piece=piece, skipped=skipped, names=names, format=format)


def parse_csv(text: CsvText, types: Mapping[str, ColumnType], words: Words | None = None) -> Any:
    """Parse columns of the text into a table: float64, bool, or strings, dates included.

    Parameters
    ----------
    words : Words, optional
        Receives the cells that their columns cannot hold; these columns are strings in the table.

    Raises
    ------
    DataError
        When a line has too many or too few fields, or a cell is not of its column's type and
        ``words`` does not accept it.
    """
    try:
        table = _read(text, _arrow_types(types))
    except pyarrow.ArrowInvalid:
        table = _parse_cells(text, types, words)
    return _without_missing(table, text, types)


def parse_joined(texts: Sequence[CsvText], types: Mapping[str, ColumnType]) -> Any | None:
    """Parse many short texts as one, in a fraction of the time that they take one by one.

    Returns
    -------
    Table or None
        As :func:`parse_csv` of each of them, joined. None where they must be parsed one by one:
        their columns differ, a quote may hide the end of a text, or a cell is not of its column's
        type.
    """
    rows = b"\n".join(text.piece.text[text.skipped :] for text in texts)
    have_same_names = len({tuple(text.names) for text in texts}) == 1
    if b'"' in rows or codecs.BOM_UTF8 in rows or not have_same_names:
        return None
    joined = replace(texts[0], piece=Piece(text=rows, first_line=None, offset=0), skipped=0)
    try:
        table = _read(joined, _arrow_types(types))
    except (pyarrow.ArrowInvalid, KeyError):
        return None
    return _without_missing(table, joined, types) if table.nbytes <= BLOCK_BYTES else None


def _arrow_types(types: Mapping[str, ColumnType]) -> dict[str, Any]:
    return {name: _ARROW.get(kind, pyarrow.string()) for name, kind in types.items()}


def _without_missing(table: Any, text: CsvText, types: Mapping[str, ColumnType]) -> Any:
    """Return the table with nulls for padded texts that mean a missing value."""
    strings = [n for n in types if pyarrow.types.is_string(table.schema.field(n).type)]
    if strings and (b" " in text.piece.text or b"\t" in text.piece.text):
        for name in strings:
            cells = without_missing(table.column(name), text.format.missing)
            table = table.set_column(table.column_names.index(name), name, cells)
    return table


def _read(text: CsvText, types: Mapping[str, Any]) -> Any:
    data = pyarrow.py_buffer(text.piece.text)[text.skipped :]
    return pyarrow.csv.read_csv(
        pyarrow.BufferReader(data),
        read_options=pyarrow.csv.ReadOptions(
            column_names=list(text.names), use_threads=False, block_size=data.size + 1
        ),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter=text.format.delimiter, newlines_in_values=True
        ),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=list(text.format.missing),
            strings_can_be_null=True,
        ),
    )


def _parse_cells(text: CsvText, types: Mapping[str, ColumnType], words: Words | None) -> Any:
    """Parse text again in which pyarrow has rejected a cell: some are padded, some are wrong."""
    try:
        table = _read(text, dict.fromkeys(types, pyarrow.string()))
    except pyarrow.ArrowInvalid as error:
        raise _unparsable(text, one_line(error)) from None
    for at, (name, kind) in enumerate(types.items()):
        if kind not in _ARROW:
            continue
        cells = without_missing(table.column(at), text.format.missing)
        bare = pyarrow.compute.utf8_trim_whitespace(cells)
        try:
            table = table.set_column(at, name, bare.cast(_ARROW[kind]))
        except pyarrow.ArrowInvalid:
            row, value = first_wrong(bare, _ARROW[kind])
            if words is None or name in words.refused:
                raise wrong_cell(text.path, text.place(row), name, value, _WANTED[kind]) from None
            cell = f"{value[:40]!r} in {text.path}, {text.place(row)}"
            words.cells.setdefault(name, cell)
    return table


def _unparsable(text: CsvText, error: str) -> DataError:
    """Return the error about lines with too many or too few fields."""
    wanted = len(text.names)
    for line, fields in text.records():
        if fields and len(fields) != wanted:
            return DataError(
                f"{text.path}, line {line}: {len(fields)} fields, wanted {wanted} (separated by "
                f"{text.format.delimiter!r})"
            )
    try:
        text.piece.text.decode()
    except UnicodeDecodeError as wrong:
        line = line_number(text.path, text.piece, wrong.start)
        return DataError(
            f"{text.path}, line {line}: byte {text.piece.text[wrong.start]:#x} is not UTF-8; "
            "convert the file, such as by iconv -f LATIN1 -t UTF-8"
        )
    return DataError(f"{text.path} cannot be parsed as CSV: {error}")


@once_per_version
def csv_format(
    path: str, token: str, delimiter: str | None, header: bool, na_values: tuple[str, ...]
) -> CsvFormat:
    """Return how a file is written: its delimiter is the most frequent one in its first line.

    Parameters
    ----------
    token : str
        The file's version.
    delimiter : str, optional
        As the user gives it.
    """
    if delimiter is None:
        first = _QUOTED.sub("", next(iter(head_lines(path)), ""))
        delimiter = max(_DELIMITERS, key=first.count)
    return CsvFormat(delimiter=delimiter, header=header, na_values=na_values)


@once_per_version
def csv_columns(path: str, token: str, format: CsvFormat) -> CsvColumns:
    """Return the columns' names, from the first line, and their types, from the first thousand.

    Only columns of numbers, booleans or dates alone are such. ``token`` is the file's version.
    """
    rows = head_records(path, format)
    names = _names_of(path, rows, format)
    cells = [row for row in rows[format.header :] if len(row[1]) == len(names)]
    types, texts = list[ColumnType](), dict[str, str]()
    for at, name in enumerate(names):
        present = [
            (line, cell)
            for line, cell in ((line, row[at].strip()) for line, row in cells)
            if cell not in format.missing
        ]
        types.append(_type_of([cell for _, cell in present]))
        if types[-1] == "text":
            line, word = next(one for one in present if not is_number(one[1]))
            texts[name] = f"{word[:40]!r} in line {line}"
    return CsvColumns(names=names, types=tuple(types), texts=texts)


def _names_of(
    path: str, head: Sequence[tuple[int, list[str]]], format: CsvFormat
) -> tuple[str, ...]:
    """Return the names of the columns, from the first record."""
    first = head[0][1] if head else []
    if not first:
        raise DataError(f"{path}, line 1 is blank, wanted columns")
    if any("\0" in name for name in first):
        raise DataError(f"{path} is no UTF-8 text (UTF-16?), wanted CSV: convert it")
    return tuple(first) if format.header else tuple(str(i) for i in range(len(first)))


def head_records(path: str, format: CsvFormat) -> list[tuple[int, list[str]]]:
    """Return the records in the first thousand lines, and the lines on which they begin.

    Raises
    ------
    DataError
        When a field is too long.
    """
    return _first_records(path, head_lines(path), format)


def _first_records(
    path: str, lines: Iterable[str], format: CsvFormat, most: int = HEAD_LINES
) -> list[tuple[int, list[str]]]:
    """Return at most ``most`` records of the first thousand lines, and their first lines."""
    reader = _records(islice(lines, HEAD_LINES + 1), format.delimiter)
    records, at = list[tuple[int, list[str]]](), 1
    try:
        for fields in islice(reader, most + 1):
            records.append((at, fields))
            at = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, line {at}: {error}") from None
    return records


def _records(lines: Any, delimiter: str) -> Any:
    csv.field_size_limit(_FIELD_MAX)
    return csv.reader(lines, delimiter=delimiter)


def head_lines(path: str) -> list[str]:
    """Return the first thousand lines of a text file, plain or compressed."""
    blocks = text_blocks(file_info(path))
    pieces = (piece for block in blocks for piece in block_pieces(block))
    return list(
        islice((line for piece in pieces for line in _lines_of(piece.text)), HEAD_LINES + 1)
    )


def _lines_of(text: bytes) -> Iterator[str]:
    """Yield the lines of a text, without a byte order mark."""
    return (line.decode("utf-8-sig", "replace") for line in io.BytesIO(text))


def _type_of(fields: Sequence[str]) -> ColumnType:
    kinds: tuple[tuple[ColumnType, Callable[[str], object]], ...] = (
        ("number", is_number),
        ("boolean", _BOOLEAN.fullmatch),
    )
    for kind, matches in kinds:
        if all(matches(field) for field in fields):
            return kind
    return "date" if are_dates(fields) else "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHead:
    """The first rows of a table."""

    types: Mapping[str, ColumnType]
    #: Values by column: numbers, booleans or texts; None where they are missing.
    columns: Mapping[str, Sequence[Any]]
    n_rows: int
    #: None in a Parquet file.
    delimiter: str | None = None


def read_head(path: str, na_values: Sequence[str] = ()) -> TableHead:
    """Read the first thousand rows of a CSV file with a header, or of a Parquet file.

    Raises
    ------
    ConfigError, DataError
        When it does not exist, or has no columns.
    """
    with reading(path):
        return _head_of(path, tuple(na_values))


def _head_of(path: str, na_values: tuple[str, ...]) -> TableHead:
    token = file_info(path).token
    if infer_format(path) == "parquet":
        names, types = _parquet_columns(path, token)
        with _open_parquet(path) as file:
            batch = next(file.iter_batches(HEAD_LINES, columns=list(names)), None)
        rows = {} if batch is None else batch.to_pydict()
        columns = {name: rows.get(name, []) for name in names}
        delimiter = None
    else:
        format = csv_format(path, token, None, True, na_values)
        found, delimiter = csv_columns(path, token, format), format.delimiter
        names, types = found.names, found.types
        records = [row for _, row in head_records(path, format)[1:] if len(row) == len(names)]
        columns = {
            name: [_value(row[k].strip(), kind, format.missing) for row in records]
            for k, (name, kind) in enumerate(zip(names, types, strict=True))
        }
    by_name = dict(zip(names, types, strict=True))
    n_rows = max((len(values) for values in columns.values()), default=0)
    return TableHead(types=by_name, columns=columns, n_rows=n_rows, delimiter=delimiter)


def _value(text: str, kind: ColumnType, missing: Collection[str]) -> Any:
    if text in missing:
        return None
    return float(text) if kind == "number" else text


#: Names that pandas and Dask give to the column in which they store an unnamed index.
_ROW_NUMBERS: Final = re.compile(r"__index_level_\d+__|__null_dask_index__")


#: Most bytes of parsed text that a process keeps between a survey and reading, and the share of its
#: memory limit that they may take.
_KEPT_BYTES_MAX: Final = 2**28
_KEPT_SHARE: Final = 1 / 16


class _SurveyedTables:
    """Text that a survey has parsed, so that reading need not parse it again.

    Each block is kept until it is read, or until other data are surveyed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._data, self._nbytes = "", 0
        self._blocks: dict[int, tuple[list[tuple[Any, Place]], int]] = {}

    def keep(self, data: str, block: int, tables: list[tuple[Any, Place]]) -> None:
        """Keep a block's tables if there is room for them."""
        nbytes = sum(table.nbytes for table, _ in tables)
        most = process_memory.share(_KEPT_SHARE, _KEPT_BYTES_MAX)
        with self._lock:
            if data != self._data:
                self._data, self._nbytes, self._blocks = data, 0, {}
            if block not in self._blocks and self._nbytes + nbytes <= most:
                self._blocks[block] = tables, nbytes
                self._nbytes += nbytes

    def take(self, data: str, block: int) -> list[tuple[Any, Place]] | None:
        """Return a block's tables and forget them; None if they are not kept."""
        with self._lock:
            if data != self._data or block not in self._blocks:
                return None
            tables, nbytes = self._blocks.pop(block)
            self._nbytes -= nbytes
            return tables


_surveyed: Final = _SurveyedTables()


@reads_untrusted_files
class TableSource(FileFormat, TableFormat):
    """Tables in files: what CSV and Parquet share."""

    def fingerprint(self) -> str:
        """Return 16 hex digits over path, sizes, modification times and options."""
        encoder = self.encoder
        words = {} if encoder is None else encoder.vocabularies()
        options = {**self.options(), **self._written(), "vocabularies": words or None}
        if encoder is not None and not encoder.is_plain:
            options["encoder"] = encoder.to_json()
        return self.files.fingerprint(options)

    def _written(self) -> dict[str, Any]:
        """Return how the files are written, as the first of them says."""
        return {}

    def _parsed_name(self) -> str:
        """Return a digest of the files and of all options on which their parsing depends."""
        return self.files.fingerprint({**self.options(), "words": self.words})

    def blocks(self) -> Sequence[BlockInfo]:
        """Return byte ranges or row groups; raises for a missing, empty or unreadable file."""
        blocks = super().blocks()
        if all(block.rows == 0 for block in blocks):
            raise DataError(f"{self.path} holds no rows, wanted at least one")
        return blocks

    def read_parts(self, block: int, parts: Sequence[FileBlock]) -> Iterator[Rows]:
        """Yield the encoded rows of a block."""
        encoder, name = self.fitted_encoder(), self._parsed_name()
        kept = _surveyed.take(name, block) if self.is_costly else None
        tables = kept or self._tables(parts, encoder.types)
        yield from self.encoded(tables, self._path_of(parts))

    def _path_of(self, parts: Sequence[FileBlock]) -> str:
        """Return the path of a block in messages; of many files the place of a row names one."""
        return parts[0].file.path if len(parts) == 1 else self.path

    def survey(self, block: int, held: HeldOut = None) -> BlockSummary:
        """Return the statistics of one block on which the encoding depends."""
        columns, parts = self.roles(), self.files.parts(block)
        types: dict[str, ColumnType] = {**columns.types, **dict.fromkeys(columns.listed, "text")}
        words = Words(refused=columns.numeric)
        surveyed = {name: types.get(name, "number") for name in self.surveyed_columns(columns)}
        tables = list(self._tables(parts, surveyed, words))
        self.check_files(parts)
        summary = self.surveyed(block, tables, self._path_of(parts), held, words.cells)
        if self.is_costly:
            _surveyed.keep(self._parsed_name(), block, tables)
        return summary

    def _tables(
        self,
        parts: Sequence[FileBlock],
        types: Mapping[str, ColumnType],
        words: Words | None = None,
    ) -> Iterable[tuple[Any, Place]]:
        """Yield a block's tables with columns of these types, and a function that locates a row."""
        if len(parts) == 1:
            return self._tables_of(parts[0], types, words)
        return _of_parts(parts, (self._tables_of(part, types, words) for part in parts))

    def _tables_of(
        self, part: FileBlock, types: Mapping[str, ColumnType], words: Words | None
    ) -> Iterator[tuple[Any, Place]]:
        """Yield the tables of a part of a file."""
        raise NotImplementedError


def _of_parts(
    parts: Sequence[FileBlock], tables: Iterable[Iterable[tuple[Any, Place]]]
) -> Iterator[tuple[Any, Place]]:
    """Join the tables of parts of files; the place of a row names its file."""
    return _joined(
        (table, functools.partial(_place_in_file, part.file.path, place))
        for part, found in zip(parts, tables, strict=True)
        for table, place in found
    )


def _joined(tables: Iterable[tuple[Any, Place]]) -> Iterator[tuple[Any, Place]]:
    """Join consecutive tables of one schema: to encode many small ones takes long."""
    pending, size = list[tuple[Any, Place]](), 0
    for table, place in tables:
        if pending and (size > BLOCK_BYTES or not pending[0][0].schema.equals(table.schema)):
            yield _concatenated(pending)
            pending, size = [], 0
        pending.append((table, place))
        size += table.nbytes
    if pending:
        yield _concatenated(pending)


def _concatenated(tables: Sequence[tuple[Any, Place]]) -> tuple[Any, Place]:
    starts = list(itertools.accumulate((table.num_rows for table, _ in tables), initial=0))
    places = [place for _, place in tables]

    def place(row: int) -> str:
        at = bisect.bisect_right(starts, row) - 1
        return places[at](row - starts[at])

    return pyarrow.concat_tables([table for table, _ in tables]).combine_chunks(), place


def _place_in_file(path: str, place: Place, row: int) -> str:
    return f"{place(row)} of {PurePosixPath(path).name}"


class CsvSource(TableSource):
    r"""Return a source for CSV data; nothing is read yet.

    The text is UTF-8, with or without a byte order mark, and each row ends with ``\n`` or
    ``\r\n``. A field in double quotes may contain delimiters, line breaks, and quotes, each
    written twice. Blank lines do not count. The decimal sign is a point.

    Parameters
    ----------
    delimiter : str, optional
        One character; by default the most frequent of comma, semicolon, tab and ``|`` in the first
        line.
    header : bool
        Whether the first line names the columns; else they are named "0", "1", ...
    na_values : sequence of str
        Texts that mean a missing value, such as ``"-"``, besides those of pandas (empty and blank
        cells, ``NA``, ``N/A``, ``NaN``, ``NULL``, ``None``, ...) and ``?``.

    Raises
    ------
    ConfigError
        When a setting is out of range.

    Examples
    --------
    >>> with open("buses.csv", "w") as file:
    ...     print("hour,rain,late", *["8,no,0", "17,yes,1"] * 50, sep=chr(10), file=file)
    >>> result = em.Job(em.CoCoA(), em.read_csv("buses.csv", label="late"), stop=stop).run(client)
    >>> list(result.model.get_feature_names_out())
    ['hour', 'rain=no', 'rain=yes']
    """

    format = "csv"
    suffixes = (".csv",)
    reader = "read_csv"

    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    header: bool = True
    na_values: Annotated[Sequence[str], AS_TUPLE] = ()

    @property
    def needs_survey(self) -> bool:
        """Whether the encoding depends on all blocks and was not fitted yet."""
        if self.encoder is not None:
            return False
        columns = self.roles()
        # A word among the numbers may be in any row.
        is_open = set(columns.used) - columns.numeric
        return super().needs_survey or any(
            columns.types.get(name) in ("number", "boolean") for name in is_open
        )

    def _written(self) -> dict[str, Any]:
        return {"delimiter": self._format().delimiter}

    def _format(self) -> CsvFormat:
        """Return how the files are written: all as the first one."""
        first = self.files.files[0]
        return csv_format(
            first.path, first.token, self.delimiter, self.header, tuple(self.na_values)
        )

    def surveyed_columns(self, columns: TableColumns) -> Sequence[str]:
        """Return all columns: a word among the numbers may be in any row."""
        return columns.used

    def _columns(self) -> CsvColumns:
        first = self.files.files[0]
        return csv_columns(first.path, first.token, self._format())

    def names_and_types(self) -> tuple[Sequence[str], Sequence[ColumnType]]:
        """Return the names and types of the columns, as the first file has them."""
        found = self._columns()
        return found.names, found.types

    def _texts(self) -> Mapping[str, str]:
        return self._columns().texts

    def _separated(self) -> str:
        how = "as in its first line" if self.delimiter is None else "data.delimiter"
        return f", separated by {self._format().delimiter!r} ({how})"

    def _tables(
        self,
        parts: Sequence[FileBlock],
        types: Mapping[str, ColumnType],
        words: Words | None = None,
    ) -> Iterable[tuple[Any, Place]]:
        apart = super()._tables
        is_short = sum(part.nbytes for part in parts) <= _JOINED_BYTES_MAX
        if len(parts) == 1 or not is_short or any(part.file.compression for part in parts):
            return apart(parts, types, words)
        texts = [list(csv_texts(part, self._format())) for part in parts]
        joined = parse_joined([text for of_part in texts for text in of_part], types)
        if joined is not None:
            return [
                (joined, functools.partial(_place_in, functools.partial(apart, parts, types), 0))
            ]
        each = zip(parts, texts, strict=True)
        return _of_parts(parts, (self._parsed(*one, types, words) for one in each))

    def _tables_of(
        self, part: FileBlock, types: Mapping[str, ColumnType], words: Words | None
    ) -> Iterator[tuple[Any, Place]]:
        return self._parsed(part, csv_texts(part, self._format()), types, words)

    def _parsed(
        self,
        part: FileBlock,
        texts: Iterable[CsvText],
        types: Mapping[str, ColumnType],
        words: Words | None,
    ) -> Iterator[tuple[Any, Place]]:
        format = self._format()
        for number, text in enumerate(texts):
            check_columns(part.file.path, text.names, list(types))
            yield parse_csv(text, types, words), functools.partial(_line, part, format, number)


def _place_in(read: Callable[[], Iterable[tuple[Any, Place]]], start: int, row: int) -> str:
    """Return the place of a row of files that were read together, from row ``start`` of them on."""
    row += start
    for table, place in read():
        if row < table.num_rows:
            return place(row)
        row -= table.num_rows
    raise IndexError(row)


def _line(part: FileBlock, format: CsvFormat, number: int, row: int) -> str:
    """Return the line of a row of a part's text, which was not kept and is read again."""
    return next(islice(csv_texts(part, format), number, None)).place(row)


class ParquetSource(TableSource):
    """Return a source for Parquet data; a block is a row group. Nothing is read yet.

    Folders are those that Dask and Spark write. The types of the columns are those of the first
    file.

    Raises
    ------
    ConfigError
        When a setting is out of range.

    Examples
    --------
    >>> import pyarrow as pa, pyarrow.parquet
    >>> pa.parquet.write_table(pa.table({"hour": X[:, 0], "late": y}), "buses.parquet")
    >>> source = em.read_parquet("buses.parquet", label="late")
    >>> em.Job(em.CoCoA(), source, stop=stop).run(client).summary["examples"]
    200
    """

    format = "parquet"
    suffixes = (".parquet",)
    reader = "read_parquet"

    @property
    def is_costly(self) -> bool:
        """Whether to cache blocks: those of small files, which take ten times as long to open."""
        listed = self.files
        return len(listed.files) > len(listed.groups) and listed.are_versioned

    def surveyed_columns(self, columns: TableColumns) -> Sequence[str]:
        """Return all columns of small files, which are kept so that reading opens none again."""
        return columns.used if self.is_costly else super().surveyed_columns(columns)

    def list_blocks(self, files: Sequence[DataFile]) -> Sequence[FileBlock]:
        """Return the pieces of the files' row groups.

        Remote footers are read at the same time. Local ones are not: threads that wait for each
        other's Python take more than twice as long.
        """
        if not is_url(self.path):
            return [block for file in files for block in _footers.pieces(file)]
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
            cut = pool.map(lambda file: _pieces(file, _footer(file)), files)
            return [block for blocks in cut for block in blocks]

    def names_and_types(self) -> tuple[Sequence[str], Sequence[ColumnType]]:
        """Return the names and types of the columns, as the first file has them."""
        first = self.files.files[0]
        return _parquet_columns(first.path, first.token)

    def _tables(
        self,
        parts: Sequence[FileBlock],
        types: Mapping[str, ColumnType],
        words: Words | None = None,
    ) -> Iterable[tuple[Any, Place]]:
        apart = super()._tables
        is_remote = is_url(self.path)
        joined = None if is_remote or len(parts) == 1 else _read_at_once(parts, list(types))
        if joined is None:
            return apart(parts, types, words)
        starts = itertools.accumulate((table.num_rows for table in joined), initial=0)
        return [
            (table, functools.partial(_place_in, functools.partial(apart, parts, types), start))
            for table, start in zip(joined, starts, strict=False)
        ]

    def _tables_of(
        self, part: FileBlock, types: Mapping[str, ColumnType], words: Words | None
    ) -> Iterator[tuple[Any, Place]]:
        return _parquet_tables(part, list(types))


def _read_at_once(parts: Sequence[FileBlock], names: Sequence[str]) -> list[Any] | None:
    """Read many small local files together, in a fraction of the time of one by one.

    Returns
    -------
    list of Table, or None
        One for consecutive files whose columns have the same types. None where files must be read
        one by one: one of them is damaged, lacks a column, or has several row groups, or together
        they are larger than a block.
    """
    runs, nbytes = list[list[Any]](), 0
    try:
        for part in parts:
            with pyarrow.OSFile(part.file.path) as raw:
                file = pyarrow.parquet.ParquetFile(raw, pre_buffer=False)
                meta = file.metadata
                _check_row_groups(part.file.path, meta, part.file.size)
                if (meta.num_row_groups, meta.num_rows) != (1, part.stop - part.first):
                    return None
                table = file.read_row_group(0, list(names), use_threads=False)
            if table.num_columns != len(names):
                return None
            if not runs or not runs[-1][0].schema.equals(table.schema):
                runs.append([])
            runs[-1].append(table)
            nbytes += table.nbytes
            if nbytes > BLOCK_BYTES:
                return None
    except (pyarrow.ArrowException, OSError, DataError):
        return None
    return [pyarrow.concat_tables(run).combine_chunks() for run in runs]


def _parquet_tables(at: FileBlock, names: Sequence[str]) -> Iterator[tuple[Any, Place]]:
    """Yield the tables of a piece; the rows before it in its row group are decoded, too."""
    with _open_parquet(at.file.path) as file:
        if (at.first, at.stop) not in _cuts(file.metadata):
            raise changed(at.file.path)
        check_columns(at.file.path, file.schema_arrow.names, names)
        starts = _group_starts(file.metadata)
        group = max(bisect.bisect_right(starts, at.first) - 1, 0)
        first, stop = at.first - starts[group], at.stop - starts[group]
        if first == stop:
            table = file.schema_arrow.empty_table().select(list(names))
            yield table, functools.partial(_row_of_group, group, 0)
            return
        start = 0
        for batch in file.iter_batches(
            BATCH_ROWS, row_groups=[group], columns=list(names), use_threads=False
        ):
            low, start = max(first, start), start + batch.num_rows
            if low < min(start, stop):
                rows = batch.slice(low - start + batch.num_rows, min(start, stop) - low)
                place = functools.partial(_row_of_group, group, low)
                yield pyarrow.Table.from_batches([rows]), place
            if start >= stop:
                return


def _group_starts(meta: Any) -> list[int]:
    """Return the first row of each row group."""
    rows = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
    return list(itertools.accumulate(rows[:-1], initial=0))[: len(rows)]


#: Bytes of the numbers of a row group that are read at once, unless a batch has more.
PIECE_BYTES: Final = 64 << 20
#: Row groups may expand this many times as much as other compressed data.
_ROW_GROUP_FACTOR: Final = 8
#: Remote Parquet files whose footers are read at the same time.
_FOOTERS_AT_ONCE: Final = 16
#: Pieces of local Parquet files that a process remembers.
_PIECES_MAX: Final = 2**14
#: After this time a change of a file has another time of change, however coarse the clock is.
_SETTLED_NS: Final = 3 * 10**9
#: Rows that are predicted at once.
BATCH_ROWS: Final = 65_536


def feature_tables(
    path: str, format: str, encoder: TableEncoder, keep: Sequence[str] = ()
) -> Iterator[tuple[Any, Place]]:
    """Yield the tables of CSV or Parquet data with a trained model's features, in bounded memory.

    The label and the weights are included if the file has them, for scores, and so are the columns
    in ``keep``, which must exist.

    Raises
    ------
    ConfigError, DataError
        When the file cannot be read, or its columns do not fit the model.
    """
    with reading(path):
        for file in files_of(path, format_named(format).suffixes):
            yield from _feature_tables(file, format == "csv", encoder, keep)


def _feature_tables(
    file: DataFile, is_csv: bool, encoder: TableEncoder, keep: Sequence[str]
) -> Iterator[tuple[Any, Place]]:
    path = file.path
    if is_csv:
        format = csv_format(path, file.token, encoder.delimiter, encoder.header, encoder.na_values)
        found = csv_columns(path, file.token, format)
        names, types = found.names, found.types
    else:
        names, types = _parquet_columns(path, file.token)
    features = [column.name for column in encoder.columns]
    if is_csv and not encoder.header and len(names) == len(features):
        names = tuple(features)  # without a header columns are known by position: there is no label
    encoder.check_names(names, path)
    lacking = [name for name in keep if name not in names]
    if lacking:
        raise ConfigError(
            f"{path} has no column {shown(lacking[0])} to keep{did_you_mean(lacking[0], names)}"
        )
    used = [name for name in names if name in {*encoder.used, *keep}]
    if not is_csv:
        # In one pass: a piece of a row group would decode the rows before it again.
        with _open_parquet(path) as opened:
            at = 0
            for batch in opened.iter_batches(BATCH_ROWS, columns=used, use_threads=False):
                start, at = at, at + batch.num_rows
                yield pyarrow.Table.from_batches([batch]), functools.partial(_row_from, start)
        return
    kinds = {**dict(zip(names, types, strict=True)), **encoder.types}
    for block in text_blocks(file):
        for text in csv_texts(block, format):
            named = replace(text, names=names)
            yield parse_csv(named, {name: kinds[name] for name in used}), named.place


def _row_of_group(group: int, start: int, row: int) -> str:
    return f"row {start + row} of row group {group}"


def _row_from(start: int, row: int) -> str:
    return f"row {start + row}"


@once_per_version
def _parquet_columns(path: str, token: str) -> tuple[tuple[str, ...], tuple[ColumnType, ...]]:
    """Return the names and types of the columns, from the schema.

    A column in which pandas has stored an unnamed index is omitted, as pandas does.
    """
    with _open_parquet(path) as file:
        schema = file.schema_arrow
    kept = [field for field in schema if not _ROW_NUMBERS.fullmatch(field.name)]
    return tuple(f.name for f in kept), tuple(type_of_arrow(f.type) for f in kept)


def _cuts(meta: Any) -> list[tuple[int, int]]:
    """Cut the row groups of a Parquet file into similar numbers of rows; return first and stop."""
    width, cuts = 8 * meta.num_columns, list[tuple[int, int]]()
    for group, start in enumerate(_group_starts(meta)):
        n = meta.row_group(group).num_rows
        # A decoded row group is larger than its file, and a piece decodes those before it.
        count = -(-n * width // PIECE_BYTES) or 1
        most = -(-n // count // BATCH_ROWS) * BATCH_ROWS or 1
        cuts += [(start + at, start + min(at + most, n)) for at in range(0, max(n, 1), most)]
    return cuts


def _pieces(file: DataFile, meta: Any) -> Sequence[FileBlock]:
    width = 8 * meta.num_columns
    return [
        FileBlock(
            nbytes=(stop - first) * width, rows=stop - first, file=file, first=first, stop=stop
        )
        for first, stop in _cuts(meta)
    ]


class _Footers:
    """The pieces of local Parquet files, which a process remembers from one listing to the next.

    A file may be replaced by one of its size and modification time. A file is known by its inode
    and its time of change, too, which no program sets. One that has changed just now is not
    remembered: it may change again before the clock of its file system moves on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_pieces = 0
        self._known: dict[str, tuple[Any, Sequence[FileBlock]]] = {}

    def pieces(self, file: DataFile) -> Sequence[FileBlock]:
        """Return the pieces of a file; its footer is read only if it is not remembered."""
        with self._lock:
            state, pieces = self._known.get(file.path, (None, ()))
        # Whatever is wrong, the code below says it.
        with contextlib.suppress(OSError):
            if state is not None and state == self._state_of(file, os.stat(file.path)):
                return pieces
        with contextlib.suppress(pyarrow.ArrowException, OSError):
            with pyarrow.OSFile(file.path) as raw:
                # Taken before the footer is read, of the file that is read.
                state = self._state_of(file, os.fstat(raw.fileno()))
                meta = pyarrow.parquet.ParquetFile(raw).metadata
            _check_row_groups(file.path, meta, file.size)
            pieces = _pieces(file, meta)
            self._remember(file.path, state, pieces)
            return pieces
        return _pieces(file, _footer(file))

    def _state_of(self, file: DataFile, status: os.stat_result) -> Any:
        """Return what distinguishes versions of a file; None if it is not to be remembered."""
        is_listed = (file.size, file.token) == (status.st_size, str(status.st_mtime_ns))
        if not is_listed or time.time_ns() - status.st_ctime_ns < _SETTLED_NS:
            return None
        return file, status.st_dev, status.st_ino, status.st_ctime_ns

    def _remember(self, path: str, state: Any, pieces: Sequence[FileBlock]) -> None:
        with self._lock:
            self._forget(path)
            if state is None or len(pieces) > _PIECES_MAX:
                return
            self._known[path] = state, pieces
            self._n_pieces += len(pieces)
            while self._n_pieces > _PIECES_MAX:
                self._forget(next(iter(self._known)))

    def _forget(self, path: str) -> None:
        _, pieces = self._known.pop(path, (None, ()))
        self._n_pieces -= len(pieces)


_footers: Final = _Footers()


def _footer(file: DataFile) -> Any:
    with _open_parquet(file.path) as opened:
        return opened.metadata


@contextlib.contextmanager
def _open_parquet(path: str) -> Iterator[Any]:
    # Arrow's own files of this machine: those of Python take as long as to read a small file.
    with open_binary(path, pyarrow.OSFile) as raw, reading(path):
        file = pyarrow.parquet.ParquetFile(raw)
        _check_row_groups(path, file.metadata, raw.seek(0, 2))
        yield file


def _check_row_groups(path: str, meta: Any, nbytes: int) -> None:
    """Check the sizes that a Parquet file gives of its row groups, of which each is read at once.

    Repeated values are stored once, so that a row group may expand far more than other data.
    """
    for index in range(meta.num_row_groups):
        group = meta.row_group(index)
        table_bytes = max(group.total_byte_size, 8 * group.num_rows * meta.num_columns)
        if group.num_rows < 0 or group.total_byte_size < 0:
            raise DataError(f"{path}: row group {index} has a negative size")
        check_expansion(path, f"row group {index}", table_bytes // _ROW_GROUP_FACTOR, nbytes)


read_csv = reader(CsvSource)
read_parquet = reader(ParquetSource)
