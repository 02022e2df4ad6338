"""Rows as readers parse them: make them of arrays, validate, slice, and cut them into chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elasticml.data.chunks.body import write_body
from elasticml.data.chunks.chunk import Chunk, Dtype, Kind, Layout
from elasticml.errors import DataError, one_line
from elasticml.ids import ChunkId

#: Header of a body, and the largest padding of its sections.
OVERHEAD_BYTES: Final = 256 + 5 * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Consecutive rows as parsed by a reader, before they are partitioned into chunks.

    ``labels`` (n,), ``weights`` (n,) or None; either ``dense`` (n, d), or ``indptr`` (n + 1,),
    ``indices`` and ``values`` (stored,), indices ascending within a row. ``notes`` for the user:
    counts by sentences with ``{}``.
    """

    labels: NDArray[np.float64]
    n_columns: int
    weights: NDArray[np.float64] | None = None
    dense: NDArray[Any] | None = None
    indptr: NDArray[np.int64] | None = None
    indices: NDArray[np.int32] | None = None
    values: NDArray[Any] | None = None
    notes: Mapping[str, int] = field(default_factory=dict)


def row_bounds(row_bytes: NDArray[np.int64], chunk_bytes: int) -> NDArray[np.int64]:
    """Return the row offsets of chunks that hold at most ``chunk_bytes``, or one row.

    Parameters
    ----------
    row_bytes : ndarray (n,), int64
        Bytes that each row takes in a body.
    chunk_bytes : int

    Returns
    -------
    ndarray (chunks + 1,), int64, from 0 to n; (1,) when there are no rows
    """
    ends = np.cumsum(row_bytes)
    room = max(1, chunk_bytes - OVERHEAD_BYTES)
    bounds = [0]
    while bounds[-1] < len(ends):
        start = bounds[-1]
        used = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, used + room, side="right"))
        bounds.append(max(start + 1, stop))
    return np.array(bounds, np.int64)


def cut(
    rows: Rows,
    source: str,
    block: int,
    chunk_bytes: int,
    *,
    dtype: Dtype = "float64",
    first_ordinal: int = 0,
) -> list[Chunk]:
    """Partition rows into chunks with the ids ``(source, block, first_ordinal + i)``.

    Sparse rows whose stored values are all 1 become binary CSR, which stores no values.

    Raises
    ------
    DataError
        When a value is too large for float32.
    """
    if dtype == "float32":
        _check_float32(rows.values if rows.dense is None else rows.dense, block)
    n = len(rows.labels)
    itemsize = 4 if dtype == "float32" else 8
    fixed = 8 if rows.weights is None else 16
    layout = block_layout(rows, dtype)
    if rows.dense is not None:
        row_bytes = np.full(n, fixed + itemsize * rows.n_columns, np.int64)
    else:
        assert rows.indptr is not None
        stored = np.diff(rows.indptr)
        row_bytes = fixed + 4 + stored * (4 if layout.kind == "binary_csr" else 4 + itemsize)
    bounds = row_bounds(row_bytes, chunk_bytes)
    return [
        chunk_of(slice_rows(rows, start, stop), ChunkId(source, block, first_ordinal + i), layout)
        for i, (start, stop) in enumerate(
            zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        )
    ]


def block_layout(rows: Rows, dtype: Dtype) -> Layout:
    """Return the layout of the chunks that :func:`cut` builds from these rows."""
    if rows.dense is not None:
        return Layout(kind="dense", dtype=dtype, n_columns=rows.n_columns)
    kind: Kind = "binary_csr" if is_binary(rows.values) else "csr"
    return Layout(kind=kind, dtype=dtype, n_columns=rows.n_columns)


def is_binary(values: NDArray[Any] | None) -> bool:
    """Whether every stored value is 1; True if there are none, or ``values`` is None."""
    if values is None or len(values) == 0:
        return True
    # The first value nearly always decides; comparing all of them is expensive.
    return bool(values[0] == 1) and bool(np.all(values == 1))


def _check_float32(values: NDArray[Any] | None, block: int) -> None:
    largest = 0.0 if values is None or values.size == 0 else float(np.abs(values).max())
    if largest > float(np.finfo(np.float32).max):
        raise DataError(
            f"a value of magnitude {largest:g} in block {block} does not fit float32; set dtype: "
            "float64 or scale the column"
        )


