"""Turn what users have (frames, arrays, files, Dask collections) into the rows of a model.

Arrow and the readers of tables are imported when they are needed, not by every job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from elasticml.arrays import is_named
from elasticml.data.chunks.by_columns import is_by_columns
from elasticml.data.chunks.rows import matrix_of, rows_of_chunk
from elasticml.data.source import (
    Source,
    infer_format,
    known_suffixes,
    listed_once,
    read_block,
    source_from_spec,
    survey_all,
)
from elasticml.data.storage.filesystem import local_path
from elasticml.data.storage.untrusted_files import check_array_header, reading
from elasticml.errors import ConfigError, DataError, one_line, shown

if TYPE_CHECKING:
    from elasticml.data.readers.tables import TableEncoder

_TABLES = ("csv", "parquet")
#: Rows of an array in a file that are predicted at once.
_ARRAY_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some rows of a file."""

    #: Array or CSR array (n, d).
    X: Any
    #: Labels, (n,), as codes where classes are words; None if the file has none.
    labels: NDArray[np.float64] | None = None
    #: Sample weights, (n,); None if the data have none.
    weights: NDArray[np.float64] | None = None
    #: Further columns of the file, an Arrow table.
    kept: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowInput:
    """What turns a user's row into a model's numbers: names, encoding and width."""

    #: Columns of the model.
    n_columns: int
    #: The encoding of a table; None for models of numbers.
    encoder: TableEncoder | None = None
    #: Names of the columns, if a model of numbers was fitted to a frame.
    names: tuple[str, ...] = ()
    #: svmlight: index of the first column, 0 or 1.
    index_base: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the description as a JSON-able dict."""
        return {
            "n_columns": self.n_columns,
            "encoder": None if self.encoder is None else self.encoder.to_json(),
            "names": list(self.names),
            "index_base": self.index_base,
        }

    def with_column(self, name: str) -> RowInput:
        """Return the input of rows with one more column, the last.

        Raises
        ------
        ConfigError
            When rows are encoded from a table that has no such column.
        """
        if self.encoder is not None:
            raise ConfigError(
                f"the model was fitted to a table with {name}= as numbers, which its rows lack; "
                f"give {name}= the name of a column of the table"
            )
        names = (*self.names, name) if self.names else ()
        return replace(self, n_columns=self.n_columns + 1, names=names)

    def columns(self) -> list[str]:
        """Return the names of the columns before encoding; none if they have no names."""
        return list(self.names) if self.encoder is None else [c.name for c in self.encoder.columns]

    def feature_names(self) -> list[str]:
        """Return the names of the model's columns; x0, x1, ... if they have none."""
        # A file's header may name far more columns than its arrays have.
        named = self.names if self.encoder is None else self.encoder.names(self.n_columns)
        return list(named or (f"x{i}" for i in range(self.n_columns)))[: self.n_columns]

    def matrix(self, X: Any) -> Any:
        """Return rows in memory as an array or CSR array (n, d).

        Raises
        ------
        DataError
            When columns are missing or of another number or type than in training.
        """
        import pyarrow

        if scipy.sparse.issparse(X):
            rows = X.tocsr()
        elif is_table(X):
            return self._of_table(X, "X").X
        else:
            rows = np.asarray(X)
            if rows.ndim == 1 and rows.dtype != object:
                raise DataError(f"X has shape {rows.shape}, wanted rows and columns")
            if self.encoder is not None and rows.shape[1:] == (len(self.encoder.columns),):
                names = [column.name for column in self.encoder.columns]
                columns = [pyarrow.array(rows[:, j], from_pandas=True) for j in range(len(names))]
                return self._of_table(pyarrow.table(columns, names), "X").X
        width = int(np.prod(rows.shape[1:])) if not scipy.sparse.issparse(rows) else rows.shape[1]
        if width != self.n_columns:
            raw = "" if self.encoder is None else f" ({len(self.encoder.columns)} before encoding)"
            raise DataError(
                f"X has shape {rows.shape}, wanted {self.n_columns} columns{raw} as in training"
            )
        return _finite(rows)

    def in_memory(self, data: Any) -> Any:
        """Return all rows of a file or source as an array or CSR array, (n, d).

        Raises
        ------
        ConfigError, DataError
            When it cannot be read, has no rows, or does not fit the model.
        """
        parts = [batch.X for batch in self.batches(data)]
        if not parts:
            raise DataError(f"{data} holds no rows, wanted at least one")
        is_sparse = scipy.sparse.issparse(parts[0])
        return scipy.sparse.vstack(parts, format="csr") if is_sparse else np.concatenate(parts)

    def batches(
        self, data: Any, keep: Sequence[str] = (), *, labelled: bool = False
    ) -> Iterator[Batch]:
        """Yield the rows of a file, a source or a table, of files in bounded memory.

        Parameters
        ----------
        data : path, URL, Source or table in memory
            A table is read with the model's encoding. If the model has none, and no names, a
            source of a table is read with its own.
        keep : sequence of str
            Further columns of a table to return.
        labelled : bool
            Whether to return labels and weights too; rows without a label are skipped if
            training did so.

        Raises
        ------
        ConfigError, DataError
            When it cannot be read, or does not fit the model.
        """
        from elasticml.data.readers.frames import FrameSource
        from elasticml.data.readers.tabular import TableSource

        format = None
        if self.encoder is not None or self.names:
            if isinstance(data, FrameSource):
                data = data.rows
            elif isinstance(data, TableSource):
                format, data = data.format, data.path
        if not is_named(data):
            if not is_table(data) or (labelled and self.encoder is None):
                raise DataError(
                    "score needs labels: give y, or a table that has the column of labels"
                )
            yield self._of_table(data, "X", labelled=labelled)
            return
        name = os.fspath(data) if isinstance(data, str | os.PathLike) else ""
        if name.endswith(".npy"):
            rows = array_in(name)
            n_rows = len(rows)
            for start in range(0, n_rows, _ARRAY_ROWS):
                yield Batch(X=self.matrix(rows[start : start + _ARRAY_ROWS]))
            return
        if (format := format or infer_format(name)) in _TABLES:
            yield from self._table_batches(name, format, keep, labelled)
            return
        if keep:
            raise ConfigError(
                f"keep: {name or data!r} is not a table, so it has no columns to keep"
            )
        yield from self._source_batches(data if not name else source_named(name))

    def _table_batches(
        self, path: str, format: str, keep: Sequence[str], labelled: bool
    ) -> Iterator[Batch]:
        from elasticml.data.readers.tables import encoder_of_numbers
        from elasticml.data.readers.tabular import feature_tables

        encoder = self.encoder
        if encoder is None and self.names and not labelled:
            encoder = encoder_of_numbers(self.names)
        if encoder is None:
            raise ConfigError(
                f"{path} is a table, and the model was fitted to rows without names: fit it to a "
                "table or a DataFrame, or give a source that names the labels: "
                "em.read_csv(path, label=...)"
            )
        for table, place in feature_tables(path, format, encoder, keep):
            batch = self._of_table(table, path, place, labelled=labelled)
            yield replace(batch, kept=table.select(list(keep))) if keep else batch

    def _source_batches(self, source: Source) -> Iterator[Batch]:
        if self.index_base is not None and source.spec().get("format") == "svmlight":
            source = source_from_spec({**source.spec(), "zero_based": self.index_base == 0})
        check_by_rows(source)
        source = survey_all(listed_once(source.with_columns(self.n_columns)))
        for block in source.blocks():
            for chunk in read_block(source, block.index, None, 1)[0]:
                rows = rows_of_chunk(chunk)
                X = matrix_of(rows)
                if X.shape[1] != self.n_columns:
                    if not scipy.sparse.issparse(X):
                        raise DataError(
                            f"the data have {X.shape[1]} columns, wanted {self.n_columns} as in "
                            "training"
                        )
                    X = scipy.sparse.csr_array(
                        (X.data, X.indices, X.indptr), shape=(X.shape[0], self.n_columns)
                    )
                yield Batch(X=X, labels=rows.labels, weights=rows.weights)

    def _of_table(
        self,
        table: Any,
        what: str,
        place: Callable[[int], str] = "row {}".format,
        *,
        labelled: bool = False,
    ) -> Batch:
        """Return the rows of a table, with its labels and weights if they are wanted."""
        from elasticml.data.readers.tables import arrow_table, numbers

        table, encoder = arrow_table(table), self.encoder
        if encoder is not None:
            table = self._with_nameless(table)
            encoder.check_names(table.column_names, what)
            encode = encoder.rows if labelled else encoder.features
            rows = encode(encoder.filled(table), what, place, {})
            labels = rows.labels if labelled else None
            X = matrix_of(rows)[:, : self.n_columns]
            return Batch(X=X, labels=labels, weights=rows.weights)
        names = list(self.names) or table.column_names
        missing = [name for name in names if name not in table.column_names]
        if missing or len(names) != self.n_columns:
            raise DataError(
                f"{what} has columns {', '.join(map(shown, table.column_names[:10]))}, wanted "
                + (f"{missing[0]!r} among them" if missing else f"{self.n_columns} columns")
                + " as in training"
            )
        return Batch(X=np.column_stack([numbers(table, name, what, place) for name in names]))

    def _with_nameless(self, table: Any) -> Any:
        """Return a table in which a column without a name has none.

        pandas reads the first column of a file that R or pandas wrote as ``Unnamed: 0``.
        """
        names = table.column_names
        if "" in names or "Unnamed: 0" not in names or "" not in self.columns():
            return table
        return table.rename_columns(["" if name == "Unnamed: 0" else name for name in names])


