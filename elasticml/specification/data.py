"""The options of each data format: a job's ``data`` section, and the specs that sources write.

A spec is what members rebuild a source from: the options, and what a survey has added.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from elasticml.specification.settings_model import (
    KEEP_INT,
    Count,
    Dtype,
    Flag,
    Index,
    NumberFrom0,
    SettingsModel,
)

Path = Annotated[str, Field(description="local path, or URL that fsspec opens")]
Column = int | str
Width = Annotated[int, Field(ge=1, description="number of columns of the training data")] | None


class DataSpec(SettingsModel):
    """The options of a source of one format."""

    format: ClassVar[str]

    @classmethod
    def path_in_messages(cls) -> str:
        """Return the section of the job file."""
        return "data"


class ArraysSpec(DataSpec):
    """Arrays in memory, which the client sends with the job; not for job files."""

    format: ClassVar[str] = "arrays"

    fingerprint: str
    rows: Index
    columns: Index
    nbytes: Index
    dtype: Dtype = "float64"
    n_columns: Width = None
    #: Whether a chunk holds some of the examples, or some features of all examples.
    by: Literal["rows", "columns"] = "rows"


class DaskSpec(DataSpec):
    """Partitions of Dask arrays, which stay on the workers that hold them; not for job files.

    The graph of the collections is not part of the spec: the client sends it with the job.
    """

    format: ClassVar[str] = "dask"

    #: Digest of the partitions' keys.
    fingerprint: str
    #: Rows of each partition; None: unknown until it is read.
    rows: tuple[Index | None, ...]
    #: Columns; None: unknown.
    columns: Index | None = None
    #: Type of the stored values.
    dtype: Dtype = "float64"
    #: Number of columns; values beyond them are dropped and counted in a note.
    n_columns: Width = None
    #: Whether the rows of chunks are examples ("rows") or features ("columns").
    by: Literal["rows", "columns"] = "rows"


class ChunksSpec(DataSpec):
    """A folder written by ``elasticml convert``, on a disk that all members can access."""

    format: ClassVar[str] = "chunks"

    path: Path
    #: Number of columns; values beyond them are dropped and counted in a note.
    n_columns: Width = None


class NpzSpec(DataSpec):
    """An ``.npz`` file with y, optionally sample_weight, and X or a CSR matrix."""

    format: ClassVar[str] = "npz"

    path: Path
    #: Type of the stored values.
    dtype: Dtype = "float64"
    #: Number of columns; values beyond them are dropped and counted in a note.
    n_columns: Width = None


class SvmlightSpec(DataSpec):
    """An svmlight file, plain or compressed by gzip, bzip2 or xz."""

    format: ClassVar[str] = "svmlight"

    path: Path
    #: Whether columns are numbered from 0; "auto" inspects the first 8 MiB of text.
    zero_based: bool | Literal["auto"] = "auto"
    #: Type of the stored values.
    dtype: Dtype = "float64"
    #: Number of columns; values beyond them are dropped and counted in a note.
    n_columns: Width = None


class ImagesSpec(DataSpec):
    """IDX files of images and labels, or a folder with a folder of images per class."""

    format: ClassVar[str] = "images"

    path: Path
    #: IDX file of labels; by default the path with images-idx3 replaced by labels-idx1.
    labels: str | None = None
    #: Type of the stored values.
    dtype: Dtype = "float64"
    #: Number of columns; values beyond them are dropped and counted in a note.
    n_columns: Width = None
    #: Height and width to which image files are resized; by default all must have the first's.
    size: tuple[Count, Count] | None = None
    #: Three colour channels, or greyscale, of image files; by default RGB.
    mode: Literal["RGB", "L"] | None = None
    #: Folder names of the labels 0, 1, ...; by default all folders, sorted.
    classes: tuple[str, ...] | None = None


class SequencesSpec(DataSpec):
    """TSV or FASTA with labelled sequences of equal length."""

    format: ClassVar[str] = "sequences"

    path: Path
    #: Letters, in the order that numbers the features; case-insensitive.
    alphabet: str = "ACGT"
    #: Shortest and longest n-gram, 1 to 4.
    ngrams: tuple[int, int] = (1, 4)
    #: Letters [start, stop) of each sequence, from 0.
    window: tuple[int, int] | None = None
    #: TSV: column number, negative from the right, or its name. FASTA: key in the header.
    label: Column | None = None
    #: TSV: column of the letters; by default the last.
    sequence: Column | None = None
    #: Effect of a letter outside the alphabet: an error, or its row is skipped and counted.
    unknown_letter: Literal["error", "skip"] = "error"
    #: Required number of features.
    n_columns: Width = None

    def check(self) -> None:
        """Check constraints between fields."""
        if self.window is not None and not 0 <= self.window[0] < self.window[1]:
            start, stop = self.window
            raise ValueError(f"window: got [{start}, {stop}], wanted 0 <= start < stop")


#: How missing numbers are filled: with a column's mean, median, or a constant.
Fill = Literal["error", "mean", "median"] | Annotated[float, KEEP_INT]
DatePart = Literal["days", "year", "month", "day", "weekday", "hour"]


class TableSpec(DataSpec):
    """The options that CSV and Parquet share."""

    path: Path
    label: Column = Field(
        description="column of the labels: its name, or its position from 0; -1 is the last"
    )
    #: Column of the sample weights.
    weight: Column | None = None
    #: Columns to encode as one-hot besides those that hold text; may include the label.
    categorical: tuple[Column, ...] = ()
    #: Columns that must hold numbers alone: a cell with text is an error. By default such a cell
    #: makes its column a category.
    numeric: tuple[Column, ...] = ()
    #: Columns that are not features.
    ignore: tuple[Column, ...] = ()
    #: Missing values: an error; or numbers are filled with the mean, the median or a constant,
    #: missing categories become one of their own, and rows without a label are skipped.
    missing: Fill = "error"
    #: Whether each column with missing numbers gets another one that marks them.
    missing_indicator: Flag = False
    #: Most categories of a column; by default 100,000 if it is listed, 1,000 if it is not.
    max_categories: Count | None = None
    #: Columns with more values: the less frequent ones share a column, or all values are hashed
    #: into ``max_categories`` columns.
    rare: Literal["other", "hash"] = "other"
    #: Numbers that represent a date; days are counted from 1970 and may be fractions.
    dates: Annotated[tuple[DatePart, ...], Field(min_length=1)] = ("days",)
    #: At prediction, values that training did not see: zeros (or the shared column), or an error.
    unknown: Literal["ignore", "error"] = "ignore"
    #: At prediction, columns that the data lack: an error, or all their values are missing.
    missing_columns: Literal["error", "fill"] = "error"
    #: At prediction, columns that training did not have.
    extra_columns: Literal["ignore", "error"] = "ignore"
    #: Type of the stored values.
    dtype: Dtype = "float64"
    #: Number of columns; values beyond them are dropped and counted in a note.
    n_columns: Width = None
    #: The fitted encoding of the columns, from a survey of all blocks.
    encoder: Any = None
    #: Columns that the survey has made categories, and the cell that is no number of each.
    words: dict[str, str] | None = None

    def check(self) -> None:
        """Check constraints between fields."""
        if self.missing == "error" and self.missing_columns == "fill":
            raise ValueError("missing_columns: got fill, wanted missing: mean, median, a number")
        if self.missing == "error" and self.missing_indicator:
            raise ValueError("missing_indicator: got true, wanted missing: mean, median, a number")


class ParquetSpec(TableSpec):
    """A Parquet file; a block is a row group."""

    format: ClassVar[str] = "parquet"


class CsvSpec(TableSpec):
    """A CSV file in UTF-8, plain or compressed."""

    format: ClassVar[str] = "csv"

    #: Character between two fields; by default the most frequent of , ; | and tab in line 1.
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    #: Whether the first line names the columns; else they are named 0, 1, ...
    header: bool = True
    #: Texts that mean a missing value, besides empty and blank cells, ?, NA, NaN, NULL, None, ...
    na_values: tuple[str, ...] = ()


class DaskTableSpec(TableSpec):
    """Partitions of Dask tables, which stay on the workers that hold them; not for job files."""

    format: ClassVar[str] = "dask_table"

    path: str = "the Dask collection"
    #: Digest of the partitions' keys.
    fingerprint: str
    #: Number of partitions.
    partitions: Count
    #: Names of all columns, and their types.
    names: tuple[str, ...]
    types: tuple[Literal["number", "boolean", "text", "date"], ...]
    #: Columns that come from collections of their own, such as the labels; the last of ``names``.
    joined: tuple[str, ...] = ()


#: Numbers of generated rows, and of columns and clusters: the driver lists blocks, members centres.
DrawnRows = Annotated[int, Field(ge=1, le=10**10)]
DrawnColumns = Annotated[int, Field(ge=1, le=10**6)]
#: Most values of all centres.
CENTRES_MAX = 2**27


class SyntheticSpec(DataSpec):
    """Synthetic sparse rows that imitate a data set; members generate them."""

    format: ClassVar[str] = "synthetic"

    shape: Literal["rcv1", "criteo", "kdda"] = Field(description="data set to imitate")
    rows: DrawnRows = Field(description="number of examples")
    #: Another seed gives fresh rows of the same problem.
    seed: Index = 0
    #: Number of columns; by default the original's. Changes the problem.
    columns: Annotated[int, Field(ge=100, lt=2**31)] | None = None
    #: Type of the stored values.
    dtype: Dtype = "float64"
    #: Number of columns of the training data.
    n_columns: Width = None


class SyntheticClustersSpec(DataSpec):
    """Synthetic clusters around centres in the unit cube; members generate them."""

    format: ClassVar[str] = "synthetic_clusters"

    rows: DrawnRows = Field(description="number of examples")
    #: Number of columns.
    columns: DrawnColumns = 10
    #: Number of clusters.
    clusters: DrawnColumns = 10
    #: Standard deviation of a coordinate around its centre.
    spread: NumberFrom0 = 0.1
    #: Relative variation of the clusters' deviations around ``spread``.
    variation: Annotated[float, Field(ge=0, lt=1), KEEP_INT] = 0.0
    #: Least distance between two centres.
    min_distance: NumberFrom0 = 0.0
    #: Selects the centres.
    problem: Index = 0
    #: Selects the rows around the centres.
    seed: Index = 0
    #: Type of the stored values.
    dtype: Dtype = "float64"
    #: Required number of columns.
    n_columns: Width = None

    def check(self) -> None:
        """Check constraints between fields."""
        if self.clusters * self.columns > CENTRES_MAX:
            raise ValueError(
                f"clusters: got {self.clusters} of {self.columns} columns, wanted at most "
                f"{CENTRES_MAX // self.columns}"
            )


class SyntheticSpliceSpec(DataSpec):
    """Synthetic splice sites: sequences of letters; members generate them."""

    format: ClassVar[str] = "synthetic_splice"

    rows: DrawnRows = Field(description="number of examples")
    #: Another seed gives fresh rows of the same problem.
    seed: Index = 0
    #: Letters in a row.
    length: Annotated[int, Field(ge=8, le=2**16)] = 141
    #: Probability that a row is a true site.
    positive_share: Annotated[float, Field(gt=0, lt=1), KEEP_INT] = 0.03
    #: Shortest and longest n-gram, 1 to 4.
    ngrams: tuple[int, int] = (1, 4)
    #: Required number of features.
    n_columns: Width = None


#: The options of each format, by its name in job files.
DATA_SPECS: dict[str, type[DataSpec]] = {
    kind.format: kind
    for kind in (
        ArraysSpec,
        ChunksSpec,
        CsvSpec,
        DaskSpec,
        DaskTableSpec,
        ImagesSpec,
        NpzSpec,
        ParquetSpec,
        SequencesSpec,
        SvmlightSpec,
        SyntheticSpec,
        SyntheticClustersSpec,
        SyntheticSpliceSpec,
    )
}
#: Formats that a job file can name: arrays in memory and Dask collections have no file.
FILE_FORMATS = tuple(
    sorted(DATA_SPECS.keys() - {kind.format for kind in (ArraysSpec, DaskSpec, DaskTableSpec)})
)
