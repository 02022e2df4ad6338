"""The elastic net by working sets of columns, with a certified gap and gap-safe screening.

``1/2 |y - X w|^2 + a1 |w|_1 + a2/2 |w|^2``. Each turn takes the correlations of columns with the
residual, from them the duality gap and what columns cannot be in any solution, and descends on the
columns that are in the model or nearest to it. While these are few, that is done on their inner
products, which are kept along a path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.columns import kernels
from elasticml.algorithms.columns.matrix import ColumnMatrix
from elasticml.algorithms.columns.products import Penalty, descend
from elasticml.algorithms.columns.screening import nearest, screen

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

#: Columns of the first working set; later ones have twice the model's.
FIRST: Final = 50
#: Share of the gap to which a working set's own is brought before columns are looked at again.
INNER: Final = 0.1
#: Columns whose inner products are kept at most: 18 MiB.
PRODUCTS_MAX: Final = 1500
#: Sweeps over residuals between two looks at a large working set's gap.
SWEEPS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A model, and how good it is."""

    #: (d,)
    w: F64
    gap: float
    #: Sweeps over working sets.
    sweeps: int
    #: Columns that gap-safe spheres have ruled out.
    screened: int


@dataclass(slots=True)
class _Products:
    """Inner products of the columns that have been in working sets."""

    matrix: ColumnMatrix
    most: int
    features: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    G: F64 = field(default_factory=lambda: np.zeros((0, 0)))
    _places: I64 = field(init=False)

    def __post_init__(self) -> None:
        self._places = np.full(self.matrix.d, -1)

    def of(self, features: I64) -> F64 | None:
        """Return ``X.T @ X`` for some features; None where that would be too many."""
        new = features[self._places[features] < 0]
        if new.size:
            if self.features.size + new.size > self.most:
                if features.size > self.most:
                    return None
                # Those of former working sets make room.
                self._places[self.features] = -1
                self.features, self.G, new = self.features[:0], self.G[:0, :0], features
            self._add(new)
        places = self._places[features]
        if places.size == self.features.size and np.array_equal(places, np.arange(places.size)):
            return self.G
        return np.ascontiguousarray(self.G[np.ix_(places, places)])

    def _add(self, new: I64) -> None:
        known = self.features.size
        across = self.matrix.products(new, np.concatenate([self.features, new]))
        G = np.empty((known + new.size, known + new.size))
        G[:known, :known] = self.G
        G[known:] = across
        G[:known, known:] = across[:, :known].T
        self._places[new] = known + np.arange(new.size)
        self.features, self.G = np.concatenate([self.features, new]), G


