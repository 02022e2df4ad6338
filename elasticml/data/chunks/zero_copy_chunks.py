"""Zero-copy chunks: views of a caller's arrays.

For solvers that run in the caller's process. Such a chunk has no body and no content id: it cannot
be sent, spilled to disk, or cached by content. The caller must not modify the arrays while it is in
use.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk, Dtype, Layout
from elasticml.data.chunks.products import read_only
from elasticml.data.chunks.rows import is_binary, row_bounds
from elasticml.ids import ChunkId

_NO_BODY: Final = memoryview(b"")


def view_rows(X: Any, name: str, chunk_bytes: int) -> list[Chunk]:
    """Partition rows into chunks without copying values; all labels are 0.

    A sparse matrix that is not in canonical format (sorted indices, no duplicates) is copied once.

    Parameters
    ----------
    X : ndarray or sparse (n, d), float64 or float32
        Finite values; a dense array is copied if it is not C-contiguous.
    name : str
        Source name in the chunks' ids.
    chunk_bytes : int
        Most bytes of a chunk; a chunk holds at least one row.
    """
    dtype: Dtype = "float32" if X.dtype == np.float32 else "float64"
    if not scipy.sparse.issparse(X):
        return _lend_dense(np.ascontiguousarray(X), dtype, name, chunk_bytes)
    X = scipy.sparse.csr_array(X)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    indptr, indices = X.indptr.astype(np.int64), X.indices.astype(np.int32, copy=False)
    binary = is_binary(X.data)
    kind, itemsize = ("binary_csr", 0) if binary else ("csr", X.data.itemsize)
    layout = Layout(kind=kind, dtype=dtype, n_columns=X.shape[1])  # type: ignore[arg-type]
    cuts = row_bounds(12 + np.diff(indptr) * (4 + itemsize), chunk_bytes).tolist()
    chunks = []
    for k, (start, stop) in enumerate(itertools.pairwise(cuts)):
        first, last = int(indptr[start]), int(indptr[stop])
        chunk = _empty(ChunkId(name, 0, k), layout, stop - start)
        chunk.indptr = read_only((indptr[start : stop + 1] - first).astype(np.int32))
        chunk.indices = read_only(indices[first:last])
        chunk.values = read_only(X.data[:0] if binary else X.data[first:last])
        chunk.n_stored = last - first
        chunks.append(chunk)
    return chunks


def with_labels(chunk: Chunk, labels: F64, weights: F64 | None) -> Chunk:
    """Return a chunk of the same rows with other labels and weights, and without state.

    Parameters
    ----------
    labels : ndarray (chunk.n_rows,)
    weights : ndarray (chunk.n_rows,), optional
        None if all are one.
    """
    other = _empty(chunk.id, chunk.layout, chunk.n_rows)
    other.indptr, other.indices, other.values = chunk.indptr, chunk.indices, chunk.values
    other.n_stored = chunk.n_stored
    other.labels = np.ascontiguousarray(labels, np.float64)
    other.weights = None if weights is None else np.ascontiguousarray(weights, np.float64)
    return other


def _lend_dense(X: NDArray[Any], dtype: Dtype, name: str, chunk_bytes: int) -> list[Chunk]:
    layout = Layout(kind="dense", dtype=dtype, n_columns=X.shape[1])
    bytes_of_rows = np.full(X.shape[0], 8 + X.itemsize * X.shape[1], np.int64)
    cuts = row_bounds(bytes_of_rows, chunk_bytes).tolist()
    chunks = []
    for k, (start, stop) in enumerate(itertools.pairwise(cuts)):
        chunk = _empty(ChunkId(name, 0, k), layout, stop - start)
        chunk.values = read_only(X[start:stop])
        chunk.n_stored = chunk.values.size
        chunks.append(chunk)
    return chunks


def _empty(id: ChunkId, layout: Layout, n_rows: int) -> Chunk:
    """Return a chunk without a body; the caller sets its row arrays."""
    chunk = Chunk.__new__(Chunk)
    chunk.id, chunk.body, chunk.layout, chunk.n_rows = id, _NO_BODY, layout, n_rows
    chunk.nbytes, chunk.content_id = 0, ""
    chunk.labels, chunk.weights = np.zeros(n_rows), None
    chunk.indptr, chunk.indices = np.zeros(0, np.int32), np.zeros(0, np.int32)
    chunk.values, chunk.codes = np.zeros(0, layout.dtype), np.zeros((0, 0), np.uint8)
    chunk.state, chunk.state_version = {}, 0
    chunk.is_mapped, chunk.out_of_core, chunk.lazy_body = False, None, None
    chunk.n_stored = 0
    return chunk