def slice_rows(rows: Rows, start: int, stop: int) -> Rows:
    """Return the rows from ``start`` up to ``stop``, as views."""
    labels = rows.labels[start:stop]
    weights = None if rows.weights is None else rows.weights[start:stop]
    if rows.dense is not None:
        return replace(rows, labels=labels, weights=weights, dense=rows.dense[start:stop])
    assert rows.indptr is not None
    assert rows.indices is not None
    indptr = rows.indptr[start : stop + 1]
    first, last = int(indptr[0]), int(indptr[-1])
    return replace(
        rows,
        labels=labels,
        weights=weights,
        indptr=indptr - first,
        indices=rows.indices[first:last],
        values=None if rows.values is None else rows.values[first:last],
    )


def chunk_of(rows: Rows, id: ChunkId, layout: Layout) -> Chunk:
    """Return rows of numbers as one chunk."""
    arrays: dict[str, Any] = {"values": rows.dense}
    if layout.kind != "dense":
        arrays = {"indptr": rows.indptr, "indices": rows.indices}
    if layout.kind == "csr":
        arrays["values"] = rows.values
    body = write_body(layout, rows.labels, rows.weights, arrays, n_rows=len(rows.labels))
    return Chunk(id, body)


#: Most bytes to which small parts are joined.
_JOINED_BYTES: Final = 2**23


def rows_of_arrays(X: Any, y: ArrayLike, sample_weight: ArrayLike | None, *, name: str) -> Rows:
    """Validate arrays and return them as rows, without copying if they need no conversion.

    Sparse rows are made canonical: indices are sorted, duplicates summed, and zeros dropped.

    Raises
    ------
    DataError
        When lengths differ, there is no row, or a value is not finite; messages call X ``name``.
    """
    import scipy.sparse  # a job that reads files does not need it

    labels = _finite_vector(y, "y", name)
    weights = None if sample_weight is None else _finite_vector(sample_weight, "weights", name)
    if weights is not None and np.any(weights < 0):
        row = int(np.argmax(weights < 0))
        raise DataError(f"{name}: weight of row {row} is {weights[row]}, wanted at least 0")
    is_sparse = scipy.sparse.issparse(X)
    matrix: Any = X if is_sparse else _numeric(X, "X", name)
    if matrix.ndim != 2 or matrix.shape[0] != len(labels) or len(labels) == 0:
        raise DataError(
            f"{name} has shape {matrix.shape} and y has {len(labels)} labels; wanted two "
            "dimensions, one label per row, and at least one row"
        )
    if weights is not None and len(weights) != len(labels):
        raise DataError(f"{name}: {len(weights)} weights for {len(labels)} rows, wanted one each")
    if not is_sparse:
        width = max(1, matrix.shape[1])
        _check_finite(matrix, lambda at: divmod(at, width), name)
        return rows_of_matrix(np.ascontiguousarray(matrix), labels, weights)
    if np.iscomplexobj(matrix):
        raise DataError(f"{name} is of dtype {matrix.dtype}, wanted real numbers")
    if matrix.shape[1] >= 2**31:
        raise DataError(f"{name} has {matrix.shape[1]} columns, wanted at most {2**31 - 1}")
    if matrix.format in ("csr", "csc", "bsr"):
        try:
            # SciPy's compiled code does not check the structure.
            matrix.check_format(full_check=True)
            if np.any(np.diff(matrix.indptr) < 0):  # it does not look at those of no values
                raise ValueError("index pointers must not decrease")
        except ValueError as error:
            raise DataError(f"{name} is no valid sparse matrix: {one_line(error)}") from None
    csr = scipy.sparse.csr_array(matrix)
    if not csr.has_canonical_format or np.any(csr.data == 0):
        csr = csr.copy()
        csr.sum_duplicates()
        csr.eliminate_zeros()
    _check_finite(
        csr.data,
        lambda at: (int(np.searchsorted(csr.indptr, at, "right")) - 1, int(csr.indices[at])),
        name,
    )
    return rows_of_matrix(csr, labels, weights)


def _numeric(values: ArrayLike, what: str, name: str) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind == "c":
        raise DataError(f"{name}: {what} is of dtype {array.dtype}, wanted real numbers")
    if array.dtype.kind not in "biuf":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            refuse_text(values, what, name)
            raise DataError(f"{name}: {what} is of dtype {array.dtype}, wanted numbers") from None
    return array


