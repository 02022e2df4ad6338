"""Partition the rows of a block into chunks of a given size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.body import write_body
from elasticml.data.chunks.chunk import Chunk, Dtype, Kind, Layout
from elasticml.errors import DataError
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
