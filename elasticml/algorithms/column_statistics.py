"""Column statistics, for scaling and for the safe step length: exchanges and a member's share.

``column_ranges``
    Up, reduced by maximum: ``largest`` (d,); ``smallest`` (d,), negated; ``other`` (d,), 1 for a
    column that has values other than 0 and 1.
``column_moments``
    Down: ``centre`` (d,). Up: ``count`` (), and about the centre ``total`` (d,) and ``squares``
    (d,). With ``weighted``, the sums are over weighted rows.

Both go through the rows in order. The moments that scale columns count every row once, whatever its
weight.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms import scaling
from elasticml.algorithms.base import (
    Arrays,
    Exchange,
    Operation,
    Outcome,
    Parallel,
    Resume,
    Work,
)
from elasticml.algorithms.parallel import runs
from elasticml.algorithms.scaling import Columns
from elasticml.arrays import F64
from elasticml.compiled import kernel
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import make_adjoint
from elasticml.data.out_of_core.store import stream_chunks
from elasticml.data.source import DatasetStats

COLUMN_RANGES: Final = "column_ranges"
COLUMN_MOMENTS: Final = "column_moments"


def ranges_exchange(n_columns: int) -> Exchange:
    """Return the exchange for the largest and smallest value of each column."""
    return Exchange(
        operation=COLUMN_RANGES,
        model={},
        returns={name: (n_columns,) for name in ("largest", "smallest", "other")},
        reduce="max",
        require="everybody",
    )


def moments_exchange(centre: F64, *, weighted: bool) -> Exchange:
    """Return the exchange for each column's sum and sum of squares about ``centre`` (d,)."""
    return Exchange(
        operation=COLUMN_MOMENTS,
        model={"centre": centre},
        returns={"count": (), "total": centre.shape, "squares": centre.shape},
        parameters={"weighted": weighted},
        require="everybody",
    )


def scales(scale: str, facts: DatasetStats) -> bool:
    """Whether the columns of these data are scaled; with "auto" dense rows and tables are."""
    if scale != "auto":
        return scale != "none"
    kind = facts.layout.kind
    return kind == "dense" or (facts.encoder is not None and kind != "sequence")


def fix_columns(
    scale: str,
    intercept: bool,
    facts: DatasetStats,
    constant: float = 1.0,
    resume: Resume | None = None,
    models: int = 1,
    fixed: int | None = None,
) -> Generator[Exchange, Outcome, Columns]:
    """Determine the scaling of the columns, by one or two exchanges over all members.

    With ``resume`` there is no exchange, and the scaling is the earlier one, bit for bit.

    Notes
    -----
    Moments are summed about the value between the smallest and the largest that is nearest to zero.
    Its squared distance from the mean is at most n times the variance, as one of the n rows is
    beyond it: the variance, a difference, is accurate to about n rounding errors. That of a
    constant column is exactly zero.
    """
    d = facts.n_columns
    columns = Columns(
        n_columns=d, intercept=intercept, constant=constant, models=models, fixed=fixed
    )
    if resume is not None:
        return scaling.same_columns(columns, resume.arrays)
    if not scales(scale, facts):
        return columns
    found = (yield ranges_exchange(d)).arrays
    largest, smallest = found["largest"], -found["smallest"]
    if scale == "maxabs":
        return scaling.maxabs_columns(columns, np.maximum(np.abs(largest), np.abs(smallest)))
    is_scaled = found["other"] > 0.0 if scale == "auto" else np.ones(d, bool)
    if not is_scaled.any():
        return columns
    centre = np.minimum(np.maximum(smallest, 0.0), largest)
    sums = (yield moments_exchange(centre, weighted=False)).arrays
    distance = sums["total"] / sums["count"]
    variance = np.maximum(sums["squares"] / sums["count"] - distance * distance, 0.0)
    mean = centre + distance
    # Sparse rows stay sparse: a column that is zero in at least half of the rows has a mean of at
    # most its deviation.
    keeps_zeros = scale == "standard" and facts.layout.kind != "dense"
    is_centred = is_scaled & (mean * mean > variance) if keeps_zeros else is_scaled
    return scaling.standard_columns(columns, mean, variance, is_scaled, is_centred)


