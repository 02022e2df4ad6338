"""Chunks of dense rows in any layout, and the rows of chunks as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from elasticml.data.chunks.chunk import Chunk, csr_chunk, dense_chunk
from elasticml.ids import ChunkId

ID = ChunkId("test", 0, 0)


def chunk_of(kind: str, X: Any, y: Any = None, weights: Any = None, **more: Any) -> Chunk:
    """Make a chunk of a kind: dense, csr, or binary_csr of the places that are not zero.

    ``more`` may have its id, and the type of its numbers.
    """
    id, y = more.pop("id", ID), np.zeros(len(X)) if y is None else y
    if kind == "dense":
        return dense_chunk(id, y, X, weights, **more)
    S = sp.csr_array(X)
    values = S.data if kind == "csr" else None
    return csr_chunk(id, y, S.indptr, S.indices, values, S.shape[1], weights, **more)


def matrix(chunks: Sequence[Chunk], n_columns: int = 0) -> np.ndarray:
    """The values of all rows, of at least ``n_columns`` columns."""
    parts = [_values(chunk) for chunk in chunks]
    width = max(n_columns, *(part.shape[1] for part in parts))
    return np.vstack([np.pad(part, [(0, 0), (0, width - part.shape[1])]) for part in parts])


def _values(chunk: Chunk) -> np.ndarray:
    layout = chunk.layout
    if layout.kind == "dense":
        return np.array(chunk.values)
    if layout.kind == "sequence":  # single letters, the first of each n-gram
        n_letters = len(layout.alphabet)
        letters = chunk.codes // n_letters ** (layout.ngrams[1] - 1)
        return np.eye(n_letters)[letters].reshape(chunk.n_rows, -1)
    values = np.ones(chunk.indices.size) if layout.kind == "binary_csr" else chunk.values
    stored = (values, chunk.indices, chunk.indptr)
    return sp.csr_array(stored, (chunk.n_rows, layout.n_columns)).toarray()


def labels(chunks: Sequence[Chunk]) -> list[float]:
    """The labels of all rows."""
    return np.concatenate([chunk.labels for chunk in chunks]).tolist()
