"""Read CSV by byte ranges and Parquet by row groups, both with pyarrow."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, Literal

import numpy as np
import pyarrow
import pyarrow.parquet
import scipy.sparse

from elasticml.data.chunks.chunk import Chunk, Dtype, Layout
from elasticml.data.chunks.chunker import Rows, cut
from elasticml.data.chunks.rows import fit_columns
from elasticml.data.column_survey import (
    ColumnMoments,
    ColumnSurvey,
    merge_moments,
    moments_of,
    moments_of_values,
)
from elasticml.data.dataset_stats import BlockSummary, DatasetStats, merge_layout_kinds, summarise
from elasticml.data.out_of_core.mapped_memory import process_memory
from elasticml.data.readers.csv_text import (
    HEAD_LINES,
    CsvFormat,
    Words,
    csv_columns,
    csv_format,
    csv_texts,
    head_records,
    parse_csv,
)
from elasticml.data.readers.file_parts import Listing, Part, PartBlock, parts_of
from elasticml.data.readers.files import (
    absolute,
    file_info,
    once_per_version,
    open_binary,
    text_blocks,
)
from elasticml.data.readers.table_encoding import (
    ColumnType,
    Place,
    TableColumns,
    TableEncoder,
    columns_of_survey,
    encoder_from_json,
    fit_encoder,
    matrix_of,
    needs_statistics,
    resolve_columns,
    survey_table,
    type_of_arrow,
)
from elasticml.data.source import BlockInfo, infer_format, resolve_chunk_bytes
from elasticml.data.storage.untrusted_files import (
    check_expansion,
    reading,
    reads_untrusted_files,
)
from elasticml.errors import ConfigError, DataError, one_line
from elasticml.specification.data import CsvSpec, DatePart, Fill, ParquetSpec
from elasticml.specification.settings_model import did_you_mean


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
@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """CSV files in byte ranges, or Parquet files in row groups."""

    settings: CsvSpec | ParquetSpec
    #: From the survey, or of the training data.
    encoder: TableEncoder | None = None
    #: Kept by a source that lists its files once.
    listing: Listing | None = field(default=None, compare=False, repr=False)

    @property
    def path(self) -> str:
        """The file, folder or pattern."""
        return self.settings.path

    @property
    def needs_survey(self) -> bool:
        """Whether the encoding depends on all blocks and was not fitted yet."""
        if self.encoder is not None:
            return False
        columns = self._columns()
        # A word among the numbers of a CSV file may be in any row.
        open_types = set(columns.used) - columns.numeric if self._is_csv else set()
        return bool(
            self.settings.categorical
            or needs_statistics(self.settings, columns)
            or any(columns.types.get(name) in ("number", "boolean") for name in open_types)
        )

    @property
    def is_costly(self) -> bool:
        """Whether to cache blocks: CSV is worth it, if a change of the file can be detected."""
        return self._is_csv and self._files().are_versioned

    @property
    def _is_csv(self) -> bool:
        return isinstance(self.settings, CsvSpec)

    def spec(self) -> dict[str, Any]:
        """Return a JSON-able dict from which the source can be rebuilt."""
        if self.encoder is not None:
            return {**self._options(), "encoder": self.encoder.to_json()}
        return {**self._options(), "words": self.settings.words}

    def fingerprint(self) -> str:
        """Return 16 hex digits over path, sizes, modification times and options."""
        # The digest of a table without new options is that of older versions: chunks are named
        # after it.
        encoder = self.encoder
        words = {} if encoder is None else encoder.vocabularies()
        options = {**self._options(), "vocabularies": words or None}
        if isinstance(self.settings, CsvSpec):
            options["delimiter"] = _format_of(self.settings, self._files().parts[0]).delimiter
        if encoder is not None and not encoder.is_plain:
            options["encoder"] = encoder.to_json()
        return self._files().fingerprint(options)

    def _options(self) -> dict[str, Any]:
        """Return the basic options, and further ones that differ from the defaults."""
        made = self.settings.model_dump(mode="json", exclude={"encoder", "words"})
        plain = {"delimiter", "header", *_BASIC_OPTIONS}
        fields = type(self.settings).model_fields
        kept = {
            k: v
            for k, v in made.items()
            if k in plain or getattr(self.settings, k) != fields[k].default
        }
        return {"format": self.settings.format, **kept}

    def blocks(self) -> list[BlockInfo]:
        """Return byte ranges or row groups; raises for a missing, empty or unreadable file."""
        blocks = [part.block for part in self._files().blocks]
        if all(block.rows == 0 for block in blocks):
            raise DataError(f"{self.path} holds no rows, wanted at least one", path=self.path)
        return blocks

    def _place(self, at: PartBlock, table: int, row: int) -> str:
        """Return the line of a row of one of a block's tables."""
        assert isinstance(self.settings, CsvSpec)
        format = _format_of(self.settings, self._files().parts[0])
        texts = csv_texts(at.part.path, at.index, at.part.info, format)
        return next(islice(texts, table, None)).place(row)

    def _parsed_name(self) -> str:
        """Return a digest of the files and of all options on which their parsing depends."""
        options = {**self._options(), "words": self.settings.words}
        return self._files().fingerprint(options)

    def listed_once(self) -> TableSource:
        """Return a source that lists its files once."""
        return replace(self, listing=self._files())

    def _files(self) -> Listing:
        if self.listing is not None:
            return self.listing
        blocks_of = _text_blocks if self._is_csv else _group_blocks
        return Listing(self.path, self.settings.format, blocks_of)

    def read(
        self, block: int, chunk_bytes: int | None, n_members: int
    ) -> tuple[list[Chunk], BlockSummary]:
        """Read one block; see :class:`elasticml.data.source.Source`.

        Raises
        ------
        ConfigError
            When the encoding needs a survey and none was done.
        """
        if self.needs_survey:
            raise ConfigError(
                f"the encoding of {self.path} depends on all rows: survey all blocks and read with "
                "the merged facts",
                path=self.path,
            )
        size = resolve_chunk_bytes(self, chunk_bytes, n_members)
        files = self._files()
        encoder, at = self.fitted_encoder(), files.block(block)
        name, dtype = self.fingerprint(), self.settings.dtype
        chunks: list[Chunk] = []
        counts: dict[str, int] = {}
        moments: dict[str, ColumnMoments] = {}
        width = 0
        tables = _surveyed.take(self._parsed_name(), block) if self.is_costly else None
        for table, place in tables or self._tables(at, _types_of(encoder), encoder.used):
            rows = encoder.rows(table, at.part.path, place, counts)
            for column, some in column_moments(encoder, rows).items():
                before = moments.get(column)
                moments[column] = some if before is None else merge_moments([before, some])
            if self.settings.n_columns is not None:
                rows = fit_columns(rows, self.settings.n_columns, counts)
            width = rows.n_columns
            start = len(chunks)
            chunks += cut(rows, name, block, size, dtype=dtype, first_ordinal=start)
        files.check(at.part)
        kind = merge_layout_kinds([chunk.layout.kind for chunk in chunks])
        layout = Layout(kind=kind, dtype=dtype, n_columns=width)
        if block:
            return chunks, summarise(block, chunks, layout, counts=counts, moments=moments)
        counts |= {note.replace("{", "(").replace("}", ")"): 1 for note in encoder.notes}
        return chunks, summarise(
            block,
            chunks,
            layout,
            counts=counts,
            moments=moments,
            vocabularies=encoder.vocabularies(),
            encoder=encoder.to_json(),
        )

    def survey(self, block: int) -> BlockSummary:
        """Return the statistics of one block on which the encoding depends."""
        columns = self._columns()
        names = columns.used if self._is_csv else columns_of_survey(self.settings, columns)
        types: dict[str, ColumnType] = {**columns.types, **dict.fromkeys(columns.listed, "text")}
        files = self._files()
        at = files.block(block)
        words = Words(refused=columns.numeric)
        tables = list(self._tables(at, types, names, words))
        files.check(at.part)
        surveys = survey_table(tables, self.settings, columns, at.part.path, words.cells)
        if self.is_costly:
            # Without the text, which is read again if an error has to name a line.
            kept: list[tuple[Any, Place]] = [
                (t, functools.partial(self._place, at, k)) for k, (t, _) in enumerate(tables)
            ]
            _surveyed.keep(self._parsed_name(), block, kept)
        return BlockSummary(
            block=block,
            rows=sum(table.num_rows for table, _ in tables),
            n_columns=0,
            layout=Layout(kind="dense", dtype=self.settings.dtype, n_columns=0),
            columns=surveys,
        )

    def with_stats(self, facts: DatasetStats) -> TableSource:
        """Return a source with the encoding that a survey gives, or that of the training data.

        Where the survey has found text among numbers, the source needs another survey.
        """
        words = {name: one.word for name, one in facts.columns.items() if one.word is not None}
        if words:
            update = {"words": {**(self.settings.words or {}), **words}}
            return replace(self, settings=self.settings.model_copy(update=update))
        if facts.columns:
            return replace(self, encoder=self._fit(facts.columns))
        source = self if facts.n_columns == 0 else self.with_columns(facts.n_columns)
        if facts.encoder is None:
            return source
        return replace(source, encoder=encoder_from_json(facts.encoder))

    def with_columns(self, n_columns: int) -> TableSource:
        """Return a source with ``n_columns`` columns; columns beyond are dropped."""
        return replace(self, settings=self.settings.model_copy(update={"n_columns": n_columns}))

    def fitted_encoder(self) -> TableEncoder:
        """Return the encoder; one that depends on no statistics is not kept."""
        return self.encoder or self._fit({})

    def _fit(self, surveys: Mapping[str, ColumnSurvey]) -> TableEncoder:
        settings, cells = self.settings, dict[str, str]()
        if isinstance(settings, CsvSpec):
            part = self._files().parts[0]
            cells.update(csv_columns(part.path, part.info.token, _format_of(settings, part)).texts)
        return fit_encoder(
            settings, self._columns(), surveys, self.path, {**cells, **(settings.words or {})}
        )

    def _columns(self) -> TableColumns:
        names, types = _columns_of(self.settings, self._files().parts[0])
        separated = ""
        if isinstance(self.settings, CsvSpec):
            delimiter = _format_of(self.settings, self._files().parts[0]).delimiter
            how = "as in its first line" if self.settings.delimiter is None else "data.delimiter"
            separated = f", separated by {delimiter!r} ({how})"
        return resolve_columns(names, types, self.settings, self.path, separated)

    def _tables(
        self,
        at: PartBlock,
        types: Mapping[str, ColumnType],
        names: Sequence[str],
        words: Words | None = None,
    ) -> Iterator[tuple[Any, Place]]:
        """Yield a block's tables with the named columns, and a function that locates a row."""
        path, info = at.part.path, at.part.info
        _check_names(path, _columns_of(self.settings, at.part)[0], names)
        if not isinstance(self.settings, CsvSpec):
            yield from _parquet_tables(path, _pieces(path, info.token)[at.index], names)
            return
        parsed = {name: types.get(name, "number") for name in names}
        # All files are written as the first one.
        format = _format_of(self.settings, self._files().parts[0])
        for text in csv_texts(path, at.index, info, format):
            yield parse_csv(text, parsed, words), text.place


