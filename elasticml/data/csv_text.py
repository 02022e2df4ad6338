"""Parse pieces of CSV text with pyarrow, and report the line and column of an invalid cell."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import pyarrow
import pyarrow.csv

from elasticml.data.files import (
    FileFacts,
    Piece,
    block_pieces,
    file_facts,
    line_number,
    once_per_version,
)
from elasticml.data.tables import Columns
from elasticml.errors import DataError

#: Texts that mean a missing value.
MISSING: Final = ("", "?", "NA", "N/A", "#N/A", "n/a", "NaN", "nan", "-nan", "NULL", "null")

_NOT_BLANK: Final = re.compile(rb"\S")


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvText:
    """Whole lines of a CSV file, and how to parse them."""

    path: str
    piece: Piece
    #: Bytes of the header line at the start of the text; 0 if there is none.
    skipped: int
    names: Sequence[str]
    delimiter: str


def csv_texts(
    path: str, block: int, info: FileFacts, delimiter: str, header: bool
) -> Iterator[CsvText]:
    """Yield the non-blank pieces of one block."""
    names = csv_names(path, info.token, delimiter, header)
    for piece in block_pieces(path, block, info):
        skipped = 0
        if header and piece.offset == 0:
            skipped = piece.text.find(b"\n") + 1 or len(piece.text)
        if _NOT_BLANK.search(piece.text, skipped):
            yield CsvText(path=path, piece=piece, skipped=skipped, names=names, delimiter=delimiter)


def parse_csv(text: CsvText, columns: Columns, names: Sequence[str]) -> Any:
    """Parse columns of the text into a table: strings if categorical, else float64.

    Raises
    ------
    DataError
        When a line has too many or too few fields, or a field of a numeric column is not a number.
    """
    types = {
        name: pyarrow.string() if name in columns.categorical else pyarrow.float64()
        for name in names
    }
    data = pyarrow.py_buffer(text.piece.text)[text.skipped :]
    try:
        return pyarrow.csv.read_csv(
            pyarrow.BufferReader(data),
            read_options=pyarrow.csv.ReadOptions(
                column_names=list(text.names), use_threads=False, block_size=data.size + 1
            ),
            parse_options=pyarrow.csv.ParseOptions(delimiter=text.delimiter),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types,
                include_columns=list(names),
                null_values=list(MISSING),
                strings_can_be_null=True,
            ),
        )
    except pyarrow.ArrowInvalid as error:
        _explain(text, columns, str(error))


def _explain(text: CsvText, columns: Columns, error: str) -> NoReturn:
    """Parse the text again, slowly, to find the cell that pyarrow rejected."""
    path, at = text.path, text.skipped
    for raw in io.BytesIO(text.piece.text[at:]):
        fields = next(csv.reader([raw.decode("utf-8", "replace")], delimiter=text.delimiter), [])
        complaint = _complaint(fields, text.names, columns)
        if complaint:
            line = line_number(path, text.piece, at)
            raise DataError(f"{path}, line {line}{complaint}", path=path, line=line)
        at += len(raw)
    raise DataError(f"{path} cannot be parsed as CSV: {error}", path=path)


def _complaint(fields: Sequence[str], names: Sequence[str], columns: Columns) -> str:
    """Describe what is wrong with a line; "" if it is valid or blank."""
    if fields and len(fields) != len(names):
        return f": {len(fields)} fields, wanted {len(names)}"
    for name, field in zip(names, fields, strict=False):
        if name in columns.numeric and not _is_number(field):
            complaint = f", column {name!r}: value is {field[:40]!r}, wanted a number"
            if name in columns.features:
                return complaint + (
                    "; list the column in data.categorical or data.ignore if it holds text"
                )
            return complaint + "; write labels and weights as numbers, classes as 0, 1, and so on"
    return ""


def place_of(text: CsvText, row: int) -> str:
    """Return the line of a row, for messages; blank lines are not rows."""
    at, current_row = text.skipped, -1
    for raw in io.BytesIO(text.piece.text[at:]):
        current_row += 1 if raw.strip() else 0
        if current_row == row:
            break
        at += len(raw)
    return f"line {line_number(text.path, text.piece, at)}"


@once_per_version
def csv_names(path: str, token: str, delimiter: str, header: bool) -> tuple[str, ...]:
    """Return the names of the columns, from the first line; ``token`` is the file's version."""
    piece = next(block_pieces(path, 0, file_facts(path)), None)
    first = b"" if piece is None else piece.text.partition(b"\n")[0]
    fields = next(csv.reader([first.decode("utf-8-sig", "replace")], delimiter=delimiter), [])
    if not fields:
        raise DataError(f"{path}, line 1 is blank, wanted columns", path=path)
    return tuple(fields) if header else tuple(str(i) for i in range(len(fields)))


def _is_number(field: str) -> bool:
    if field.strip() in MISSING:
        return True
    try:
        float(field)
    except ValueError:
        return False
    return True
