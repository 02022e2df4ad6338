"""A member's share of a Hessian: ``X~' D X~`` over shifted rows, by blocks of dense rows.

Rows are collected in blocks that stay in cache, whatever the sizes of chunks, and multiplied by
BLAS. Of very sparse rows without a shift the products of a row's entries are added one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from elasticml.algorithms.linear.gram import add_pairs, adds_pairs, fill_rows
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import make_adjoint, read_only

#: Rows and values of a block: with more rows adding the product costs less than computing it, and
#: with more values blocks leave the cache.
_ROWS_MAX: Final = 4096
_ROWS_MIN: Final = 512
_VALUES: Final = 2**18


class HessianSums:
    """Sums over rows, each weighted by an entry of its loss's Hessian, for pairs of models.

    Parameters
    ----------
    pairs : int
        Number of pairs.
    d : int
        Columns.
    shift : ndarray (d,), optional
        Subtracted from each row.
    """

    def __init__(self, pairs: int, d: int, shift: F64 | None) -> None:
        self._d, self._shift = d, shift
        self._gram = np.zeros((pairs, d, d))
        self._border, self._mass = np.zeros((pairs, d)), np.zeros(pairs)
        rows = min(_ROWS_MAX, max(_ROWS_MIN, _VALUES // max(1, d)))
        self._rows, self._weighted = np.empty((rows, d)), np.empty((rows, d))
        self._entries = np.empty((pairs, rows))
        #: Sums of products of single entries: half of them, the rest is the transpose.
        self._half: F64 | None = None
        #: Rows in the block.
        self._filled = 0

    def add(self, chunk: Chunk, entries: F64) -> None:
        """Add the first rows of a chunk with their entries (pairs, rows)."""
        if self._adds_pairs(chunk):
            self._add_pairs(chunk, entries)
            return
        n, first = entries.shape[1], 0
        while first < n:
            at = self._filled
            step = min(n - first, len(self._rows) - at)
            block = self._rows[at : at + step]
            self._write(chunk, first, block)
            if self._shift is not None:
                block -= self._shift
            self._entries[:, at : at + step] = entries[:, first : first + step]
            self._filled += step
            first += step
            if self._filled == len(self._rows):
                self._flush()

    def result(self) -> Mapping[str, F64]:
        """Return ``gram``, ``border`` and ``mass``, see :mod:`gradient_exchanges`."""
        self._flush()
        if self._half is not None:
            self._gram += self._half + self._half.transpose(0, 2, 1)
            self._half = None
        lower = np.tril_indices(self._d)
        gram = np.array([matrix[lower] for matrix in self._gram])
        return {"gram": gram, "border": self._border, "mass": self._mass}

    def _write(self, chunk: Chunk, first: int, block: F64) -> None:
        """Write the chunk's rows from ``first`` on into the block; missing columns are zero."""
        if chunk.layout.kind == "dense":
            width = chunk.values.shape[1]
            block[:, :width] = chunk.values[first : first + len(block)]
            block[:, width:] = 0.0
            return
        fill_rows(*_rows_of(chunk), np.ones(first + len(block)), first, block)

    def _flush(self) -> None:
        rows, weighted = self._rows[: self._filled], self._weighted[: self._filled]
        entries = self._entries[:, : self._filled]
        for p, entry in enumerate(entries):
            np.multiply(rows, np.sqrt(np.abs(entry))[:, None], out=weighted)
            # BLAS needs half the work for the product of a block's transpose and the block itself.
            product = weighted.T @ weighted
            if entry.sum() < 0.0:
                self._gram[p] -= product
            else:
                self._gram[p] += product
        self._border += entries @ rows
        self._mass += entries.sum(axis=1)
        self._filled = 0

    def _adds_pairs(self, chunk: Chunk) -> bool:
        """Whether products of single entries cost less than those of dense rows."""
        if chunk.layout.kind == "dense" or self._shift is not None:
            return False
        return adds_pairs(np.diff(chunk.indptr), chunk.n_rows, self._d)

    def _add_pairs(self, chunk: Chunk, entries: F64) -> None:
        rows = _rows_of(chunk)
        all_rows = np.zeros(chunk.n_rows)
        if self._half is None:
            self._half = np.zeros_like(self._gram)
        for p, entry in enumerate(entries):
            add_pairs(*rows, read_only(np.ascontiguousarray(entry)), self._half[p])
            all_rows[: entry.size] = entry
            adjoint = make_adjoint(chunk.layout, self._d)
            adjoint.add(chunk, all_rows)
            adjoint.result(self._border[p])
        self._mass += entries.sum(axis=1)


def _rows_of(chunk: Chunk) -> tuple[np.ndarray, np.ndarray, F64]:
    """Return pointers, indices and float64 values of sparse rows."""
    if chunk.layout.kind == "binary_csr":
        values = np.ones(chunk.indices.size)
    else:
        values = chunk.values.astype(np.float64, copy=False)
    return read_only(chunk.indptr), read_only(chunk.indices), read_only(values)