def _text_blocks(part: Part) -> Sequence[BlockInfo]:
    return text_blocks(part.info)


def _group_blocks(part: Part) -> Sequence[BlockInfo]:
    """Return the pieces of a Parquet file's row groups as blocks."""
    pieces = _pieces(part.path, part.info.token)
    return [BlockInfo(index=i, nbytes=one.nbytes, rows=one.rows) for i, one in enumerate(pieces)]


def _parquet_tables(path: str, piece: _Piece, names: Sequence[str]) -> Iterator[tuple[Any, Place]]:
    """Yield the tables of a piece; the rows before it in its row group are decoded, too."""
    start, end = 0, piece.first + piece.rows
    with _open_parquet(path) as file:
        if not piece.rows:
            table = file.read_row_group(piece.group, columns=list(names))
            yield table, functools.partial(_row_of_group, piece.group, 0)
            return
        for batch in file.iter_batches(
            _BATCH_ROWS, row_groups=[piece.group], columns=list(names), use_threads=False
        ):
            low, start = max(piece.first, start), start + batch.num_rows
            if low < min(start, end):
                rows = batch.slice(low - start + batch.num_rows, min(start, end) - low)
                place = functools.partial(_row_of_group, piece.group, low)
                yield pyarrow.Table.from_batches([rows]), place
            if start >= end:
                return