def array_in(path: str) -> NDArray[Any]:
    """Return the array in an ``.npy`` file, mapped if it is here.

    Raises
    ------
    ConfigError, DataError
        When the file is missing, or is no array of real numbers or text.
    """
    from elasticml.data.readers.files import open_binary

    with open_binary(path) as file, reading(path):
        nbytes = file.seek(0, 2)
        file.seek(0)
        check_array_header(path, "", file, nbytes)
        file.seek(0)
        local = local_path(path)
        rows: NDArray[Any] = (
            np.load(file, allow_pickle=False)
            if local is None
            else np.load(local, mmap_mode="r", allow_pickle=False)
        )
    return rows


def row_input_from_json(record: Mapping[str, Any]) -> RowInput:
    """Rebuild the description from ``to_json()``."""
    from elasticml.data.readers.tables import TableEncoder

    encoder = record["encoder"]
    return RowInput(
        n_columns=int(record["n_columns"]),
        encoder=None if encoder is None else TableEncoder.from_json(encoder),
        names=tuple(record.get("names", ())),
        index_base=record["index_base"],
    )


def is_table(X: Any) -> bool:
    """Whether X is a frame or an Arrow table: its columns have names."""
    import pyarrow

    return isinstance(X, pyarrow.RecordBatch) or hasattr(X, "__arrow_c_stream__")


