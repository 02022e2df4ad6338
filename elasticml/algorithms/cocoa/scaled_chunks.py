"""Copies of chunks with scaled columns, which a pass visits with ``scale`` or ``offset``.

The kernel reads rows as they are in memory, so a member keeps a scaled copy of each chunk beside
the original, which it must be able to send unchanged. Certificates need no copies: products with
all rows apply the scale to the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk, csr_chunk, dense_chunk
from elasticml.data.source import DatasetStats
from elasticml.errors import ConfigError

#: Maximum columns for which shifted sparse rows, which have no zeros left, are kept as dense ones.
SHIFTED_COLUMNS_MAX: Final = 512


def forms(settings: Mapping[str, Any]) -> int:
    """Return the number of copies of each chunk in memory, from a job's ``algorithm`` section."""
    is_copied = settings.get("scale") not in (None, "none") or settings.get("offset") is not None
    return 2 if is_copied else 1


def check_scale(scale: str, facts: DatasetStats) -> None:
    """Refuse scales that do not fit the data's rows.

    Raises
    ------
    ConfigError
        When scaled rows would have no zeros left, or are sequences.
    """
    kind = facts.layout.kind
    if scale == "standard" and kind != "dense" and facts.n_columns > SHIFTED_COLUMNS_MAX:
        raise ConfigError(
            f"algorithm.scale is 'standard' with {facts.n_columns} sparse columns, wanted at most "
            f"{SHIFTED_COLUMNS_MAX}: shifted columns have no zeros; use maxabs",
            key="algorithm.scale",
        )
    if scale != "none" and kind == "sequence":
        raise ConfigError(
            f"algorithm.scale is {scale!r}, wanted none for sequences: their columns are 0 or 1",
            key="algorithm.scale",
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
    if layout.kind == "dense" or shift is not None:
        rows = chunk.values if layout.kind == "dense" else _dense(chunk, factor.size)
        moved = rows if shift is None else rows - shift
        return dense_chunk(
            chunk.id, chunk.labels, moved * factor, chunk.weights, dtype=layout.dtype
        )
    ones = layout.kind == "binary_csr"
    each = factor[chunk.indices]
    return csr_chunk(
        chunk.id,
        chunk.labels,
        chunk.indptr,
        chunk.indices,
        each if ones else chunk.values * each,
        layout.n_columns,
        chunk.weights,
        dtype=layout.dtype,
    )


def _dense(chunk: Chunk, n_columns: int) -> NDArray[Any]:
    rows = np.zeros((chunk.n_rows, n_columns))
    of = np.repeat(np.arange(chunk.n_rows), np.diff(chunk.indptr))
    rows[of, chunk.indices] = 1.0 if chunk.layout.kind == "binary_csr" else chunk.values
    return rows
