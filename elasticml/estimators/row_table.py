"""An estimator's rows in the layouts that solvers need: chunks, row blocks and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Any, Final

import numpy as np
import scipy.sparse

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.linear.dual_descent import MemoryRows, memory_rows
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.algorithms.parallel import Serial
from elasticml.arrays import F64
from elasticml.data.chunks import zero_copy_chunks
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import DatasetStats, merge_summaries, summarise

#: Target number of chunks, and the bounds of their size; each chunk costs a few microseconds.
_CHUNKS: Final = 64
_CHUNK_BYTES: Final = 2**20
_CHUNK_BYTES_MAX: Final = 2**24
_NAME: Final = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedRows:
    """Rows in chunks, whose labels and weights can be replaced."""

    chunks: Sequence[Chunk]
    facts: DatasetStats

    def with_labels(self, labels: F64, weights: F64 | None) -> ChunkedRows:
        """Return the same rows, shared, with other labels and weights and without state.

        Parameters
        ----------
        labels : ndarray (n,)
        weights : ndarray (n,), optional
            None if all are one.
        """
        chunks, at = [], 0
        for chunk in self.chunks:
            rows = slice(at, at + chunk.n_rows)
            some = None if weights is None else weights[rows]
            chunks.append(zero_copy_chunks.with_labels(chunk, labels[rows], some))
            at += chunk.n_rows
        counts = _counts(labels)
        facts = replace(
            self.facts,
            classes=tuple(counts),
            label_counts=counts,
            weight_sum=float(at if weights is None else weights.sum()),
        )
        return ChunkedRows(chunks=chunks, facts=facts)


def _counts(labels: F64) -> dict[float, int]:
    """Return the number of rows of each label, by ascending label."""
    # Labels -1 and +1, the usual case, need no sorting.
    both = {sign: int(np.count_nonzero(labels == sign)) for sign in (-1.0, 1.0)}
    if sum(both.values()) == labels.size:
        return {sign: count for sign, count in both.items() if count}
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


class RowTable:
    """The rows of an estimator, with cached conversions to the layouts of the solvers.

    Parameters
    ----------
    X : ndarray or sparse (n, d), float64 or float32
    parallel : Parallel, optional
        Threads for one problem; by default the calling thread alone.
    """

    def __init__(self, X: Any, parallel: Parallel | None = None) -> None:
        self.X = X
        self.parallel: Parallel = Serial() if parallel is None else parallel
        self._columns: dict[float | None, Any] = {}
        self._blocks: RowBlocks | None = None
        self._converting = Lock()

    @cached_property
    def chunked(self) -> ChunkedRows:
        """The rows in chunks, for CoCoA's kernels."""
        return chunk_rows(self.X)

    @cached_property
    def memory(self) -> MemoryRows:
        """The rows as they are, for dual coordinate descent in one thread."""
        return memory_rows(self.X)

    @property
    def blocks(self) -> RowBlocks:
        """The rows in blocks, for matrix products; sparse values as float64, for their kernels.

        Converted once, even if several threads ask for them at the same time.
        """
        with self._converting:
            if self._blocks is None:
                X = self.X
                if scipy.sparse.issparse(X) and X.dtype != np.float64:
                    X = type(X)((X.data.astype(np.float64), X.indices, X.indptr), shape=X.shape)
                self._blocks = RowBlocks(X, self.parallel)
            return self._blocks

    def columns(self, constant: float | None) -> Any:
        """Return the rows in column-major layout, (n, d), with a constant column unless None."""
        if constant not in self._columns:
            X = by_columns(self.X)
            if constant is not None:
                extra = np.full((X.shape[0], 1), constant)
                is_sparse = scipy.sparse.issparse(X)
                X = (
                    scipy.sparse.hstack([X, type(X)(extra)], format="csc")
                    if is_sparse
                    else np.asfortranarray(np.hstack([X, extra]))
                )
            self._columns[constant] = X
        return self._columns[constant]


def by_columns(X: Any) -> Any:
    """Return rows in column-major layout for coordinate descent: CSC if sparse."""
    return X.tocsc() if scipy.sparse.issparse(X) else np.asfortranarray(X)


def chunk_rows(X: Any) -> ChunkedRows:
    """Split rows into chunks that share their memory; all labels are 0.

    Parameters
    ----------
    X : ndarray or sparse (n, d), float64 or float32
        Finite.
    """
    size = X.nnz * 8 if hasattr(X, "nnz") else X.nbytes
    chunks = zero_copy_chunks.view_rows(
        X, _NAME, min(max(size // _CHUNKS, _CHUNK_BYTES), _CHUNK_BYTES_MAX)
    )
    return ChunkedRows(
        chunks=chunks,
        facts=merge_summaries([summarise(0, chunks, chunks[0].layout)], name=_NAME),
    )
