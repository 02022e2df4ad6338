"""A chunk's rows as a matrix, for custom algorithms: ``X @ w`` and ``c @ X``."""

from __future__ import annotations

import numpy as np

from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import make_adjoint, make_forward


class Matrix:
    """The examples of a chunk of any kind: dense, sparse, or sequences.

    Parameters
    ----------
    chunk : Chunk
    n_columns : int
        Number of columns of the whole data set: ``facts.n_columns``.
    """

    #: Makes NumPy leave ``c @ X`` to this class.
    __array_ufunc__ = None
    __slots__ = ("_chunk", "shape")

    def __init__(self, chunk: Chunk, n_columns: int) -> None:
        self._chunk = chunk
        self.shape = (chunk.n_rows, n_columns)

    def __matmul__(self, w: F64) -> F64:
        """Return ``X w``, new, (n,), for w (d,)."""
        out = np.empty(self.shape[0])
        make_forward(self._chunk.layout, w)(self._chunk, out)
        return out

    def __rmatmul__(self, c: F64) -> F64:
        """Return ``c X``, new, (d,), for c (n,)."""
        adjoint, out = make_adjoint(self._chunk.layout, self.shape[1]), np.zeros(self.shape[1])
        adjoint.add(self._chunk, c)
        adjoint.result(out)
        return out