class ElasticNetSolver:
    """Solves for one penalty after another, each from the last one's model.

    Parameters
    ----------
    matrix : ColumnMatrix
    w : ndarray (d,), optional
        To begin with.
    by_products : bool
        Take the inner products of all columns at once, and no more passes over rows.
    products_max : int
        Columns whose inner products are kept at most; larger working sets are swept over rows.
    """

    def __init__(
        self,
        matrix: ColumnMatrix,
        w: F64 | None = None,
        *,
        by_products: bool = False,
        products_max: int = PRODUCTS_MAX,
    ) -> None:
        self._matrix = matrix
        self.w = np.zeros(matrix.d) if w is None else np.array(w, np.float64)
        self._products = _Products(matrix, products_max)
        self._all = np.arange(matrix.d)
        self._whole = self._products.of(self._all) if by_products else None
        #: ``X.T @ residual`` of all columns; None where it must be computed.
        self._slopes: F64 | None = None
        self._residual = np.empty(0)
        self._begin()

    def _begin(self) -> None:
        """Compute what belongs to the present model."""
        matrix = self._matrix
        if self._whole is not None:
            self._slopes = matrix.linear - self._whole @ self.w
        else:
            self._residual = matrix.residual(self.w)
            self._slopes = None if self.w.any() else matrix.linear

    def solve(self, penalty: Penalty, gap: float, sweeps: int) -> Fitted:
        """Descend until the gap is at most so large, or for so many sweeps."""
        if penalty.positive and self.w.min(initial=0.0) < 0.0:
            # The gap is that of a model within the restriction.
            self.w = np.maximum(self.w, 0.0)
            self._begin()
        if self._whole is None or self._slopes is None:
            return self._by_working_sets(penalty, gap, sweeps)
        matrix = self._matrix
        done, reached = descend(
            self._whole, matrix.linear, matrix.yy, penalty, gap, sweeps, self.w, self._slopes
        )
        return Fitted(w=self.w.copy(), gap=max(reached, 0.0), sweeps=done, screened=0)

    def gap(self, penalty: Penalty) -> float:
        """Return the gap of the present model, from the rows."""
        residual = self._matrix.residual(self.w)
        slopes = self._matrix.correlations(residual)
        return max(self._gap(penalty, self._all, slopes, residual)[0], 0.0)

    def _by_working_sets(self, penalty: Penalty, wanted: float, sweeps: int) -> Fitted:
        features, done, size = self._all, 0, 0
        slopes = self._slopes
        if slopes is None:
            slopes = self._matrix.correlations(self._residual)
        while True:
            gap, scaled, share = self._gap(penalty, features, slopes, self._residual)
            if gap <= wanted or done >= sweeps:
                break
            alive, distance = self._screen(penalty, features, slopes, scaled, share)
            dropped = bool(np.any(self.w[features[~alive]]))
            if not np.all(alive):
                self._drop(features[~alive])
                features, distance = features[alive], distance[alive]
            support = int(np.count_nonzero(self.w))
            size = max(FIRST, 2 * support, size)
            working = nearest(features, distance, self.w[features], size)
            before = self.w[features]
            used = self._descend(penalty, working, max(INNER * gap, 0.5 * wanted), sweeps - done)
            done += max(used, 1)
            if np.array_equal(before, self.w[features]):
                if working.size == features.size and not dropped:
                    break  # What is left of the gap is rounding. One before a drop is stale.
                size *= 2  # The working set is solved, and the gap is elsewhere.
            slopes = self._matrix.correlations(self._residual, features)
        screened = self._matrix.d - features.size
        # The next penalty begins with all columns.
        self._slopes = None if screened else slopes
        return Fitted(w=self.w.copy(), gap=max(gap, 0.0), sweeps=done, screened=screened)

    def _gap(
        self, penalty: Penalty, features: I64, slopes: F64, r: F64
    ) -> tuple[float, float, float]:
        """Return the gap, that of the scaled residual, and the share of it that is feasible."""
        w = self.w[features]
        leaning = slopes - penalty.a2 * w
        steepest = float((leaning if penalty.positive else np.abs(leaning)).max(initial=0.0))
        over = np.maximum((slopes if penalty.positive else np.abs(slopes)) - penalty.a1, 0.0)
        gap, scaled = kernels.gap_at(
            float(r @ r), float(r @ self._matrix.y), float(w @ w), float(np.abs(w).sum()),
            steepest, float(over @ over), penalty.a1, penalty.a2,
        )  # fmt: skip
        return gap, scaled, penalty.a1 / steepest if steepest > penalty.a1 else 1.0

    def _screen(
        self, penalty: Penalty, features: I64, slopes: F64, gap: float, share: float
    ) -> tuple[NDArray[np.bool_], F64]:
        """Return which features may be in a solution, and how far each is from its constraint."""
        leaning = share * (slopes - penalty.a2 * self.w[features])
        if not penalty.positive:
            leaning = np.abs(leaning)
        lengths = np.sqrt(self._matrix.norms[features] + penalty.a2)
        return screen(leaning, penalty.a1, lengths, gap)

    def _drop(self, features: I64) -> None:
        """Take columns that are in no solution out of the model."""
        gone = features[self.w[features] != 0.0]
        if gone.size:
            self._residual += self._matrix.combination(gone, self.w[gone])
            self.w[gone] = 0.0

    def _descend(self, penalty: Penalty, working: I64, gap: float, sweeps: int) -> int:
        """Solve for the working set alone; return the sweeps that took."""
        matrix = self._matrix
        G = self._products.of(working)
        if G is None:
            times = min(SWEEPS, sweeps)
            matrix.sweep(
                working, self.w, self._residual, penalty.a1, penalty.a2, penalty.positive, times
            )
            return times
        w = self.w[working]
        before, q = w.copy(), matrix.correlations(self._residual, working)
        done, _ = descend(G, matrix.linear[working], matrix.yy, penalty, gap, sweeps, w, q)
        changed = w != before
        if changed.any():
            self.w[working] = w
            step = (w - before)[changed]
            self._residual -= matrix.combination(working[changed], step)
        return done
