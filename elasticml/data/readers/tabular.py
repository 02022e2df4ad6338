"""Read CSV by byte ranges and Parquet by row groups, both with pyarrow.

An invalid CSV cell is reported with its line and column.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NoReturn

import pyarrow
import pyarrow.csv
import pyarrow.parquet

from elasticml.data.chunks.chunk import Chunk, Dtype, Layout
from elasticml.data.chunks.chunker import cut
from elasticml.data.chunks.rows import fit_columns
from elasticml.data.dataset_stats import BlockSummary, DatasetStats, merge_layout_kinds, summarise
from elasticml.data.readers.files import (
    FileInfo,
    Piece,
    absolute,
    block_pieces,
    file_info,
    fingerprint,
    is_versioned,
    line_number,
    once_per_version,
    open_binary,
    text_blocks,
)
from elasticml.data.readers.table_encoding import (
    TableColumns,
    Vocabularies,
    resolve_columns,
    table_rows,
    table_vocabularies,
)
from elasticml.data.source import BlockInfo, resolve_chunk_bytes
from elasticml.errors import ConfigError, DataError
from elasticml.specification.data import CsvSpec, ParquetSpec

# Parse pieces of CSV text with pyarrow, and report the line and column of an invalid cell.

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
    path: str, block: int, info: FileInfo, delimiter: str, header: bool
) -> Iterator[CsvText]:
    """Yield the non-blank pieces of one block."""
    names = csv_names(path, info.token, delimiter, header)
    for piece in block_pieces(path, block, info):
        skipped = 0
        if header and piece.offset == 0:
            skipped = piece.text.find(b"\n") + 1 or len(piece.text)
        if _NOT_BLANK.search(piece.text, skipped):
            yield CsvText(path=path, piece=piece, skipped=skipped, names=names, delimiter=delimiter)


def parse_csv(text: CsvText, columns: TableColumns, names: Sequence[str]) -> Any:
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


def _explain(text: CsvText, columns: TableColumns, error: str) -> NoReturn:
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


def _complaint(fields: Sequence[str], names: Sequence[str], columns: TableColumns) -> str:
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
    piece = next(block_pieces(path, 0, file_info(path)), None)
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


# Read CSV by byte ranges and Parquet by row groups, both with pyarrow.

#: Name that pandas gives to the column in which it stores an unnamed index.
_ROW_NUMBERS: Final = re.compile(r"__index_level_\d+__")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """A CSV file in byte ranges, or a Parquet file in row groups."""

    kind: Literal["csv", "parquet"]
    path: str
    label: str | int
    weight: str | int | None
    categorical: tuple[str | int, ...]
    ignore: tuple[str | int, ...]
    #: CSV only.
    delimiter: str
    header: bool
    dtype: Dtype
    n_columns: int | None = None
    #: Distinct values of the categorical columns, by column name; from the survey.
    vocabularies: Vocabularies | None

    @property
    def needs_survey(self) -> bool:
        """Whether there are categorical columns without a vocabulary yet."""
        return bool(self.categorical) and self.vocabularies is None

    @property
    def is_costly(self) -> bool:
        """Whether to cache blocks: CSV is worth it, if a change of the file can be detected."""
        return self.kind == "csv" and is_versioned(self.path)

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        vocabularies = self.vocabularies
        spec = {
            "format": self.kind,
            "path": self.path,
            "label": self.label,
            "weight": self.weight,
            "categorical": list(self.categorical),
            "ignore": list(self.ignore),
            "dtype": self.dtype,
            "n_columns": self.n_columns,
            "vocabularies": None
            if vocabularies is None
            else {k: list(v) for k, v in vocabularies.items()},
        }
        is_csv = self.kind == "csv"
        return {**spec, "delimiter": self.delimiter, "header": self.header} if is_csv else spec

    def fingerprint(self) -> str:
        """Return 16 hex digits over path, size, modification time and options."""
        return fingerprint(self.spec(), file_info(self.path))

    def blocks(self) -> list[BlockInfo]:
        """Return byte ranges or row groups; raises for a missing, empty or unreadable file."""
        info = file_info(self.path)
        if self.kind == "csv":
            return text_blocks(info)
        with _open_parquet(self.path) as file:
            meta = file.metadata
            groups = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
            width = 8 * meta.num_columns
        if sum(groups) == 0:
            raise DataError(f"{self.path} holds no rows, wanted at least one", path=self.path)
        return [BlockInfo(index=i, nbytes=n * width, rows=n) for i, n in enumerate(groups)]

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read one block; see :class:`elasticml.data.source.Source`.

        Raises
        ------
        ConfigError
            When there are categorical columns and no survey was done.
        """
        if self.needs_survey:
            raise ConfigError(
                f"{self.path} has categorical columns {list(self.categorical)}: survey every block "
                "and read with the merged facts",
                path=self.path,
            )
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        info, vocabularies = file_info(self.path), self.vocabularies or {}
        name, columns = fingerprint(self.spec(), info), self._columns(info)
        chunks: list[Chunk] = []
        counts: dict[str, int] = {}
        width = 0
        for table, place in self._tables(block, info, columns, columns.used):
            rows = table_rows(table, columns, vocabularies, self.path, place, counts)
            if self.n_columns is not None:
                rows = fit_columns(rows, self.n_columns, counts)
            width = rows.n_columns
            start = len(chunks)
            chunks += cut(rows, name, block, size, dtype=self.dtype, first_ordinal=start)
        kind = merge_layout_kinds([chunk.layout.kind for chunk in chunks])
        layout = Layout(kind=kind, dtype=self.dtype, n_columns=width)
        reported = vocabularies if block == 0 else {}
        return chunks, summarise(block, chunks, layout, counts=counts, vocabularies=reported)

    def survey(self, block: int) -> BlockSummary:
        """Return the distinct values of the categorical columns in one block."""
        info = file_info(self.path)
        columns = self._columns(info)
        categorical = sorted(columns.categorical)
        values_by_column: dict[str, set[str]] = {name: set() for name in categorical}
        n_rows = 0
        for table, place in self._tables(block, info, columns, categorical):
            n_rows += table.num_rows
            for name, values in table_vocabularies(table, columns, self.path, place).items():
                values_by_column[name].update(values)
        return BlockSummary(
            block=block,
            rows=n_rows,
            n_columns=0,
            layout=Layout(kind="dense", dtype=self.dtype, n_columns=0),
            vocabularies={name: sorted(values) for name, values in values_by_column.items()},
        )

    def with_stats(self, facts: DatasetStats) -> TableSource:
        """Return a source with the vocabularies of a survey, or of the training data."""
        is_survey = facts.n_columns == 0
        return replace(
            self,
            vocabularies=facts.vocabularies if self.categorical else self.vocabularies,
            n_columns=self.n_columns if is_survey else facts.n_columns,
        )

    def with_columns(self, n_columns: int) -> TableSource:
        """Return a source with ``n_columns`` columns; columns beyond are dropped."""
        return replace(self, n_columns=n_columns)

    def _columns(self, info: FileInfo) -> TableColumns:
        find = csv_names if self.kind == "csv" else _parquet_names
        return resolve_columns(
            find(self.path, info.token, self.delimiter, self.header),
            label=self.label,
            weight=self.weight,
            categorical=self.categorical,
            ignore=self.ignore,
            path=self.path,
        )

    def _tables(
        self, block: int, info: FileInfo, columns: TableColumns, names: Sequence[str]
    ) -> Iterator[tuple[Any, Callable[[int], str]]]:
        """Yield a block's tables with the named columns, and a function that locates a row."""
        if self.kind == "parquet":
            with _open_parquet(self.path) as file:
                table = file.read_row_group(block, columns=list(names), use_threads=False)
            yield table, lambda row: f"row {row} of row group {block}"
            return
        for text in csv_texts(self.path, block, info, self.delimiter, self.header):
            yield parse_csv(text, columns, names), functools.partial(place_of, text)


