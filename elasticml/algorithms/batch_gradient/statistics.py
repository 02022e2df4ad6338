"""Column statistics over a member's chunks, for scaling and for the safe step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.batch_gradient import kernels
from elasticml.data.chunk import Chunk
from elasticml.data.products import make_adjoint
from elasticml.data.source import DataFacts

F64 = NDArray[np.float64]


def add_moments(
    chunks: Sequence[Chunk], coefficients: Sequence[F64], facts: DataFacts, total: F64, squares: F64
) -> None:
    """Add ``sum_i c_i x_ij`` to ``total`` and ``sum_i c_i x_ij^2`` to ``squares``, both (d,).

    Parameters
    ----------
    coefficients : sequence of ndarray (n_rows,)
        One for each chunk.
    """
    first = make_adjoint(facts.layout, facts.n_columns)
    binary = make_adjoint(facts.layout, facts.n_columns)
    for chunk, c in zip(chunks, coefficients, strict=True):
        first.add(chunk, c)
        if chunk.layout.kind == "dense":
            values = chunk.values.astype(np.float64, copy=False)
            squares[: values.shape[1]] += c @ (values * values)
        elif chunk.layout.kind == "csr":
            kernels.add_squares(chunk.indptr, chunk.indices, chunk.values, c, squares)
        else:
            binary.add(chunk, c)
    first.result(total)
    binary.result(squares)


def raise_to_maxabs(chunks: Sequence[Chunk], facts: DataFacts, out: F64) -> None:
    """Raise ``out`` (d,) to the columns' largest absolute values."""
    binary = make_adjoint(facts.layout, facts.n_columns)
    for chunk in chunks:
        if chunk.layout.kind == "dense":
            values = chunk.values
            if len(values):
                view = out[: values.shape[1]]
                np.maximum(view, np.abs(values).max(axis=0), out=view)
        elif chunk.layout.kind == "csr":
            kernels.raise_to_maxabs(chunk.indices, chunk.values, out)
        else:
            binary.add(chunk, np.ones(chunk.n_rows))
    present = np.zeros(facts.n_columns)
    binary.result(present)
    np.maximum(out, (present > 0.0).astype(np.float64), out=out)
