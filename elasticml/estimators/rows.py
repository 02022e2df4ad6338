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
from elasticml.data import lent
from elasticml.data.chunk import Chunk
from elasticml.data.facts import DataFacts, merge_summaries, summarise

F64 = NDArray[np.float64]
#: About so many chunks, of a size between these: what is told of each costs some microseconds.
_CHUNKS: Final = 64
_CHUNK_BYTES: Final = 2**20
_CHUNK_BYTES_MAX: Final = 2**24
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
            some = None if weights is None else weights[rows]
            chunks.append(lent.relabelled(chunk, labels[rows], some))
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
    """Cut rows into chunks that look at them; all labels are 0.

    Parameters
    ----------
    X : ndarray or sparse (n, d), float64 or float32
        Finite.
    """
    size = X.nnz * 8 if hasattr(X, "nnz") else X.nbytes
    chunks = lent.lend(X, _NAME, min(max(size // _CHUNKS, _CHUNK_BYTES), _CHUNK_BYTES_MAX))
    return Cut(
        chunks=chunks,
        facts=merge_summaries([summarise(0, chunks, chunks[0].layout)], name=_NAME),
    )
