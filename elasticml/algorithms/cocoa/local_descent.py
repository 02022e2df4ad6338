"""A member's coordinate descent on its own columns, with the others' predictions fixed.

The local problem at residual r is ``-r.A dw + sigma'/2 dw.A'HA dw`` plus the coefficients' penalty,
with the loss's curvatures H. Divided by sigma' it is an elastic net with residual ``r / sigma'``
and penalties ``a / sigma'``, the form that coordinate descent solves.

Sweeps find the support of a solution and its signs soon, and its values slowly if columns are much
alike. With fixed signs the values solve linear equations, by conjugate gradients: the matrix is
never formed, and a product with it costs about two sweeps over the support. The step is a descent
direction wherever they stop. It is shortened where a sign would change, so that the objective never
grows.

Source: equation 12 of the general CoCoA framework (Smith et al., 2018), with features as data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy.sparse

from elasticml.algorithms.cocoa import sweep_kernels
from elasticml.algorithms.cocoa.column_blocks import ColumnBlock, DiagonalHessian
from elasticml.algorithms.cocoa.sweep_kernels import WeightedColumns
from elasticml.arrays import F64, I64
from elasticml.data.chunks.rows import matrix_of, rows_of_chunk
from elasticml.data.out_of_core.store import stream_chunks
from elasticml.objectives.penalty_kernels import Penalty

#: Maximum bytes of the support's columns for which they are copied and a step is made.
BYTES_MAX: Final = 2**26
#: Maximum products with the matrix, and the share of the gradient at which iterations stop.
PRODUCTS_MAX: Final = 25
REST: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Part:
    """One chunk's columns during the descent."""

    block: ColumnBlock
    #: (n_rows,) coefficients; changed in place.
    w: F64
    #: Weighted by curvatures.
    columns: WeightedColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportColumns:
    """The columns of the support, as rows of one matrix; uncentred."""

    #: (s, n), dense or sparse.
    rows: Any
    #: (s,)
    means: F64
    hessian: DiagonalHessian

    @staticmethod
    def of(support: Sequence[tuple[Part, I64]], hessian: DiagonalHessian) -> SupportColumns | None:
        """Copy columns of several chunks into one matrix; None if they are too many."""
        nbytes = 0
        for part, features in support:
            chunk, dense = part.block.chunk, 8 * features.size * hessian.root.size
            is_dense = chunk.layout.kind == "dense"
            nbytes += dense if is_dense else 12 * int(np.diff(chunk.indptr)[features].sum())
        if nbytes > BYTES_MAX:
            return None
        parts = [matrix_of(rows_of_chunk(part.block.chunk))[some] for part, some in support]
        return SupportColumns(
            rows=np.concatenate(parts) if is_dense else scipy.sparse.vstack(parts, format="csr"),
            means=np.concatenate([part.columns.means[some] for part, some in support]),
            hessian=hessian,
        )

    def image(self, step: F64) -> F64:
        """Return the change of the predictions by a change of the coefficients."""
        return np.asarray(self.rows.T @ step) - float(self.means @ step) * self.hessian.root

    def products(self, u: F64) -> F64:
        """Return the products of the centred columns with ``u``."""
        return np.asarray(self.rows @ u) - self.means * float(self.hessian.root @ u)

    def curvature(self, step: F64) -> F64:
        """Return ``X'HX step`` of the centred columns."""
        return self.products(self.hessian.times(self.image(step)))


def orthant_step(columns: SupportColumns, w: F64, u: F64, penalty: Penalty) -> tuple[F64, int]:
    """Return new coefficients, and the number of products with the columns.

    Parameters
    ----------
    w : ndarray (s,)
        All nonzero.
    u : ndarray (n,)
        The slope.
    """
    a1, a2 = penalty.a1, penalty.a2
    gradient = a2 * w + a1 * np.sign(w) - columns.products(u)
    direction, done = np.zeros(w.size), 0
    rest, target = -gradient, REST * float(np.linalg.norm(gradient))
    along, square = rest.copy(), float(rest @ rest)
    while done < min(PRODUCTS_MAX, 2 * w.size) and square > target * target:
        image = columns.curvature(along) + a2 * along
        done += 1
        curvature = float(along @ image)
        if not curvature > 0.0:
            break  # Columns are linearly dependent, and the rest is rounding.
        length = square / curvature
        direction += length * along
        rest -= length * image
        square, last = float(rest @ rest), square
        along = rest + square / last * along
    crossing = np.sign(w + direction) != np.sign(w)
    length = float((-w[crossing] / direction[crossing]).min()) if crossing.any() else 1.0
    new = w + length * direction
    # Coefficients that reach zero are set to exactly zero.
    new[np.sign(new) != np.sign(w)] = 0.0
    return new, done


#: Maximum sweeps over the support after each sweep over all columns; together they take no longer
#: than this many sweeps over all columns.
SWEEPS: Final = 10
WORK: Final = 2


@dataclass(slots=True, kw_only=True)
class LocalDescent:
    """Coefficients of a member's columns during the descent."""

    parts: Sequence[Part]
    #: (n,) the slope ``r / sigma' - H A dw``, without the shift, a multiple of ``h_root``.
    u: F64
    hessian: DiagonalHessian
    #: Divided by sigma'.
    penalty: Penalty
    shift: float = 0.0
    visited: int = 0

    def run(self, epochs: float, rng: np.random.Generator) -> None:
        """Run this number of epochs over all columns, each followed by sweeps over the support."""
        while epochs > 0.0:
            self._epoch(min(1.0, epochs), rng)
            epochs -= 1.0

    def _epoch(self, share: float, rng: np.random.Generator) -> None:
        order = [self.parts[k] for k in rng.permutation(len(self.parts))]
        chunks = stream_chunks([part.block.chunk for part in order])
        for part, _ in zip(order, chunks, strict=True):
            features = rng.permutation(part.block.features)
            if share < 1.0:
                features = features[: math.ceil(share * features.size)]
            self._sweep(part, features)
        self._refine(rng)

    def _refine(self, rng: np.random.Generator) -> None:
        """Sweep over the support alone, as long as that is little work."""
        parts = self._support()
        support = sum(features.size for _, features in parts)
        if not support:
            return
        columns = sum(part.block.features.size for part in self.parts)
        for _ in range(min(SWEEPS, WORK * columns // support)):
            for k in rng.permutation(len(parts)):
                self._sweep(*parts[k])
        if self.penalty.is_l1:
            self._step()

    def _support(self) -> list[tuple[Part, I64]]:
        each = [(part, np.flatnonzero(part.w)) for part in self.parts]
        return [(part, features) for part, features in each if features.size]

    def _step(self) -> None:
        """Step towards the minimum with the coefficients' present signs."""
        parts, hessian = self._support(), self.hessian
        columns = SupportColumns.of(parts, hessian) if parts else None
        if columns is None:
            return
        w = np.concatenate([part.w[some] for part, some in parts])
        u = self.u + self.shift * hessian.h_root
        new, products = orthant_step(columns, w, u, self.penalty)
        self.u = u - hessian.times(columns.image(new - w))
        self.shift = 0.0
        self.visited += 2 * products * w.size
        ends = np.cumsum([some.size for _, some in parts])[:-1]
        for (part, some), values in zip(parts, np.split(new, ends), strict=True):
            part.w[some] = values

    def _sweep(self, part: Part, features: I64) -> None:
        self.visited += features.size
        self.shift = sweep_kernels.sweep(
            features, part.columns, self.penalty, part.w, self.u, self.shift
        )