def _check_names(path: str, there: Sequence[str], names: Sequence[str]) -> None:
    """Check that a file has the columns of the first one, and test data those of training data."""
    missing = [name for name in names if name not in there]
    if missing:
        raise DataError(
            f"{path} lacks column {missing[0]!r} ({len(missing)} in all), wanted the columns of "
            "the training data; name the right file",
            path=path,
            column=missing[0],
        )


#: Bytes of the numbers of a row group that are read at once, unless a batch has more.
_PIECE_BYTES: Final = 64 << 20
#: Row groups may expand this many times as much as other compressed data.
_ROW_GROUP_FACTOR: Final = 8
#: Tables with more columns are not searched for columns to warn of.
_MOMENTS_MAX: Final = 1000
#: Nor are categorical columns with more values.
_VALUES_MAX: Final = 50
#: Rows that are predicted at once.
_BATCH_ROWS: Final = 65_536
#: Options that were part of every fingerprint from the beginning.
_BASIC_OPTIONS: Final = (
    "path", "label", "weight", "categorical", "ignore", "dtype", "n_columns",
)  # fmt: skip


def _types_of(encoder: TableEncoder) -> dict[str, ColumnType]:
    """Return the types as which an encoder reads the columns of a CSV file."""
    types: dict[str, ColumnType] = {name: "number" for name in encoder.used}
    types |= dict.fromkeys(encoder.texts, "text")
    types |= dict.fromkeys(encoder.booleans, "boolean")
    return types


