"""The elastic net by working sets of columns, with a certified gap and gap-safe screening.

``1/2 |y - X w|^2 + a1 |w|_1 + a2/2 |w|^2``. Each iteration computes the correlations of the columns
with the residual, and from them the duality gap and the columns that are zero in every solution. It
then descends on a working set: the columns in the model or closest to entering it. For a small
working set this uses the Gram matrix, which is kept along a path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from elasticml.algorithms.linear.column_matrix import ColumnMatrix
from elasticml.algorithms.linear.coordinate_descent_kernels import GramProblem, Penalty
from elasticml.algorithms.linear.gram_descent import descend
from elasticml.algorithms.linear.screening import Bound, SparseFit, bound_at, nearest, screen
from elasticml.arrays import F64, I64

#: Size of the first working set; later ones have twice as many columns as the model.
FIRST: Final = 50
#: Accuracy of a working set's problem, as a share of the gap over all columns.
INNER: Final = 0.1
#: Maximum number of columns in the Gram matrix: 18 MiB. Larger working sets sweep over residuals.
PRODUCTS_MAX: Final = 1500
#: Sweeps over residuals between two evaluations of a large working set's gap.
SWEEPS: Final = 10


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
        self._products = _Products(matrix)
        self._all = np.arange(matrix.d)
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

    def solve(self, penalty: Penalty, gap: float, sweeps: int) -> SparseFit:
        """Run at most ``sweeps`` sweeps, until the gap is at most ``gap``."""
        if penalty.positive and self.w.min(initial=0.0) < 0.0:
            # The gap is only defined for a feasible model.
            self.w = np.maximum(self.w, 0.0)
            self._begin()
        if self._whole is None or self._slopes is None:
            return self._by_working_sets(penalty, gap, sweeps)
        matrix = self._matrix
        products = GramProblem(self._whole, matrix.linear, matrix.yy)
        done, reached = descend(products, penalty, gap, sweeps, self.w, self._slopes)
        return SparseFit(w=self.w.copy(), gap=max(reached, 0.0), steps=done)

    def gap(self, penalty: Penalty) -> float:
        """Return the gap of the current model, recomputed from the data."""
        residual = self._matrix.residual(self.w)
        slopes = self._matrix.correlations(residual)
        return max(self._bound(penalty, self._all, slopes, residual).gap, 0.0)

    def _by_working_sets(self, penalty: Penalty, gap_target: float, sweeps: int) -> SparseFit:
        features, done, size = self._all, 0, 0
        slopes = self._slopes
        if slopes is None:
            slopes = self._matrix.correlations(self._residual)
        while True:
            bound = self._bound(penalty, features, slopes, self._residual)
            if bound.gap <= gap_target or done >= sweeps:
                break
            lengths = np.sqrt(self._matrix.norms[features] + penalty.a2)
            alive, distance = screen(bound.leaning, penalty.a1, lengths, bound.scaled_gap)
            dropped = bool(np.any(self.w[features[~alive]]))
            if not np.all(alive):
                self._drop(features[~alive])
                features, distance = features[alive], distance[alive]
            support = int(np.count_nonzero(self.w))
            size = max(FIRST, 2 * support, size)
            working = nearest(features, distance, self.w[features], size)
            before = self.w[features]
            target = max(INNER * bound.gap, 0.5 * gap_target)
            used = self._descend(penalty, working, target, sweeps - done)
            done += max(used, 1)
            if np.array_equal(before, self.w[features]):
                if working.size == features.size and not dropped:
                    break  # The remaining gap is rounding, unless it was computed before a drop.
                size *= 2  # The working set is solved; the gap is due to other columns.
            slopes = self._matrix.correlations(self._residual, features)
        # The next penalty starts with all columns.
        self._slopes = slopes if features.size == self._matrix.d else None
        return SparseFit(w=self.w.copy(), gap=max(bound.gap, 0.0), steps=done)

    def _bound(self, penalty: Penalty, features: I64, slopes: F64, r: F64) -> Bound:
        """Return the bound from the residual; rows ``sqrt(a2) I`` make the problem a lasso."""
        rr, ry = float(r @ r), float(r @ self._matrix.y)

        def minus(share: float) -> float:
            return share * ry - 0.5 * share * share * rr

        return bound_at(0.5 * rr, penalty, self.w[features], slopes, minus)

    def _drop(self, features: I64) -> None:
        """Remove screened columns from the model."""
        gone = features[self.w[features] != 0.0]
        if gone.size:
            self._residual += self._matrix.combination(gone, self.w[gone])
            self.w[gone] = 0.0

    def _descend(self, penalty: Penalty, working: I64, gap: float, sweeps: int) -> int:
        """Solve the problem of the working set; return the number of sweeps."""
        matrix = self._matrix
        G = self._products.of(working)
        if G is None:
            times = min(SWEEPS, sweeps)
            matrix.sweep(working, self.w, self._residual, penalty, times)
            return times
        w = self.w[working]
        before, q = w.copy(), matrix.correlations(self._residual, working)
        products = GramProblem(G, matrix.linear[working], matrix.yy)
        done, _ = descend(products, penalty, gap, sweeps, w, q)
        changed = w != before
        if changed.any():
            self.w[working] = w
            step = (w - before)[changed]
            self._residual -= matrix.combination(working[changed], step)
        return done
