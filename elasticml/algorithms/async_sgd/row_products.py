"""Products with the rows of a mini-batch: ``X w`` and ``X.T c``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.kernels import kernel, regrouping_kernel
from elasticml.errors import ConfigError

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
Real = NDArray[np.float64] | NDArray[np.float32]
Parts = Sequence[tuple[Chunk, I64]]


@regrouping_kernel
def _dense_forward(values: Real, rows: I64, w: F64, out: F64) -> None:
    for i in range(rows.size):
        x, total = values[rows[i]], 0.0
        for j in range(values.shape[1]):
            total += x[j] * w[j]
        out[i] = total


@kernel
def _dense_adjoint(values: Real, rows: I64, c: F64, out: F64) -> None:
    for i in range(rows.size):
        x = values[rows[i]]
        for j in range(values.shape[1]):
            out[j] += c[i] * x[j]


@kernel
def _csr_forward(indptr: I32, indices: I32, values: Real, rows: I64, w: F64, out: F64) -> None:
    for i in range(rows.size):
        total = 0.0
        for at in range(indptr[rows[i]], indptr[rows[i] + 1]):
            x = values[at] if values.size > 0 else 1.0
            total += x * w[indices[at]]
        out[i] = total


@kernel
def _csr_adjoint(indptr: I32, indices: I32, values: Real, rows: I64, c: F64, out: F64) -> None:
    for i in range(rows.size):
        for at in range(indptr[rows[i]], indptr[rows[i] + 1]):
            x = values[at] if values.size > 0 else 1.0
            out[indices[at]] += c[i] * x


def forward(parts: Parts, w: F64, out: F64) -> None:
    """Write the rows' products with ``w`` into ``out`` (rows,).

    Raises
    ------
    ConfigError
        When the chunks hold sequences, or more columns than ``w`` has.
    """
    at = 0
    for chunk, rows in parts:
        _check(chunk, w)
        part = out[at : at + rows.size]
        if chunk.layout.kind == "dense":
            _dense_forward(chunk.values, rows, w, part)
        else:
            _csr_forward(chunk.indptr, chunk.indices, chunk.values, rows, w, part)
        at += rows.size


def adjoint(parts: Parts, coefficients: F64, out: F64) -> None:
    """Add ``sum_i c_i x_i`` to ``out``."""
    at = 0
    for chunk, rows in parts:
        part = coefficients[at : at + rows.size]
        if chunk.layout.kind == "dense":
            _dense_adjoint(chunk.values, rows, part, out)
        else:
            _csr_adjoint(chunk.indptr, chunk.indices, chunk.values, rows, part, out)
        at += rows.size


def _check(chunk: Chunk, w: F64) -> None:
    if chunk.layout.kind == "sequence" or chunk.layout.n_columns > w.size:
        raise ConfigError(
            f"algorithm.problem is 'linear' and chunk {chunk.id} is {chunk.layout.kind} with "
            f"{chunk.layout.n_columns} columns, wanted numbers in at most {w.size}; for sequences "
            "use algorithm cocoa or batch_gradient",
            key="algorithm.problem",
        )
