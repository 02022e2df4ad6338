"""The statistics by which the loss of absent examples is bounded: sums over bins of rows.

Rows are sorted into bins by their deficit ``1 - z_i`` (hinge losses), or by ``-|z_i|`` (logistic),
at the model v0 at which the statistics are taken. All statistics are sums over rows: those of
chunks add up to a member's, and the reduce tree adds those of all members.

Letters: ``s_i`` weight, ``x_i`` row with the label folded in (classification), ``z_i`` its margin
at v0, ``a_i`` the deficit for the hinge; for smooth losses the derivative by the margin.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.errors import ConfigError

F64 = NDArray[np.float64]
#: "matrix": second moments of every bin. "diagonal": an upper bound of them. "scalar": one number.
Form = Literal["matrix", "diagonal", "scalar"]

#: Losses for which there is a bound.
LOSSES: Final = ("hinge", "squared_hinge", "logistic", "squared")
#: Maximum doubles of the statistics, if the width allows it.
BUDGET: Final = 1_000_000

#: Array of sums per bin, with these columns.
MOMENTS: Final = "bound_moments"
#: Sums of rows, see ``Plan.n_vectors``, in sent coordinates.
VECTORS: Final = "bound_vectors"
#: Second moments: packed lower triangles, or diagonals.
PRODUCTS: Final = "bound_products"

#: ``sum s_i``.
WEIGHT: Final = 0
#: Hinge: ``sum s_i a_i``; smooth losses: the sum of the losses.
FIRST: Final = 1
#: ``sum s_i a_i^2``.
SECOND: Final = 2
#: ``sum s_i |x_i|^2``, the trace of the second moments.
TRACE: Final = 3
#: Upper bound of the largest eigenvalue of ``sum s_i x_i x_i^T``; the trace if it is not needed.
SPECTRAL: Final = 4
#: ``sum s_i r_i^2`` where ``r_i |w|`` bounds the terms of ``x_i.w`` in any order of summation.
REACH: Final = 5
#: Number of rows.
ROWS: Final = 6
#: Number of chunks, in the first bin's row.
CHUNKS: Final = 7
#: Sum over chunks of their number of rows to the power :data:`SIZE_POWER`, in the first bin's row:
#: its root bounds the largest chunk closely from above.
SIZES: Final = 8
N_MOMENTS: Final = 9
SIZE_POWER: Final = 8

#: Up to this number of doubles, statistics are summed chunk by chunk, which rounds less.
_STAGED_MAX: Final = 2**18

#: Positive edges, finest first.
_HINGE_SIDES: Final = (
    (0.001, 0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.35, 0.6, 1.0, 2.0),
    (0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.35, 0.6, 1.0),
    (0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 1.0),
    (0.003, 0.02, 0.1, 0.3, 1.0),
    (0.01, 0.1, 0.5),
)
_SQUARED_HINGE_EDGES: Final = (-2.0, -1.0, -0.5, -0.25, -0.1, -0.03, 0.0)
_LOGISTIC_EDGES: Final = (-8.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0)
#: With fewer edges than this, a coarser second moment is the better choice.
_MATRIX_EDGES_MIN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The statistics to keep; the same on every member and on the driver."""

    loss: str
    #: Length of a sent model: the columns, plus one with an intercept or shifted columns.
    n_sent: int
    form: Form
    #: Bin b holds the keys in ``[edges[b - 1], edges[b])``; the outer two are unbounded.
    edges: tuple[float, ...]

    @property
    def n_bins(self) -> int:
        """Number of bins, one more than edges."""
        return len(self.edges) + 1

    @property
    def n_vectors(self) -> int:
        """Number of vectors.

        Hinge: ``sum s_i x_i`` of every bin, then ``sum s_i a_i x_i`` of every bin; in the scalar
        form only ``sum s_i x_i`` over the rows of positive deficit. Smooth losses: the gradient.
        """
        return 2 * self.n_bins if self.loss == "hinge" and self.form != "scalar" else 1

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the arrays, by name."""
        shapes: dict[str, tuple[int, ...]] = {
            MOMENTS: (self.n_bins, N_MOMENTS),
            VECTORS: (self.n_vectors, self.n_sent),
        }
        if self.form == "matrix":
            shapes[PRODUCTS] = (self.n_bins, self.n_sent * (self.n_sent + 1) // 2)
        elif self.form == "diagonal":
            shapes[PRODUCTS] = (self.n_bins, self.n_sent)
        return shapes

    @property
    def size(self) -> int:
        """Doubles in all arrays."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def is_staged(self) -> bool:
        """Whether each chunk's statistics are summed separately before they are added."""
        return self.size <= _STAGED_MAX

    def additions(self, moments: F64) -> float:
        """Bound the number of additions in the sums of these moments."""
        rows, chunks, sizes = (float(moments[:, c].sum()) for c in (ROWS, CHUNKS, SIZES))
        if self.is_staged:
            rows = min(rows, sizes ** (1.0 / SIZE_POWER) + 1.0)
        return rows + chunks + 4.0 * self.n_sent + 20.0

    def zeros(self) -> dict[str, F64]:
        """Return zeroed sums."""
        return {name: np.zeros(shape) for name, shape in self.shapes.items()}

    def bounds(self) -> tuple[F64, F64]:
        """Return the lower and upper edges of the bins, (n_bins,) each, with infinities."""
        edges = np.array(self.edges)
        return np.append(-np.inf, edges), np.append(edges, np.inf)


def plan_statistics(loss: str, n_sent: int, budget: int = BUDGET) -> Plan:
    """Choose the tightest statistics that fit a budget.

    Parameters
    ----------
    loss : str
        One of :data:`LOSSES`.
    n_sent : int
        Length of a sent model, at least 1.
    budget : int
        Doubles. If even the smallest statistics, one vector and a few numbers, exceed it, they are
        chosen all the same.

    Raises
    ------
    ConfigError
        When there is no bound for the loss.
    """
    if loss not in LOSSES:
        raise ConfigError(
            f"algorithm.loss is {loss!r}, whose absent examples cannot be bounded; wanted one of "
            f"{', '.join(LOSSES)}, or absent: reload",
            key="algorithm.loss",
        )
    forms: tuple[Form, ...] = ("matrix", "diagonal", "scalar")
    plans = [
        Plan(loss=loss, n_sent=n_sent, form=form, edges=edges)
        for form, edges in itertools.product(forms, _edges(loss))
        if form != "matrix" or loss != "hinge" or len(edges) >= _MATRIX_EDGES_MIN
    ]
    return next((plan for plan in plans if plan.size <= budget), plans[-1])


def _edges(loss: str) -> list[tuple[float, ...]]:
    """Return the choices of edges for a loss, finest first."""
    if loss == "squared":
        return [()]
    if loss == "squared_hinge":
        return [_SQUARED_HINGE_EDGES, (-1.0, -0.25, 0.0), (0.0,)]
    if loss == "logistic":
        return [_LOGISTIC_EDGES, (-5.0, -2.0), ()]
    return [(*(-e for e in reversed(side)), 0.0, *side) for side in _HINGE_SIDES]