def column_moments(encoder: TableEncoder, rows: Rows) -> dict[str, ColumnMoments]:
    """Return sizes of the columns, and their products with the labels, for warnings."""
    starts = np.cumsum([0, *(column.width for column in encoder.columns)])
    numeric: dict[str, int] = {}
    values: dict[str, slice] = {}
    for column, start in zip(encoder.columns, starts.tolist(), strict=False):
        if column.kind in ("number", "date"):
            numeric[column.name] = start
        elif column.kind == "category" and column.width <= _VALUES_MAX:
            values[column.name] = slice(start, start + column.width)
    if not 0 < len(numeric) + len(values) <= _MOMENTS_MAX:
        return {}
    X, y = matrix_of(rows), rows.labels
    X = X.tocsc() if scipy.sparse.issparse(X) else X
    some = X[:, list(numeric.values())].toarray() if scipy.sparse.issparse(X) else X
    # One transposition reads each cache line once, not once per column.
    columns = np.ascontiguousarray(some.T)
    at = range(len(numeric)) if scipy.sparse.issparse(X) else numeric.values()
    moments = {name: moments_of(columns[k], y) for name, k in zip(numeric, at, strict=True)}
    names = encoder.names()
    for name, place in values.items():
        moments |= moments_of_values(name, names[place], X[:, place], y)
    return moments


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
        for part in parts_of(path, format):
            yield from _feature_tables(part, format == "csv", encoder, keep)


def _feature_tables(
    part: Part, is_csv: bool, encoder: TableEncoder, keep: Sequence[str]
) -> Iterator[tuple[Any, Place]]:
    path, info = part.path, part.info
    if is_csv:
        format = csv_format(path, info.token, encoder.delimiter, encoder.header, encoder.na_values)
        found = csv_columns(path, info.token, format)
        names, types = found.names, found.types
    else:
        names, types = _parquet_columns(path, info.token)
    features = [column.name for column in encoder.columns]
    if is_csv and not encoder.header and len(names) == len(features):
        names = tuple(features)  # without a header columns are known by position: there is no label
    encoder.check_names(names, path)
    lacking = [name for name in keep if name not in names]
    if lacking:
        raise ConfigError(
            f"{path} has no column {lacking[0]!r} to keep{did_you_mean(lacking[0], names)}",
            path=path,
        )
    used = [name for name in names if name in {*encoder.used, *keep}]
    if not is_csv:
        with _open_parquet(path) as file:
            at = 0
            for batch in file.iter_batches(_BATCH_ROWS, columns=used, use_threads=False):
                start, at = at, at + batch.num_rows
                yield pyarrow.Table.from_batches([batch]), functools.partial(_row_from, start)
        return
    kinds = {**dict(zip(names, types, strict=True)), **_types_of(encoder)}
    for block in text_blocks(info):
        for text in csv_texts(path, block.index, info, format):
            named = replace(text, names=names)
            yield parse_csv(named, {name: kinds[name] for name in used}), named.place