def operations(
    facts: DatasetStats, weights_of: Callable[[Chunk], F64 | None] = lambda chunk: None
) -> dict[str, Operation]:
    """Return a member's shares of both exchanges, by their names.

    ``weights_of`` returns the weights of a chunk's rows, (n_rows,); None if all are one.
    """

    def ranges(work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        def run(part: Sequence[Chunk]) -> F64:
            return ranges_of(part, facts)

        found = np.full((3, facts.n_columns), -np.inf)
        for own in parallel.map(run, runs(chunks, parallel.n_threads)):
            np.maximum(found, own, out=found)
        return dict(zip(("largest", "smallest", "other"), found, strict=True))

    def moments(work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        centre = np.asarray(work.model["centre"], np.float64)

        def coefficients(chunk: Chunk) -> F64:
            weights = weights_of(chunk) if work.parameters["weighted"] else None
            return np.ones(chunk.n_rows) if weights is None else weights

        def run(part: Sequence[Chunk]) -> tuple[float, F64, F64]:
            total, squares = np.zeros(facts.n_columns), np.zeros(facts.n_columns)
            each = [coefficients(chunk) for chunk in part]
            add_moments(part, each, facts, centre, total, squares)
            return float(sum(c.sum() for c in each)), total, squares

        count, total, squares = 0.0, *np.zeros((2, facts.n_columns))
        for own in parallel.map(run, runs(chunks, parallel.n_threads)):
            count += own[0]
            total += own[1]
            squares += own[2]
        return {"count": np.array(count), "total": total, "squares": squares}

    return {COLUMN_RANGES: ranges, COLUMN_MOMENTS: moments}


def add_moments(
    chunks: Sequence[Chunk],
    coefficients: Sequence[F64],
    facts: DatasetStats,
    centre: F64,
    total: F64,
    squares: F64,
) -> None:
    """Add ``sum_i c_i (x_ij - centre_j)`` to ``total`` and that of the squares to ``squares``.

    Parameters
    ----------
    coefficients : sequence of ndarray (n_rows,)
        One array for each chunk.
    centre, total, squares : ndarray (d,)
    """
    is_sequence = facts.layout.kind == "sequence"
    codes = make_adjoint(facts.layout, facts.n_columns if is_sequence else 0)
    # Sums of the coefficients of sparse rows, and of those of them that store a column.
    weight, stored = 0.0, np.zeros(facts.n_columns)
    for chunk, c in zip(stream_chunks(chunks), coefficients, strict=True):
        if chunk.layout.kind == "dense":
            away = chunk.values - centre
            total += c @ away
            squares += c @ (away * away)
            continue
        weight += float(c.sum())
        if chunk.layout.kind == "sequence":
            codes.add(chunk, c)
        else:
            rows = (chunk.indptr, chunk.indices, _stored_values(chunk))
            add_csr_moments(*rows, c, centre, total, squares, stored)
    if is_sequence:
        codes.result(stored)
        total += stored * (1.0 - centre)
        squares += stored * (1.0 - centre) ** 2
    if not centre.any():
        return
    lacking = np.subtract(weight, stored, out=stored)
    lacking[lacking <= 1e-9 * weight] = 0.0  # rounding: every row stores the column
    total -= lacking * centre
    squares += lacking * centre**2


def ranges_of(chunks: Sequence[Chunk], facts: DatasetStats) -> F64:
    """Return the rows of :func:`ranges_exchange` for some chunks, (3, d); -inf without rows."""
    found = np.full((3, facts.n_columns), -np.inf)
    codes = make_adjoint(facts.layout, facts.n_columns)
    n_sparse, stored = 0, np.zeros(facts.n_columns)
    for chunk in stream_chunks(chunks):
        if chunk.layout.kind == "dense":
            raise_to_dense(chunk.values, found)
            continue
        n_sparse += chunk.n_rows
        if chunk.layout.kind == "sequence":
            codes.add(chunk, np.ones(chunk.n_rows))
        else:
            raise_to_csr(chunk.indices, _stored_values(chunk), found, stored)
    if facts.layout.kind == "sequence":
        codes.result(stored)
        found[:2] = np.where(stored > 0.0, [[1.0], [-1.0]], found[:2])
    lacking = stored < n_sparse
    found[:2, lacking] = np.maximum(found[:2, lacking], 0.0)
    found[2] = np.maximum(found[2], 0.0)
    return found


def _stored_values(chunk: Chunk) -> NDArray[Any]:
    """Return the values of sparse rows, also of those that store none as all are 1."""
    return np.ones(chunk.indices.size) if chunk.layout.kind == "binary_csr" else chunk.values


@kernel
def add_csr_moments(
    indptr: NDArray[np.int32],
    indices: NDArray[np.int32],
    values: NDArray[Any],
    coefficients: F64,
    centre: F64,
    total: F64,
    squares: F64,
    stored: F64,
) -> None:
    """Add the sums of :func:`add_moments` over stored values, and of ``c_i`` to ``stored[j]``."""
    for i in range(coefficients.size):
        c = coefficients[i]
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            away = np.float64(values[k]) - centre[j]
            total[j] += c * away
            squares[j] += c * away * away
            stored[j] += c


@kernel
def raise_to_dense(values: NDArray[Any], found: F64) -> None:
    """Raise ``found`` (3, d) to the rows' values, see :func:`ranges_exchange`."""
    largest, smallest, other = found[0], found[1], found[2]
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            x = np.float64(values[i, j])
            largest[j] = max(largest[j], x)
            smallest[j] = max(smallest[j], -x)
            if x != 0.0 and x != 1.0:
                other[j] = 1.0


@kernel
def raise_to_csr(indices: NDArray[np.int32], values: NDArray[Any], found: F64, stored: F64) -> None:
    """Raise ``found`` (3, d) to the stored values, and count them in ``stored[j]``."""
    for k in range(indices.size):
        j, x = indices[k], np.float64(values[k])
        found[0, j] = max(found[0, j], x)
        found[1, j] = max(found[1, j], -x)
        if x != 0.0 and x != 1.0:
            found[2, j] = 1.0
        stored[j] += 1.0
