"""Copies of chunks with scaled columns, which a pass visits with ``scale`` or ``offset``.

The kernel reads rows as they are in memory, so a member keeps a scaled copy of each chunk beside
the original, which it must be able to send unchanged. Certificates need no copies: products with
all rows apply the scale to the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import scipy.sparse

from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk, csr_chunk, dense_chunk
from elasticml.data.source import DatasetStats
from elasticml.errors import ConfigError

#: Formats of rows that ``scale: auto`` leaves as they are.
_SPARSE: Final = ("svmlight", "synthetic_splice")


def forms(settings: Mapping[str, Any], data: Mapping[str, Any]) -> int:
    """Return the largest number of copies of each chunk in memory.

    Parameters
    ----------
    settings, data : mapping
        The sections ``algorithm`` and ``data`` of the job's record.
    """
    scale = settings.get("scale", "none")
    is_scaled = data.get("format") not in _SPARSE if scale == "auto" else scale != "none"
    return 2 if is_scaled or settings.get("offset") is not None else 1


def check_scale(scale: str, facts: DatasetStats) -> None:
    """Refuse scaled sequences.

    Raises
    ------
    ConfigError
        When the rows are sequences and ``scale`` is not "auto" or "none".
    """
    if scale not in ("auto", "none") and facts.layout.kind == "sequence":
        raise ConfigError(
            f"algorithm.scale is {scale!r}, wanted none for sequences: their columns are 0 or 1"
        )


def scaled_chunk(chunk: Chunk, factor: F64 | None, shift: F64 | None) -> Chunk:
    """Return a chunk of the same id with rows ``(x - shift) * factor``; the chunk without factor.

    Parameters
    ----------
    factor, shift : ndarray (d,), optional
    """
    if factor is None:
        return chunk
    layout = chunk.layout
    if layout.kind == "dense":
        moved = chunk.values if shift is None else chunk.values - shift
        return dense_chunk(
            chunk.id, chunk.labels, moved * factor, chunk.weights, dtype=layout.dtype
        )
    shape = (chunk.n_rows, factor.size)
    values = np.ones(chunk.indices.size) if layout.kind == "binary_csr" else chunk.values
    rows = scipy.sparse.csr_array((values, chunk.indices, chunk.indptr), shape=shape)
    if shift is not None:
        (columns,) = np.nonzero(shift)
        shifts = np.tile(shift[columns], chunk.n_rows)
        ends = np.arange(chunk.n_rows + 1) * columns.size
        rows = rows - scipy.sparse.csr_array(
            (shifts, np.tile(columns, chunk.n_rows), ends), shape=shape
        )
    return csr_chunk(
        chunk.id,
        chunk.labels,
        rows.indptr,
        rows.indices,
        rows.data * factor[rows.indices],
        layout.n_columns,
        chunk.weights,
        dtype=layout.dtype,
    )