def _finite(rows: Any) -> Any:
    """Return an array or CSR array as numbers; raises DataError for text, NaN and infinity."""
    if scipy.sparse.issparse(rows):
        values = rows.data
    else:
        try:
            values = rows = np.asarray(rows, np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"X holds something else than numbers: {one_line(error)}") from None
    # A sum is finite unless a value is not, or it overflows.
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.sum()
    if not np.isfinite(total) and not np.isfinite(values).all():
        count = int(np.count_nonzero(~np.isfinite(values)))
        raise DataError(
            f"X has {count} values that are NaN or infinite, wanted finite numbers; the model was "
            "trained without missing values in arrays: impute them, or train on a table with "
            "data.missing"
        )
    return rows


def map_partitions(
    function: Callable[[Any], NDArray[Any]], X: Any, dtype: Any, width: int | None = None
) -> Any:
    """Apply a function of rows to a Dask collection, lazily, partition by partition.

    Parameters
    ----------
    function : callable
        Returns (n,) or (n, width) for n rows.
    X : dask.array.Array or dask.dataframe.DataFrame
    dtype : dtype of the result
    width : int, optional
        Columns of the result; None for one number per row.

    Returns
    -------
    dask.array.Array, or for a frame dask.dataframe.Series or DataFrame with its index
    """
    if not hasattr(X, "rechunk"):
        made = _framed(np.empty((0,) if width is None else (0, width), dtype), None)
        return X.map_partitions(_frame_of, function, meta=made, enforce_metadata=False)
    X, none = X.rechunk({1: -1}), np.empty((0,), dtype)
    if width is None:
        return X.map_blocks(function, drop_axis=1, dtype=dtype, meta=none)
    chunks = (X.chunks[0], (width,))
    return X.map_blocks(function, chunks=chunks, dtype=dtype, meta=none[:, None])


def _frame_of(part: Any, function: Callable[[Any], NDArray[Any]]) -> Any:
    return _framed(function(part), part.index)


def _framed(values: NDArray[Any], index: Any) -> Any:
    import pandas

    kind = pandas.Series if values.ndim == 1 else pandas.DataFrame
    return kind(values, index=index)


def check_by_rows(source: Source) -> None:
    """Raise a ConfigError if a source has columns for rows."""
    if is_by_columns(source.spec()):
        raise ConfigError(
            "the source is by columns, and models work on rows: leave by='columns' out, or fit it "
            "by a job of em.PrimalCoCoA"
        )


def source_named(name: str, **options: Any) -> Source:
    """Return the source of a file or folder whose name implies a format.

    Raises
    ------
    ConfigError
        When it implies none.
    """
    kind = infer_format(name)
    if kind is None:
        raise ConfigError(
            f"the name {name} does not imply a format (known are {', '.join(known_suffixes())}, "
            ".npy, or a folder of such files): give a source, such as em.read_svmlight(path)"
        )
    return source_from_spec({"format": kind, "path": name, **options})
