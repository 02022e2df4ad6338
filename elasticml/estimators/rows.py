"""An estimator's arrays as the kernels want them: chunks, and the facts of the data set."""

from __future__ import annotations

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
from elasticml.data.chunk import Chunk, Dtype
from elasticml.data.facts import DataFacts, merge_summaries
from elasticml.data.rows import cut_rows, rows_of_arrays

F64 = NDArray[np.float64]
_CHUNK_BYTES: Final = 2**20
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
            other = Chunk(chunk.id, chunk.body)
            rows = slice(at, at + chunk.n_rows)
            other.labels = np.ascontiguousarray(labels[rows])
            other.weights = None if weights is None else np.ascontiguousarray(weights[rows])
            chunks.append(other)
            at += chunk.n_rows
        found, counts = np.unique(labels, return_counts=True)
        classes = tuple(found.tolist())
        facts = replace(
            self.facts,
            classes=classes,
            label_counts=dict(zip(classes, counts.tolist(), strict=True)),
            weight_sum=float(at if weights is None else weights.sum()),
        )
        return Cut(chunks=chunks, facts=facts)


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
        self._columns: dict[float | None, Any] = {}

    @cached_property
    def cut(self) -> Cut:
        """In chunks, for kernels."""
        return cut_arrays(self.X)

    @cached_property
    def blocks(self) -> RowBlocks:
        """For products with the whole."""
        return RowBlocks(self.X, self.parallel)

    def columns(self, constant: float | None) -> Any:
        """By columns, and beside them one of this value: (n, d) or (n, d + 1)."""
        if constant not in self._columns:
            X = by_columns(self.X)
            if constant is not None:
                beside = np.full((X.shape[0], 1), constant)
                is_sparse = scipy.sparse.issparse(X)
                X = (
                    scipy.sparse.hstack([X, type(X)(beside)], format="csc")
                    if is_sparse
                    else np.asfortranarray(np.hstack([X, beside]))
                )
            self._columns[constant] = X
        return self._columns[constant]


def by_columns(X: Any) -> Any:
    """Return rows as coordinate descent reads them: sparse ones in CSC format."""
    return X.tocsc() if scipy.sparse.issparse(X) else np.asfortranarray(X)


def cut_arrays(X: Any) -> Cut:
    """Cut rows into chunks of about 1 MiB; all labels are 0.

    Parameters
    ----------
    X : ndarray or sparse (n, d), float64 or float32
    """
    dtype: Dtype = "float32" if X.dtype == np.float32 else "float64"
    rows = rows_of_arrays(X, np.zeros(X.shape[0]), None, name=_NAME)
    chunks, summary = cut_rows(rows, None, _NAME, 0, _CHUNK_BYTES, dtype)
    return Cut(chunks=chunks, facts=merge_summaries([summary], name=_NAME))
