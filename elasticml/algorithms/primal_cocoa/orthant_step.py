"""A step towards the best coefficients with their present signs, by conjugate gradients.

Sweeps find the support of a solution and its signs soon, and its values slowly if columns are much
alike. With fixed signs the values solve linear equations. The matrix is never formed; a product
with it costs about two sweeps over the support. The step is a descent direction wherever conjugate
gradients stop. It is shortened where a sign would change, so that the objective never grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from elasticml.algorithms.primal_cocoa.column_blocks import ColumnBlock, DiagonalHessian

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

#: Maximum bytes of the support's columns for which they are copied and a step is made.
BYTES_MAX: Final = 2**26
#: Maximum products with the matrix, and the share of the gradient at which iterations stop.
PRODUCTS_MAX: Final = 25
REST: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportColumns:
    """The columns of the support, as rows of one matrix; uncentred."""

    #: (s, n), dense or sparse.
    rows: Any
    #: (s,)
    means: F64
    hessian: DiagonalHessian

    @staticmethod
    def of(
        support: Sequence[tuple[ColumnBlock, I64]], means: F64, hessian: DiagonalHessian
    ) -> SupportColumns | None:
        """Copy columns of several chunks into one matrix; None if they are too many."""
        root = hessian.root
        parts: list[Any] = []
        nbytes = 0
        for block, features in support:
            chunk = block.chunk
            if chunk.layout.kind == "dense":
                nbytes += 8 * features.size * root.size
                if nbytes > BYTES_MAX:
                    return None
                parts.append(chunk.values[features])
                continue
            stored = np.ones(chunk.indices.size) if chunk.values.size == 0 else chunk.values
            whole = scipy.sparse.csr_array(
                (stored, chunk.indices, chunk.indptr), shape=(chunk.n_rows, root.size)
            )
            parts.append(whole[features])
            nbytes += 12 * parts[-1].nnz
            if nbytes > BYTES_MAX:
                return None
        is_dense = isinstance(parts[0], np.ndarray)
        return SupportColumns(
            rows=np.concatenate(parts) if is_dense else scipy.sparse.vstack(parts, format="csr"),
            means=means,
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


def orthant_step(columns: SupportColumns, w: F64, u: F64, a1: float, a2: float) -> tuple[F64, int]:
    """Return new coefficients, and the number of products with the columns.

    Parameters
    ----------
    w : ndarray (s,)
        All nonzero.
    u : ndarray (n,)
        The slope.
    """
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
