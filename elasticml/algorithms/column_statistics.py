"""Column statistics, for scaling and for the safe step length: exchanges and a member's share.

``column_maxabs``, ``column_moments``
    Up: ``maxabs`` (d,), reduced by maximum; or ``count`` (), ``total`` (d,), ``squares`` (d,). With
    ``weighted``, the sums are over weighted rows.

The kernels are serial, release the GIL and go through the rows in order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms import scaling
from elasticml.algorithms.base import Arrays, Exchange, Outcome, Parallel, Resume
from elasticml.algorithms.parallel import runs
from elasticml.algorithms.scaling import Columns
from elasticml.arrays import F64
from elasticml.compiled import kernel
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import make_adjoint
from elasticml.data.out_of_core.store import stream_chunks
from elasticml.data.source import DatasetStats

# Column statistics, for scaling and for the safe step length: exchanges and a member's share.
#
# ``column_maxabs``, ``column_moments``
#     Up: ``maxabs`` (d,), reduced by maximum; or ``count`` (), ``total`` (d,), ``squares`` (d,).
#     With
#     ``weighted``, the sums are over weighted rows.

COLUMN_MAXABS: Final = "column_maxabs"
COLUMN_MOMENTS: Final = "column_moments"


def maxabs_exchange(n_columns: int) -> Exchange:
    """Return the exchange for the largest absolute value of each column."""
    return Exchange(
        operation=COLUMN_MAXABS,
        model={},
        returns={"maxabs": (n_columns,)},
        reduce="max",
        require="everybody",
    )


def moments_exchange(n_columns: int, *, weighted: bool) -> Exchange:
    """Return the exchange for each column's sum and sum of squares."""
    return Exchange(
        operation=COLUMN_MOMENTS,
        model={},
        returns={"count": (), "total": (n_columns,), "squares": (n_columns,)},
        parameters={"weighted": weighted},
        require="everybody",
    )


def fix_columns(
    scale: str,
    intercept: bool,
    facts: DatasetStats,
    constant: float = 1.0,
    resume: Resume | None = None,
    models: int = 1,
    fixed: int | None = None,
) -> Generator[Exchange, Outcome, Columns]:
    """Determine the scaling of the columns; one exchange over all members unless it is "none".

    With ``resume`` there is no exchange, and the scaling is the earlier one, bit for bit.
    """
    d = facts.n_columns
    columns = Columns(
        n_columns=d, intercept=intercept, constant=constant, models=models, fixed=fixed
    )
    if resume is not None:
        return scaling.same_columns(columns, resume.arrays)
    if scale == "none":
        return columns
    if scale == "maxabs":
        outcome = yield maxabs_exchange(d)
        return scaling.maxabs_columns(columns, outcome.arrays["maxabs"])
    outcome = yield moments_exchange(d, weighted=False)
    count, total, squares = (outcome.arrays[name] for name in ("count", "total", "squares"))
    return scaling.standard_columns(columns, float(count), total, squares)


def largest_values(chunks: Sequence[Chunk], facts: DatasetStats, parallel: Parallel) -> Arrays:
    """Return a member's share of :func:`maxabs_exchange`."""

    def run(part: Sequence[Chunk]) -> F64:
        out = np.zeros(facts.n_columns)
        raise_to_maxabs(part, facts, out)
        return out

    largest = np.zeros(facts.n_columns)
    for part in parallel.map(run, runs(chunks, parallel.n_threads)):
        np.maximum(largest, part, out=largest)
    return {"maxabs": largest}


def moments(
    chunks: Sequence[Chunk],
    facts: DatasetStats,
    parallel: Parallel,
    coefficients: Callable[[Chunk], F64],
) -> Arrays:
    """Return a member's share of :func:`moments_exchange`.

    ``coefficients`` returns the weights of a chunk's rows, (n_rows,).
    """

    def run(part: Sequence[Chunk]) -> tuple[float, F64, F64]:
        total, squares = np.zeros(facts.n_columns), np.zeros(facts.n_columns)
        each = [coefficients(chunk) for chunk in part]
        add_moments(part, each, facts, total, squares)
        return float(sum(c.sum() for c in each)), total, squares

    count, total, squares = 0.0, *np.zeros((2, facts.n_columns))
    for part_count, part_total, part_squares in parallel.map(run, runs(chunks, parallel.n_threads)):
        count += part_count
        total += part_total
        squares += part_squares
    return {"count": np.array(count), "total": total, "squares": squares}


def add_moments(
    chunks: Sequence[Chunk],
    coefficients: Sequence[F64],
    facts: DatasetStats,
    total: F64,
    squares: F64,
) -> None:
    """Add ``sum_i c_i x_ij`` to ``total`` and ``sum_i c_i x_ij^2`` to ``squares``, both (d,).

    Parameters
    ----------
    coefficients : sequence of ndarray (n_rows,)
        One array for each chunk.
    """
    first = make_adjoint(facts.layout, facts.n_columns)
    binary = make_adjoint(facts.layout, facts.n_columns)
    for chunk, c in zip(stream_chunks(chunks), coefficients, strict=True):
        first.add(chunk, c)
        if chunk.layout.kind == "dense":
            values = chunk.values.astype(np.float64, copy=False)
            squares[: values.shape[1]] += c @ (values * values)
        elif chunk.layout.kind == "csr":
            add_csr_squares(chunk.indptr, chunk.indices, chunk.values, c, squares)
        else:
            binary.add(chunk, c)
    first.result(total)
    binary.result(squares)


def raise_to_maxabs(chunks: Sequence[Chunk], facts: DatasetStats, out: F64) -> None:
    """Raise ``out`` (d,) to the largest absolute value of each column."""
    binary = make_adjoint(facts.layout, facts.n_columns)
    for chunk in stream_chunks(chunks):
        if chunk.layout.kind == "dense":
            values = chunk.values
            if len(values):
                view = out[: values.shape[1]]
                np.maximum(view, np.abs(values).max(axis=0), out=view)
        elif chunk.layout.kind == "csr":
            raise_to_csr_maxabs(chunk.indices, chunk.values, out)
        else:
            binary.add(chunk, np.ones(chunk.n_rows))
    present = np.zeros(facts.n_columns)
    binary.result(present)
    np.maximum(out, (present > 0.0).astype(np.float64), out=out)


# Serial compiled loops for the statistics of sparse columns; they release the GIL.


@kernel
def add_csr_squares(
    indptr: NDArray[np.int32],
    indices: NDArray[np.int32],
    values: NDArray[Any],
    coefficients: F64,
    out: F64,
) -> None:
    """Add ``sum_i c_i x_ij^2`` to ``out[j]``; ``coefficients`` (n,)."""
    for i in range(coefficients.size):
        for k in range(indptr[i], indptr[i + 1]):
            x = np.float64(values[k])
            out[indices[k]] += coefficients[i] * x * x


@kernel
def raise_to_csr_maxabs(indices: NDArray[np.int32], values: NDArray[Any], out: F64) -> None:
    """Raise ``out[j]`` to the largest ``|x_ij|``."""
    for k in range(indices.size):
        x = abs(np.float64(values[k]))
        if x > out[indices[k]]:
            out[indices[k]] = x
