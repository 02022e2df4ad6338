"""The rows of chunks as arrays, whatever the layout of the chunks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.ngrams import letters_of_codes
from elasticml.data.chunks.rows import matrix_of, rows_of_chunk


def matrix(chunks: Sequence[Chunk], n_columns: int = 0) -> np.ndarray:
    """The values of all rows, of at least ``n_columns`` columns."""
    parts = [_values(chunk) for chunk in chunks]
    width = max(n_columns, *(part.shape[1] for part in parts))
    return np.vstack([np.pad(part, [(0, 0), (0, width - part.shape[1])]) for part in parts])


def _values(chunk: Chunk) -> np.ndarray:
    if chunk.layout.kind != "sequence":
        return sp.csr_array(matrix_of(rows_of_chunk(chunk))).toarray()
    letters = letters_of_codes(chunk.codes, chunk.layout)  # of single letters, no longer n-grams
    return np.eye(len(chunk.layout.alphabet))[letters].reshape(chunk.n_rows, -1)


def labels(chunks: Sequence[Chunk]) -> list[float]:
    """The labels of all rows."""
    return np.concatenate([chunk.labels for chunk in chunks]).tolist()