def _row_of_group(group: int, start: int, row: int) -> str:
    return f"row {start + row} of row group {group}"


def _row_from(start: int, row: int) -> str:
    return f"row {start + row}"


def _columns_of(
    settings: CsvSpec | ParquetSpec, part: Part
) -> tuple[Sequence[str], Sequence[ColumnType]]:
    if isinstance(settings, CsvSpec):
        found = csv_columns(part.path, part.info.token, _format_of(settings, part))
        return found.names, found.types
    columns: tuple[Sequence[str], Sequence[ColumnType]] = _parquet_columns(
        part.path, part.info.token
    )
    return columns


def _format_of(settings: CsvSpec, part: Part) -> CsvFormat:
    """Return how a file is written, as the settings and its first line say."""
    return csv_format(
        part.path, part.info.token, settings.delimiter, settings.header, settings.na_values
    )


def read_csv(
    path: str,
    label: str | int,
    *,
    weight: str | int | None = None,
    categorical: Sequence[str | int] = (),
    numeric: Sequence[str | int] = (),
    ignore: Sequence[str | int] = (),
    missing: Fill = "error",
    missing_indicator: bool = False,
    max_categories: int | None = None,
    rare: Literal["other", "hash"] = "other",
    dates: Sequence[DatePart] = ("days",),
    unknown: Literal["ignore", "error"] = "ignore",
    missing_columns: Literal["error", "fill"] = "error",
    extra_columns: Literal["ignore", "error"] = "ignore",
    delimiter: str | None = None,
    header: bool = True,
    na_values: Sequence[str] = (),
    dtype: Dtype = "float64",
    n_columns: int | None = None,
) -> TableSource:
    r"""Return a source for CSV data; nothing is read yet.

    Parameters
    ----------
    path : str
        Local path or fsspec URL of a file, of a folder of files, or a pattern such as
        ``"2026/*.csv"``. In one file gzip, bzip2 and xz are recognised by the first bytes, in
        several by the suffix. The text is UTF-8, with or without a byte order mark, and each row
        ends with ``\n`` or ``\r\n``. A field in double quotes may contain delimiters, line breaks,
        and quotes, each written twice. Blank lines do not count. The decimal sign is a point.
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
    delimiter : str, optional
        One character; by default the most frequent of comma, semicolon, tab and ``|`` in the first
        line.
    header : bool
        Whether the first line names the columns; else they are named "0", "1", ...
    na_values : sequence of str
        Texts that mean a missing value, such as ``"-"``, besides those of pandas (empty and blank
        cells, ``NA``, ``N/A``, ``NaN``, ``NULL``, ``None``, ...) and ``?``.
    dtype, n_columns
        As for :func:`elasticml.data.readers.svmlight.read_svmlight`.

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
    return source_of(
        CsvSpec(
            path=str(path),
            label=label,
            weight=weight,
            categorical=tuple(categorical),
            numeric=tuple(numeric),
            ignore=tuple(ignore),
            missing=missing,
            missing_indicator=missing_indicator,
            max_categories=max_categories,
            rare=rare,
            dates=tuple(dates),
            unknown=unknown,
            missing_columns=missing_columns,
            extra_columns=extra_columns,
            delimiter=delimiter,
            header=header,
            na_values=tuple(na_values),
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
    numeric: Sequence[str | int] = (),
    ignore: Sequence[str | int] = (),
    missing: Fill = "error",
    missing_indicator: bool = False,
    max_categories: int | None = None,
    rare: Literal["other", "hash"] = "other",
    dates: Sequence[DatePart] = ("days",),
    unknown: Literal["ignore", "error"] = "ignore",
    missing_columns: Literal["error", "fill"] = "error",
    extra_columns: Literal["ignore", "error"] = "ignore",
    dtype: Dtype = "float64",
    n_columns: int | None = None,
) -> TableSource:
    """Return a source for Parquet data; a block is a row group. Nothing is read yet.

    Parameters
    ----------
    path : str
        Local path or fsspec URL of a file, of a folder of files as Dask and Spark write it, or a
        pattern such as ``"2026/*.parquet"``. The types of the columns are those of the first file.
    label, weight, categorical, numeric, ignore, missing, missing_indicator, max_categories, rare
        As for :func:`read_csv`.
    dates, unknown, missing_columns, extra_columns, dtype, n_columns
        As for :func:`read_csv`.

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
    return source_of(
        ParquetSpec(
            path=str(path),
            label=label,
            weight=weight,
            categorical=tuple(categorical),
            numeric=tuple(numeric),
            ignore=tuple(ignore),
            missing=missing,
            missing_indicator=missing_indicator,
            max_categories=max_categories,
            rare=rare,
            dates=tuple(dates),
            unknown=unknown,
            missing_columns=missing_columns,
            extra_columns=extra_columns,
            dtype=dtype,
            n_columns=n_columns,
        )
    )


