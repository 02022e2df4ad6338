"""Columns of Dask collections of rows: partitions of rows become blocks of columns on the workers.

A worker that holds a partition cuts it into the columns of each block, and the member that takes a
block joins these pieces. Neither the client nor the scheduler touches a row.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import dask
import numpy as np
import scipy.sparse

from elasticml.arrays import F64
from elasticml.data.chunks.by_columns import ROOTS, TARGETS
from elasticml.data.readers.dask_partitions import (
    DaskArraySource,
    RowParts,
    matrix_of_part,
    partition_graph,
    vector_of_part,
)


def column_source(
    parts: RowParts, n_blocks: int, constant: float | None, collections: tuple[Any, ...]
) -> DaskArraySource:
    """Return the source by columns of partitions of rows, as ``rows_by_columns`` has them.

    Parameters
    ----------
    n_blocks : int
        Blocks of columns, at most as many as there are columns.
    constant : float, optional
        The value of one more column.
    collections : tuple
        What keeps persisted partitions.
    """
    d = parts.columns
    bounds = [d * k // n_blocks for k in range(n_blocks + 1)]
    weights = parts.weights or [None] * len(parts.y)
    rows = list(zip(parts.X, parts.y, weights, strict=True))
    cut, also, join = (dask.delayed(f, pure=True) for f in (_cut, _extra_rows, _joined))
    blocks, sizes = [], []
    for k, (low, high) in enumerate(pairwise(bounds)):
        labels = np.arange(low, high, dtype=np.float64)
        pieces = [cut(X, s, low, high) for X, _, s in rows]
        extra = None
        if k == n_blocks - 1:
            extra = [also(y, s, constant) for _, y, s in rows]
            own = [] if constant is None else [float(d)]
            roots = [] if parts.weights is None else [ROOTS]
            labels = np.concatenate([labels, [*own, TARGETS, *roots]])
        blocks.append(join(pieces, extra, labels))
        sizes.append(labels.size)
    name, graph = partition_graph([blocks], joins=True)
    columns = _total(parts)
    made = DaskArraySource(digest=name, rows=tuple(sizes), columns=columns, by="columns")
    return made.of(graph, collections)


def _total(parts: RowParts) -> int | None:
    """Return the number of rows, if it is known."""
    known = [n for n in parts.rows if n is not None]
    return sum(known) if len(known) == len(parts.rows) else None


def _cut(X: Any, weights: Any, low: int, high: int) -> Any:
    """Return some columns of a partition as rows, times the square roots of the weights."""
    matrix = matrix_of_part(X)[:, low:high]
    roots = None if weights is None else np.sqrt(vector_of_part(weights).astype(np.float64))
    if not scipy.sparse.issparse(matrix):
        columns = np.array(matrix.T, np.float64, order="C")
        return columns if roots is None else columns * roots
    columns = matrix.T.astype(np.float64)
    return scipy.sparse.csr_array(
        columns if roots is None else columns @ scipy.sparse.diags_array(roots)
    )


def _extra_rows(y: Any, weights: Any, constant: float | None) -> F64:
    """Return the rows besides the features: the constant column, the targets, and the roots."""
    targets = vector_of_part(y).astype(np.float64)
    roots = None if weights is None else np.sqrt(vector_of_part(weights).astype(np.float64))
    ones = np.ones(targets.size) if roots is None else roots
    rows = [*([] if constant is None else [constant * ones]), targets]
    return np.stack(rows if roots is None else [*rows, roots])


def _joined(pieces: list[Any], extra: list[F64] | None, labels: F64) -> tuple[Any, F64]:
    """Join the pieces of a block; return its rows and their labels, as a source's partition."""
    below = [] if extra is None else [np.concatenate(extra, axis=1)]
    if not any(scipy.sparse.issparse(piece) for piece in pieces):
        return np.concatenate([np.concatenate(pieces, axis=1), *below]), labels
    matrix = scipy.sparse.hstack(pieces, format="csr")
    tail = [scipy.sparse.csr_array(rows) for rows in below]
    return scipy.sparse.csr_array(scipy.sparse.vstack([matrix, *tail], format="csr")), labels
