"""An estimator's arrays as the kernels want them: chunks, and the facts of the data set."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.row_blocks import RowBlocks
from elasticml.data.chunk import Chunk, Dtype, Layout
from elasticml.data.cut import Rows, block_layout
from elasticml.data.facts import DataFacts
from elasticml.data.rows import rows_nbytes, slice_rows
from elasticml.terms import ChunkId

F64 = NDArray[np.float64]
#: Each chunk costs some calls a pass.
_CHUNK_BYTES: Final = 2**23
_CHUNKS_MIN: Final = 4
_NAME: Final = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Rows in chunks, whose labels and weights can be others each time."""

    chunks: Sequence[Chunk]
    facts: DataFacts

    def relabelled(self, labels: F64, weights: F64 | None) -> Cut:
        """Return the same rows with other labels and weights, and without state; rows are shared.

        Parameters
        ----------
        labels : ndarray (n,)
        weights : ndarray (n,), optional
            None where all are one.
        """
        chunks, at = [], 0
        for chunk in self.chunks:
            rows = slice(at, at + chunk.n_rows)
            each = None if weights is None else np.ascontiguousarray(weights[rows])
            chunks.append(chunk.relabelled(np.ascontiguousarray(labels[rows]), each))
            at += chunk.n_rows
        counts = _counts(labels)
        facts = replace(
            self.facts,
            classes=tuple(counts),
            label_counts=counts,
            weight_sum=float(at if weights is None else weights.sum()),
        )
        return Cut(chunks=chunks, facts=facts)


def _counts(labels: F64) -> dict[float, int]:
    """Count labels by their values, ascending."""
    # Targets of two classes, as they mostly are, need not be sorted.
    both = {sign: int(np.count_nonzero(labels == sign)) for sign in (-1.0, 1.0)}
    if sum(both.values()) == labels.size:
        return {sign: count for sign, count in both.items() if count}
    found, counts = np.unique(labels, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


class Table:
    """Rows as an estimator was given them, and what solvers make of them, once.

    Parameters
    ----------
    X : ndarray or sparse (n, d), float64 or float32
    parallel : Parallel, optional
        Whose threads work on one problem; by default the caller's thread alone.
    """

    def __init__(self, X: Any, parallel: Parallel | None = None) -> None:
        self.X = X
        self.parallel: Parallel = Serial() if parallel is None else parallel

    @cached_property
    def cut(self) -> Cut:
        """In chunks, for kernels."""
        return cut_arrays(self.X, self.parallel.n_threads)

    @cached_property
    def blocks(self) -> RowBlocks:
        """For products with the whole."""
        return RowBlocks(self.X, self.parallel)


def cut_arrays(X: Any, n_threads: int = 1) -> Cut:
    """Cut rows into chunks, without copying them where they are as they should be; labels are 0.

    Parameters
    ----------
    X : ndarray or sparse (n, d), float64 or float32
        Finite, at least one row.
    n_threads : int
        There are chunks for so many threads.
    """
    dtype: Dtype = "float32" if X.dtype == np.float32 else "float64"
    rows = _rows(X)
    layout = block_layout(rows, dtype)
    nbytes = rows_nbytes(rows, dtype)
    n_chunks = min(len(rows.labels), max(_CHUNKS_MIN, n_threads, -(-nbytes // _CHUNK_BYTES)))
    cuts = np.linspace(0, len(rows.labels), n_chunks + 1).astype(int).tolist()
    chunks = [
        _chunk(ChunkId(_NAME, 0, number), layout, slice_rows(rows, first, stop))
        for number, (first, stop) in enumerate(itertools.pairwise(cuts))
    ]
    facts = DataFacts(
        n_rows=len(rows.labels),
        n_columns=rows.n_columns,
        classes=(0.0,),
        label_counts={0.0: len(rows.labels)},
        layout=layout,
        weight_sum=float(len(rows.labels)),
        n_blocks=1,
        n_chunks=len(chunks),
        nbytes=nbytes,
    )
    return Cut(chunks=chunks, facts=facts)


def _rows(X: Any) -> Rows:
    """Take rows over that are known to be finite; labels are 0."""
    labels = np.zeros(X.shape[0])
    if not scipy.sparse.issparse(X):
        dense = np.ascontiguousarray(X)
        return Rows(labels=labels, n_columns=X.shape[1], dense=dense)
    csr = scipy.sparse.csr_array(X)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return Rows(
        labels=labels,
        n_columns=csr.shape[1],
        indptr=csr.indptr,
        indices=csr.indices.astype(np.int32, copy=False),
        values=csr.data,
    )


def _chunk(id: ChunkId, layout: Layout, rows: Rows) -> Chunk:
    if rows.dense is not None:
        return Chunk.of_arrays(id, layout, rows.labels, {"values": rows.dense})
    assert rows.indptr is not None
    assert rows.indices is not None
    assert rows.values is not None
    arrays = {"indptr": rows.indptr.astype(np.int32, copy=False), "indices": rows.indices}
    if layout.kind == "csr":
        arrays["values"] = rows.values
    return Chunk.of_arrays(id, layout, rows.labels, arrays)
