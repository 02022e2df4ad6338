"""A step towards the best coefficients with the signs that they have, by conjugate gradients.

Sweeps find the columns of a solution and their signs soon, and its values slowly where columns are
much alike. With the signs given these solve linear equations, which are never formed here: a
product with them costs about two sweeps over the columns in the model. However early conjugate
gradients end, their step leads downhill; it is followed until a sign ends, so that the objective
never grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from elasticml.algorithms.primal_cocoa.column_blocks import Bent, Block

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

#: Bytes of the columns in the model beyond which no copy of them is made, and no step.
BYTES_MAX: Final = 2**26
#: Products with the equations at most, and the share of the gradient at which they end.
PRODUCTS_MAX: Final = 25
REST: Final = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class InModel:
    """Columns with coefficients, as rows of one matrix; uncentred."""

    #: (s, n), dense or sparse.
    rows: Any
    #: (s,)
    means: F64
    bent: Bent

    @staticmethod
    def of(there: Sequence[tuple[Block, I64]], means: F64, bent: Bent) -> InModel | None:
        """Copy columns of some chunks together; None where they are too many."""
        root = bent.root
        parts: list[Any] = []
        nbytes = 0
        for block, features in there:
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
        return InModel(
            rows=np.concatenate(parts) if is_dense else scipy.sparse.vstack(parts, format="csr"),
            means=means,
            bent=bent,
        )

    def image(self, step: F64) -> F64:
        """Return what a change of the coefficients changes."""
        return np.asarray(self.rows.T @ step) - float(self.means @ step) * self.bent.root

    def products(self, u: F64) -> F64:
        """Return products of the centred columns with ``u``."""
        return np.asarray(self.rows @ u) - self.means * float(self.bent.root @ u)

    def curvature(self, step: F64) -> F64:
        """Return ``X'HX step`` of the centred columns."""
        return self.products(self.bent.times(self.image(step)))


def sign_step(columns: InModel, w: F64, u: F64, a1: float, a2: float) -> tuple[F64, int]:
    """Return new coefficients, and the products with the columns that they took.

    Parameters
    ----------
    w : ndarray (s,)
        None of them 0.
    u : ndarray (n,)
        The slope.
    """
    gradient = a2 * w + a1 * np.sign(w) - columns.products(u)
    direction, done = np.zeros(w.size), 0
    rest, wanted = -gradient, REST * float(np.linalg.norm(gradient))
    along, square = rest.copy(), float(rest @ rest)
    while done < min(PRODUCTS_MAX, 2 * w.size) and square > wanted * wanted:
        bent = columns.curvature(along) + a2 * along
        done += 1
        curvature = float(along @ bent)
        if not curvature > 0.0:
            break  # Columns depend on each other, and rounding is what is left.
        length = square / curvature
        direction += length * along
        rest -= length * bent
        square, last = float(rest @ rest), square
        along = rest + square / last * along
    crossing = np.sign(w + direction) != np.sign(w)
    length = float((-w[crossing] / direction[crossing]).min()) if crossing.any() else 1.0
    new = w + length * direction
    # What has met zero is zero, and not what rounding leaves of it.
    new[np.sign(new) != np.sign(w)] = 0.0
    return new, done