def refuse_text(values: Any, what: str, name: str) -> None:
    """Raise DataError for the first value that is not a number, if there is one.

    Parameters
    ----------
    values : array_like or frame (n,) or (n, d)
    what, name : str
        What the values are, such as y, and where they come from.
    """
    array = np.asarray(values)
    found = next(
        ((at, value) for at, value in np.ndenumerate(array) if not _is_number(value)), None
    )
    if found is None:
        return
    at, value = found[0], getattr(found[1], "item", lambda: found[1])()
    if array.ndim < 2:
        raise DataError(
            f"{name}: {what} of row {at[0] if at else 0} is {value!r}, wanted a number; number "
            f"the classes: labels, {what} = np.unique({what}, return_inverse=True)"
        )
    names = list(getattr(values, "columns", ()))
    column = repr(names[at[1]]) if len(names) == array.shape[1] else at[1]
    raise DataError(
        f"{name}: column {column}, row {at[0]} holds {value!r}, wanted a number; write the table "
        "to a file and read it with em.read_csv or em.read_parquet, which encode text"
    )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _finite_vector(values: ArrayLike, what: str, name: str) -> NDArray[np.float64]:
    given = _numeric(values, what, name)
    vector = np.ascontiguousarray(given, dtype=np.float64)
    _check_exact(given, vector, what, name)
    if vector.ndim == 2 and vector.shape[1] == 1:
        vector = vector.ravel()
    if vector.ndim != 1:
        raise DataError(f"{name}: {what} has shape {vector.shape}, wanted one dimension")
    wrong = ~np.isfinite(vector)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"{name}: {what} of row {row} is {vector[row]}, wanted a finite number")
    return vector


def _check_exact(given: NDArray[Any], vector: NDArray[np.float64], what: str, name: str) -> None:
    """Refuse integers that float64 cannot tell apart: they would be one class."""
    if given.dtype.kind not in "iu" or np.abs(vector).max(initial=0.0) < 2.0**53:
        return
    different = np.unique(given)
    same = np.flatnonzero(np.diff(different.astype(np.float64)) == 0.0)
    if same.size:
        one, other = different[same[0]], different[same[0] + 1]
        raise DataError(
            f"{name}: {what} has the values {one} and {other}, which are one number in float64; "
            f"number the classes: labels, {what} = np.unique({what}, return_inverse=True)"
        )


def _check_finite(values: NDArray[Any], place: Callable[[int], tuple[int, int]], name: str) -> None:
    """Raise a DataError if a value is not finite; ``place`` returns the row and column of one."""
    if values.dtype.kind != "f":
        return
    wrong = ~np.isfinite(values)
    if wrong.any():
        at = int(np.argmax(wrong))
        row, column = place(at)
        raise DataError(
            f"{name}, row {row}, column {column}: value is {values.flat[at]}, wanted a finite "
            f"number ({int(wrong.sum())} such values); impute missing values or remove the rows"
        )


def rows_of_matrix(
    X: Any, labels: NDArray[np.float64], weights: NDArray[np.float64] | None = None
) -> Rows:
    """Return an array or a CSR array (n, d) as rows; nothing is checked."""
    made = Rows(labels=labels, weights=weights, n_columns=int(X.shape[1]))
    if isinstance(X, np.ndarray):
        return replace(made, dense=X)
    indptr, indices = X.indptr.astype(np.int64), X.indices.astype(np.int32, copy=False)
    return replace(made, indptr=indptr, indices=indices, values=X.data)


def rows_nbytes(rows: Rows, dtype: Dtype) -> int:
    """Return the bytes that the rows take in chunks, without headers."""
    itemsize = 4 if dtype == "float32" else 8
    n = len(rows.labels)
    fixed = (8 if rows.weights is None else 16) * n
    if rows.dense is not None:
        return fixed + itemsize * n * rows.n_columns
    assert rows.indices is not None
    is_binary = block_layout(rows, dtype).kind == "binary_csr"
    return fixed + 4 * n + len(rows.indices) * (4 if is_binary else 4 + itemsize)


