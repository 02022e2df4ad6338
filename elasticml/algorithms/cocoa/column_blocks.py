"""A chunk of columns for coordinate descent: the addresses of its arrays, and its moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from elasticml.algorithms.cocoa import sweep_kernels
from elasticml.algorithms.cocoa.coordinates import Coordinates
from elasticml.algorithms.cocoa.row_kernels import KIND_CODES
from elasticml.algorithms.cocoa.sweep_kernels import WeightedColumns
from elasticml.algorithms.linear import coordinate_descent_kernels
from elasticml.algorithms.linear.column_matrix import FLAT
from elasticml.arrays import F64, I64, address
from elasticml.data.chunks.chunk import Chunk, csr_chunk, dense_chunk
from elasticml.ids import ChunkId
from elasticml.objectives.loss_kernels import loss_named
from elasticml.objectives.penalty_kernels import Penalty, make_penalty
from elasticml.specification.algorithms import PrimalCoCoA

#: The coefficients in a chunk's state. Here and below, rows that are not columns have 0.
COEFS: Final = Coordinates("coef")

# The state also has the constants of the chunk's columns, so that a member that receives the chunk
# need not read its body for them.

#: float64 (n_rows,): squared norms and means of the columns.
NORMS: Final = "norms"
MEANS: Final = "means"


def mean_penalty(settings: PrimalCoCoA) -> Penalty:
    """Return the penalty in the mean form of a job's objective."""
    l1 = settings.l1 if settings.penalty is None else 1.0
    return make_penalty(l1, settings.l2, settings.penalty_terms)


def no_columns(root: F64, h: F64 | None = None) -> WeightedColumns:
    """Return the weights of the examples, which those of all blocks have in common.

    Parameters
    ----------
    root : ndarray (n,)
        Square roots of the examples' weights.
    h : ndarray (n,), optional
        Curvatures of the loss; None if all are one.
    """
    none, h_root = np.zeros(0), root if h is None else h * root
    h = sweep_kernels.NO_CURVATURES if h is None else h
    return WeightedColumns(np.zeros(4, np.int64), none, none, root, h, h_root, float(h_root @ root))


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBlock:
    """One chunk's columns; its other rows (targets, weights) are never in ``features``."""

    chunk: Chunk
    #: (4,) kind and addresses, see :func:`elasticml.algorithms.cocoa.sweep_kernels.sweep`.
    place: I64
    #: (m,) rows of the chunk that are columns.
    features: I64
    #: (m,) their numbers in the data.
    numbers: I64

    @staticmethod
    def of(chunk: Chunk) -> ColumnBlock:
        """Make the block of a chunk; the body is not copied."""
        code = KIND_CODES[chunk.layout.kind]
        parts = (chunk.indptr, chunk.indices, chunk.values)
        features = np.flatnonzero(chunk.labels >= 0.0)
        return ColumnBlock(
            chunk=chunk,
            place=np.array([code, *(address(part) for part in parts)], np.int64),
            features=features,
            numbers=chunk.labels[features].astype(np.int64),
        )

    def own(self, whole: F64) -> F64:
        """Return this chunk's entries of an array (d,), as (n_rows,)."""
        part = np.zeros(self.chunk.n_rows)
        part[self.features] = whole[self.numbers]
        return part

    def correlations(self, r: F64, along_root: float) -> F64:
        """Return products of the centred columns with ``r``; ``along_root`` is ``r.root``."""
        out, some = np.empty(self.features.size), self.features
        coordinate_descent_kernels.correlate(
            some, self.place, r.size, sweep_kernels.NO_GRAMS, r, out
        )
        out -= self.chunk.state[MEANS][some] * along_root
        out[self.chunk.state[NORMS][some] == 0.0] = 0.0
        return out

    def weighted(self, none: WeightedColumns, *, centred: bool) -> WeightedColumns:
        """Return these columns for sweeps, their means and squared norms weighted by curvatures."""
        means, norms = self.chunk.state[MEANS], self.chunk.state[NORMS]
        columns = none._replace(place=self.place, means=means, norms=norms)
        if columns.h.size:
            columns = columns._replace(means=means.copy(), norms=norms.copy())
            sweep_kernels.weigh(self.features, columns, centred, FLAT)
        return columns


def begin(chunk: Chunk, root: F64, *, centred: bool) -> None:
    """Initialise a chunk's state, without coefficients.

    The columns' means are 0 unless they are ``centred``. The squared norm is 0 for columns of which
    centring leaves only rounding errors.

    Parameters
    ----------
    root : ndarray (n,)
        Square roots of the examples' weights.
    """
    n, block = chunk.n_rows, ColumnBlock.of(chunk)
    means, norms = np.zeros(n), np.zeros(n)
    columns = no_columns(root, np.ones(root.size))
    columns = columns._replace(place=block.place, means=means, norms=norms)
    for _ in range(1 + centred):  # the second time about the mean
        norms[block.features] = 1.0
        sweep_kernels.weigh(block.features, columns, centred, FLAT)
    chunk.state = {NORMS: norms, MEANS: means}
    chunk.state_version += 1


def warm_kernels(kind: str | None = None, dtype: str | None = None) -> None:
    """Compile a member's kernels, or load their machine code from the cache."""
    one, id = np.ones(1), ChunkId("warm", 0, 0)
    logistic = loss_named("logistic")
    logistic.curvature(one, one, None, np.zeros(1))
    logistic.curvature_along(one, one, one, None)
    for chunk in (
        dense_chunk(id, np.zeros(1), np.ones((1, 1))),
        csr_chunk(id, np.zeros(1), [0, 1], [0], one, 1),
    ):
        begin(chunk, one, centred=False)
        block, w, r = ColumnBlock.of(chunk), np.zeros(1), np.ones(1)
        for h in (None, one):
            columns = block.weighted(no_columns(one, h), centred=True)
            penalty = Penalty(a1=0.5, a2=0.0)
            sweep_kernels.sweep(block.features, columns, penalty, w, r, 0.0)
        block.correlations(r, 1.0)