def read_csv(
    path: str,
    label: str | int,
    *,
    weight: str | int | None = None,
    categorical: Sequence[str | int] = (),
    ignore: Sequence[str | int] = (),
    delimiter: str = ",",
    header: bool = True,
    dtype: Dtype = "float64",
    n_columns: int | None = None,
) -> TableSource:
    r"""Return a source for a CSV file; nothing is read yet.

    Parameters
    ----------
    path : str
        Local path or fsspec URL; gzip, bzip2 and xz are recognised by the first bytes. Fields must
        not contain line breaks.
    label, weight : str or int
        Column name, or position from 0; -1 is the last column.
    categorical : sequence of str or int
        Columns to encode as one-hot at their position, with values sorted. May include the label,
        whose values become 0, 1, ... in sorted order.
    ignore : sequence of str or int
        Columns that are not features.
    delimiter : str
        One character, such as ``","`` or ``"\t"``.
    header : bool
        Whether the first line names the columns; else they are named "0", "1", ...
    dtype, n_columns
        As for :func:`elasticml.data.readers.svmlight.read_svmlight`.

    Raises
    ------
    ConfigError
        When a setting is out of range.
    """
    return source_of(
        CsvSpec(
            path=str(path),
            label=label,
            weight=weight,
            categorical=tuple(categorical),
            ignore=tuple(ignore),
            delimiter=delimiter,
            header=header,
            dtype=dtype,
            n_columns=n_columns,
        )
    )


def read_parquet(
    path: str,
    label: str | int,
    *,
    weight: str | int | None = None,
    categorical: Sequence[str | int] = (),
    ignore: Sequence[str | int] = (),
    dtype: Dtype = "float64",
    n_columns: int | None = None,
) -> TableSource:
    """Return a source for a Parquet file; a block is a row group. Parameters as :func:`read_csv`.

    Raises
    ------
    ConfigError
        When a setting is out of range.
    """
    return source_of(
        ParquetSpec(
            path=str(path),
            label=label,
            weight=weight,
            categorical=tuple(categorical),
            ignore=tuple(ignore),
            dtype=dtype,
            n_columns=n_columns,
        )
    )


def source_of(spec: CsvSpec | ParquetSpec) -> TableSource:
    """Build the source from the options of ``format: csv`` or ``format: parquet``."""
    text = spec if isinstance(spec, CsvSpec) else None
    return TableSource(
        kind="parquet" if text is None else "csv",
        path=absolute(spec.path),
        label=spec.label,
        weight=spec.weight,
        categorical=spec.categorical,
        ignore=spec.ignore,
        delimiter="," if text is None else text.delimiter,
        header=True if text is None else text.header,
        dtype=spec.dtype,
        n_columns=spec.n_columns,
        vocabularies=spec.vocabularies,
    )


@once_per_version
def _parquet_names(path: str, token: str, delimiter: str, header: bool) -> tuple[str, ...]:
    """Return the names of the columns, from the schema; the last two arguments are unused.

    A column in which pandas has stored an unnamed index is omitted, as pandas does.
    """
    with _open_parquet(path) as file:
        names = file.schema_arrow.names
    return tuple(name for name in names if not _ROW_NUMBERS.fullmatch(name))


@contextlib.contextmanager
def _open_parquet(path: str) -> Iterator[Any]:
    with open_binary(path) as raw:
        try:
            file = pyarrow.parquet.ParquetFile(raw)
        except (pyarrow.ArrowInvalid, OSError) as error:
            raise DataError(f"{path} is not a readable Parquet file: {error}", path=path) from None
        yield file