def rows_digest(rows: Rows, dtype: Dtype) -> str:
    """Return a digest of all arrays; 16 hex digits."""
    digest = hashlib.blake2b(f"{dtype} {rows.n_columns}".encode(), digest_size=8)
    for array in (rows.labels, rows.weights, rows.dense, rows.indptr, rows.indices, rows.values):
        if array is not None:
            digest.update(f"{array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.hexdigest()


def joined(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Join consecutive rows of one kind, so that small parts do not become as many small chunks."""
    pending, size = list[Rows](), 0
    for rows in parts:
        nbytes = rows_nbytes(rows, "float64")
        if pending and (size + nbytes > _JOINED_BYTES or not _are_alike(pending[0], rows)):
            yield concatenated(pending)
            pending, size = [], 0
        pending.append(rows)
        size += nbytes
    if pending:
        yield concatenated(pending)


def _are_alike(one: Rows, other: Rows) -> bool:
    """Whether both have weights, or neither, and both are sparse, or dense of the same width."""
    if (one.weights is None) != (other.weights is None):
        return False
    if one.dense is None or other.dense is None:
        return one.dense is other.dense and (one.values is None) == (other.values is None)
    return one.n_columns == other.n_columns


def concatenated(parts: Sequence[Rows]) -> Rows:
    """Return the rows of all parts, which are of one kind."""
    if len(parts) == 1:
        return parts[0]
    notes = dict[str, int]()
    for rows in parts:
        for sentence, count in rows.notes.items():
            notes[sentence] = notes.get(sentence, 0) + count

    def all_of(name: str) -> Any:
        arrays = [getattr(rows, name) for rows in parts]
        return None if arrays[0] is None else np.concatenate(arrays)

    indptr = None
    if parts[0].indptr is not None:
        stored = np.concatenate([np.diff(rows.indptr) for rows in parts if rows.indptr is not None])
        indptr = np.concatenate(([0], np.cumsum(stored)))
    return Rows(
        n_columns=max(rows.n_columns for rows in parts),
        indptr=indptr,
        notes=notes,
        **{name: all_of(name) for name in ("labels", "weights", "dense", "indices", "values")},
    )


def rows_of_chunk(chunk: Chunk) -> Rows:
    """Return a chunk's rows, as a reader would have parsed them.

    Raises
    ------
    DataError
        When they are sequences.
    """
    layout, weights = chunk.layout, chunk.weights
    if layout.kind == "sequence":
        raise DataError("the rows are sequences, wanted numbers: fit them by a job of em.CoCoA")
    columns = layout.n_columns
    if layout.kind == "dense":
        return Rows(labels=chunk.labels, weights=weights, n_columns=columns, dense=chunk.values)
    values = np.ones(chunk.indices.size) if layout.kind == "binary_csr" else chunk.values
    return Rows(
        labels=chunk.labels,
        weights=weights,
        n_columns=columns,
        indptr=chunk.indptr.astype(np.int64),
        indices=chunk.indices,
        values=values,
    )


def matrix_of(rows: Rows) -> Any:
    """Return rows as an array or CSR array, (n, d)."""
    import scipy.sparse

    if rows.dense is not None:
        return rows.dense
    shape = (len(rows.labels), rows.n_columns)
    return scipy.sparse.csr_array((rows.values, rows.indices, rows.indptr), shape=shape)


def fit_columns(rows: Rows, n_columns: int, counts: dict[str, int]) -> Rows:
    """Drop the columns beyond ``n_columns``, and count their nonzero values in ``counts``.

    Narrower dense rows are unchanged: their chunks span fewer columns than the model.
    """
    sentence = f"{{}} values in columns beyond the {n_columns} of the model were dropped"
    if rows.n_columns == n_columns:
        return rows
    if rows.dense is not None:
        if rows.n_columns < n_columns:
            return rows
        dropped = int(np.count_nonzero(rows.dense[:, n_columns:]))
        counts[sentence] = counts.get(sentence, 0) + dropped
        return replace(
            rows, n_columns=n_columns, dense=np.ascontiguousarray(rows.dense[:, :n_columns])
        )
    assert rows.indptr is not None
    assert rows.indices is not None
    keep = rows.indices < n_columns
    counts[sentence] = counts.get(sentence, 0) + int(len(keep) - keep.sum())
    kept_before = np.concatenate(([0], np.cumsum(keep)))
    return replace(
        rows,
        n_columns=n_columns,
        indptr=kept_before[rows.indptr],
        indices=rows.indices[keep],
        values=None if rows.values is None else rows.values[keep],
    )
