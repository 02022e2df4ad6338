"""CSV text: its delimiter, its columns and their types, and pieces parsed with pyarrow.

An invalid cell is reported with its line and column.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import pyarrow
import pyarrow.compute
import pyarrow.csv

from elasticml.data.readers.files import (
    FileBlock,
    Piece,
    block_pieces,
    file_info,
    line_number,
    once_per_version,
    text_blocks,
)
from elasticml.data.readers.table_encoding import (
    MISSING,
    ColumnType,
    are_dates,
    first_wrong,
    is_number,
    without_missing,
    wrong_cell,
)
from elasticml.errors import DataError, one_line

#: The delimiters that a header may have, the first if it has none of them.
_DELIMITERS: Final = ",;\t|"
_QUOTED: Final = re.compile(r'"[^"]*"')
_NOT_BLANK: Final = re.compile(rb"\S")
_BOOLEAN: Final = re.compile("true|false", re.IGNORECASE)
#: Lines from which the types of the columns are first inferred.
HEAD_LINES: Final = 1000
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
                _names_of(path, _head_of(path, _lines_of(piece.text), format, 1), format)
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
        table = _read(text, {n: _ARROW.get(kind, pyarrow.string()) for n, kind in types.items()})
    except pyarrow.ArrowInvalid:
        table = _parse_cells(text, types, words)
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
    return _head_of(path, head_lines(path), format)


def _head_of(
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