def source_of(settings: CsvSpec | ParquetSpec) -> TableSource:
    """Build the source from the options of ``format: csv`` or ``format: parquet``."""
    fitted = settings.encoder
    update = {"path": absolute(settings.path), "encoder": None}
    return TableSource(
        settings=settings.model_copy(update=update),
        encoder=None if fitted is None else encoder_from_json(fitted),
    )


@once_per_version
def _parquet_columns(path: str, token: str) -> tuple[tuple[str, ...], tuple[ColumnType, ...]]:
    """Return the names and types of the columns, from the schema.

    A column in which pandas has stored an unnamed index is omitted, as pandas does.
    """
    with _open_parquet(path) as file:
        schema = file.schema_arrow
    kept = [field for field in schema if not _ROW_NUMBERS.fullmatch(field.name)]
    return tuple(f.name for f in kept), tuple(type_of_arrow(f.type) for f in kept)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive rows of a row group: all, or as many as are read at once."""

    group: int
    first: int
    rows: int
    nbytes: int


@once_per_version
def _pieces(path: str, token: str) -> tuple[_Piece, ...]:
    """Cut the row groups of a Parquet file into pieces of similar numbers of rows."""
    with _open_parquet(path) as file:
        meta = file.metadata
        rows = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
        width = 8 * meta.num_columns
    pieces = []
    for group, n in enumerate(rows):
        # A decoded row group is larger than its file, and a piece decodes those before it.
        count = -(-n * width // _PIECE_BYTES) or 1
        most = -(-n // count // _BATCH_ROWS) * _BATCH_ROWS or 1
        for first in range(0, max(n, 1), most):
            size = min(most, n - first)
            pieces.append(_Piece(group, first, size, size * width))
    return tuple(pieces)


@contextlib.contextmanager
def _open_parquet(path: str) -> Iterator[Any]:
    with open_binary(path) as raw:
        try:
            file = pyarrow.parquet.ParquetFile(raw)
        except Exception as error:  # of every kind, for damaged files
            why = one_line(error)
            raise DataError(f"{path} is not a readable Parquet file: {why}", path=path) from None
        _check_row_groups(path, file.metadata, raw)
        with reading(path):
            yield file


def _check_row_groups(path: str, meta: Any, raw: Any) -> None:
    """Check the sizes that a Parquet file gives of its row groups, of which each is read at once.

    Repeated values are stored once, so that a row group may expand far more than other data.
    """
    nbytes = raw.seek(0, 2)
    for index in range(meta.num_row_groups):
        group = meta.row_group(index)
        table_bytes = max(group.total_byte_size, 8 * group.num_rows * meta.num_columns)
        if group.num_rows < 0 or group.total_byte_size < 0:
            raise DataError(f"{path}: row group {index} has a negative size", path=path)
        check_expansion(path, f"row group {index}", table_bytes // _ROW_GROUP_FACTOR, nbytes)
