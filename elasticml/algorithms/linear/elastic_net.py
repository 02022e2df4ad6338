"""The elastic net by coordinate descent on working sets of columns.

``1/2 |y - X w|^2 + a1 |w|_1 + a2/2 |w|^2``. The dual point is the residual. A small working set is
solved on its Gram matrix, which is kept along a path; a large one, and one of columns with fewer
entries than the matrix, by sweeps over the residual.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from elasticml.algorithms.linear.column_matrix import ColumnMatrix
from elasticml.algorithms.linear.coordinate_descent_kernels import GramProblem
from elasticml.algorithms.linear.duality import Dual, lower_bound_of_residual
from elasticml.algorithms.linear.fit import Fit
from elasticml.algorithms.linear.gram_descent import descend
from elasticml.algorithms.linear.working_sets import INNER, solve
from elasticml.arrays import F64, I64
from elasticml.objectives.penalty_kernels import Penalty

#: Maximum number of columns in the Gram matrix: 18 MiB. Larger working sets sweep over residuals.
PRODUCTS_MAX: Final = 1500
#: Sweeps over residuals between two evaluations of a large working set's gap.
SWEEPS: Final = 10
#: Sweeps over light columns after which their Gram matrix is used, with steps to the optimum of
#: a sign pattern: sweeps alone take thousands where columns depend on each other.
SWEPT_MAX: Final = 120


@dataclass(slots=True)
class _Products:
    """A cache of the Gram matrix of columns that have been in working sets."""

    matrix: ColumnMatrix
    features: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    G: F64 = field(default_factory=lambda: np.zeros((0, 0)))
    _places: I64 = field(init=False)

    def __post_init__(self) -> None:
        self._places = np.full(self.matrix.d, -1)

    def of(self, features: I64) -> F64 | None:
        """Return ``X.T @ X`` for some features; None if they are too many."""
        new = features[self._places[features] < 0]
        if new.size:
            if self.features.size + new.size > PRODUCTS_MAX:
                if features.size > PRODUCTS_MAX:
                    return None
                # Evict the columns of earlier working sets.
                self._places[self.features] = -1
                self.features, self.G, new = self.features[:0], self.G[:0, :0], features
            self._add(new)
        places = self._places[features]
        if places.size == self.features.size and np.array_equal(places, np.arange(places.size)):
            return self.G
        return np.ascontiguousarray(self.G[np.ix_(places, places)])

    def _add(self, new: I64) -> None:
        n_old = self.features.size
        across = self.matrix.products(new, np.concatenate([self.features, new]))
        G = np.empty((n_old + new.size, n_old + new.size))
        G[:n_old, :n_old] = self.G
        G[n_old:] = across
        G[:n_old, n_old:] = across[:, :n_old].T
        self._places[new] = n_old + np.arange(new.size)
        self.features, self.G = np.concatenate([self.features, new]), G


class ElasticNetSolver:
    """Solves for a sequence of penalties, each warm-started from the previous model.

    Parameters
    ----------
    matrix : ColumnMatrix
    w : ndarray (d,), optional
        Initial coefficients.
    by_products : bool
        Compute the Gram matrix of all columns at once; then no more passes over rows are needed.
    """

    def __init__(
        self,
        matrix: ColumnMatrix,
        w: F64 | None = None,
        *,
        by_products: bool = False,
    ) -> None:
        self._matrix = matrix
        self.w = np.zeros(matrix.d) if w is None else np.array(w, np.float64)
        self.squares, self.is_measurable = matrix.norms, True
        self.patience, self.takes_all = 1, False
        self._products = _Products(matrix)
        self._all, self._swept = np.arange(matrix.d), 0
        self._whole = self._products.of(self._all) if by_products else None
        #: ``X.T @ residual`` of all columns; None if it has to be computed.
        self._slopes: F64 | None = None
        self._residual = np.empty(0)
        self._begin()

    def _begin(self) -> None:
        """Compute the residual or the slopes of the current model."""
        matrix = self._matrix
        if self._whole is not None:
            self._slopes = matrix.linear - self._whole @ self.w
        else:
            self._residual = matrix.residual(self.w)
            self._slopes = None if self.w.any() else matrix.linear

    def solve(self, penalty: Penalty, gap: float, sweeps: int) -> Fit:
        """Run at most ``sweeps`` sweeps, until the gap is at most ``gap``."""
        if penalty.is_l1 and penalty.terms.positive and self.w.min(initial=0.0) < 0.0:
            # The gap is only defined for a feasible model.
            self.w = np.maximum(self.w, 0.0)
            self._begin()
        if self._whole is None or self._slopes is None:
            self.is_measurable, self._swept = True, 0
            return solve(self, penalty, gap, sweeps)
        matrix = self._matrix
        products = GramProblem(self._whole, matrix.linear, matrix.yy)
        done, reached = descend(products, penalty, gap, sweeps, self.w, self._slopes)
        return self.fit(max(reached, 0.0), done, converged=reached <= gap)

    def gap(self, penalty: Penalty) -> float:
        """Return the gap of the current model, recomputed from the data."""
        residual = self._matrix.residual(self.w)
        slopes = self._matrix.correlations(residual)
        value, dual = self._bound(penalty, self._all, slopes, residual)
        return max(value - dual.value, 0.0)

    def fit(self, gap: float, steps: int, *, converged: bool) -> Fit:
        """Return the model with its certificate."""
        return Fit(w=self.w.copy(), gap=gap, steps=steps, converged=converged)

    def bound(self, penalty: Penalty, features: I64) -> tuple[float, Dual]:
        """Return the objective, and the bound from the residual."""
        slopes, is_whole = self._slopes, features.size == self._matrix.d
        if slopes is None or not is_whole:
            slopes = self._matrix.correlations(self._residual, features)
            self._slopes = slopes if is_whole else None
        return self._bound(penalty, features, slopes, self._residual)

    def _bound(self, penalty: Penalty, features: I64, slopes: F64, r: F64) -> tuple[float, Dual]:
        w = self.w[features]
        dual = lower_bound_of_residual(penalty, w, r, self._matrix.y, slopes)
        return 0.5 * float(r @ r) + penalty.of(w), dual

    def drop(self, features: I64) -> bool:
        """Remove screened columns from the model; return whether any had a coefficient."""
        gone = features[self.w[features] != 0.0]
        if gone.size:
            self._residual += self._matrix.combination(gone, self.w[gone])
            self.w[gone], self._slopes = 0.0, None
        return bool(gone.size)

    def descend(self, penalty: Penalty, working: I64, gap: float, goal: float, steps: int) -> int:
        """Solve the problem of the working set; return the number of sweeps."""
        matrix, before = self._matrix, self.w[working]
        is_light = matrix.is_sparse and matrix.entries(working) < working.size**2
        # The kernels on Gram matrices are those of L1 alone.
        is_swept = not penalty.is_l1 or (is_light and self._swept < SWEPT_MAX)
        G = None if is_swept else self._products.of(working)
        if G is None:
            done = min(SWEEPS, steps)
            self._swept += done
            matrix.sweep(working, self.w, self._residual, penalty, done)
            changed = self.w[working] != before
        else:
            w, q = before.copy(), matrix.correlations(self._residual, working)
            products = GramProblem(G, matrix.linear[working], matrix.yy)
            done, _ = descend(products, penalty, max(INNER * gap, 0.5 * goal), steps, w, q)
            changed = w != before
            if changed.any():
                self.w[working] = w
                step = (w - before)[changed]
                self._residual -= matrix.combination(working[changed], step)
        self.is_measurable = bool(changed.any())
        if self.is_measurable:
            self._slopes = None
        return max(done, 1)
