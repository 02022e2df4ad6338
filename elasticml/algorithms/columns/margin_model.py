"""A sparse linear model under a loss of margins, and proximal Newton steps on some of its columns.

``sum_i s_i loss(z_i, y_i) + a1 |w|_1 + a2/2 |w|^2`` with ``z = X w + b``, b free or absent. With
the loss replaced by its parabola at the present margins this is an elastic net over rows of weight
``s_i loss''``, whose targets are ``z - loss'/loss''``; a step goes towards its solution as far as
the objective itself goes down.

Source: Friedman, Hastie and Tibshirani (2010), section 3; Yuan, Ho and Lin (2012), algorithm 2, for
the steps' lengths.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.columns.elastic_net import PRODUCTS_MAX, ElasticNetSolver
from elasticml.algorithms.columns.matrix import ColumnMatrix
from elasticml.algorithms.columns.parabola import FINE_SHARE, SHARE, best_on_parabola
from elasticml.algorithms.columns.products import Penalty
from elasticml.objectives.conjugates import DualLoss

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

#: Least curvature of a row as a share of its slope: rows far on the wrong side have next to none,
#: and would ask for steps beyond all bounds.
CURVED: Final = 1e-6
#: Share of the decrease that slopes promise with which a step is taken.
TAKEN: Final = 0.01
#: Halvings of a step at most.
HALVINGS_MAX: Final = 40
#: Sweeps of one parabola's elastic net at most.
SWEEPS_MAX: Final = 1000
#: Columns up to which all inner products are taken at once.
PRODUCTS: Final = 100
#: Share of the value below which a promised decrease is rounding.
HIDDEN: Final = 8.0 * float(np.finfo(np.float64).eps)
#: Steps of the intercept alone at most, and the share of slopes at which they end.
INTERCEPT_STEPS: Final = 50
LEVEL: Final = 1e-14


class MarginModel:
    """A model, its margins, and what the loss is there.

    Parameters
    ----------
    columns : ColumnMatrix
        Neither weighted nor centred.
    targets : ndarray (n,)
        -1 and +1.
    weights : ndarray (n,), optional
        None where all are one.
    loss : DualLoss
        Of margins, with a slope.
    intercept : bool
        There is a free one.
    """

    def __init__(
        self,
        columns: ColumnMatrix,
        targets: F64,
        weights: F64 | None,
        loss: DualLoss,
        *,
        intercept: bool,
    ) -> None:
        self._columns, self.targets, self.weights = columns, targets, weights
        self._loss, self.has_intercept = loss, intercept
        self.w, self.b = np.zeros(columns.d), 0.0
        #: (n,) its margins.
        self.z = np.zeros(columns.n)
        #: (n,) ``s_i loss'`` at the margins, and their sum of losses.
        self.slopes, self.value = np.empty(columns.n), 0.0
        #: Whether values told how good the last step was.
        self.is_told = True

    def begin(self, w: F64, b: float) -> None:
        """Take over a model."""
        self.w, self.b = np.array(w, np.float64), float(b)
        support = np.flatnonzero(self.w)
        self.z = self._columns.combination(support, self.w[support]) + self.b

    def value_of_zero(self) -> float:
        """Return the losses of no model and no intercept."""
        return self._at(np.zeros(self.z.size), np.empty(self.z.size))

    def look(self) -> None:
        """Compute losses and slopes at the present margins."""
        self.value = self._at(self.z, self.slopes)

    def _at(self, z: F64, slopes: F64) -> float:
        return self._loss.loss.value_and_slope(z, self.targets, self.weights, slopes)

    def curvature(self) -> F64:
        """Return ``s_i loss''`` (n,), or a little where that is next to nothing."""
        found = np.empty(self.z.size)
        self._loss.loss.curvature(self.z, self.targets, self.weights, found)
        return np.maximum(found, CURVED * np.abs(self.slopes))

    def settle_intercept(self) -> None:
        """Set a free intercept to its best value by Newton steps; ``look`` is done after."""
        self.look()
        if not self.has_intercept:
            return
        other = np.empty(self.z.size)
        for _ in range(INTERCEPT_STEPS):
            slope, curvature = float(self.slopes.sum()), float(self.curvature().sum())
            if abs(slope) <= LEVEL * float(np.abs(self.slopes).sum()) or curvature <= 0.0:
                return
            step = -slope / curvature
            for _ in range(HALVINGS_MAX):
                value = self._at(self.z + step, other)
                if abs(float(other.sum())) < abs(slope):
                    break
                step *= 0.5
            else:
                return  # Rounding.
            self.b, self.value = self.b + step, value
            self.z += step
            self.slopes, other = other, self.slopes

    def is_wide(self, working: I64) -> bool:
        """Whether steps on so many columns sweep over these as they are stored."""
        return self._columns.is_sparse and working.size > PRODUCTS

    def newton_step(self, penalty: Penalty, working: I64, gap: float, share: float = SHARE) -> bool:
        """Step on these columns and the intercept; False where values do not tell how good it was.

        Parameters
        ----------
        working : ndarray (m,)
            All columns of the model are among them.
        gap : float
            To which the parabola's elastic net is solved.
        share : float
            Of how far slopes lean, that is left where columns are swept over as they are stored.
        """
        curvature = self.curvature()
        shift = np.divide(self.slopes, curvature, out=np.zeros(self.z.size), where=curvature > 0.0)
        total = float(curvature.sum())
        if total <= 0.0:
            curvature, shift = np.full(self.z.size, CURVED), np.zeros(self.z.size)
        old = self.w[working]
        if self.is_wide(working):
            found = best_on_parabola(
                self._columns.stored, working, old, self.slopes, curvature, penalty,
                intercept=self.has_intercept, share=share if self.is_told else FINE_SHARE,
            )  # fmt: skip
            if found is not None:
                self.is_told = self._go(penalty, working, found[0] - old, found[1])
                return self.is_told
        matrix = ColumnMatrix(
            self._columns.take(working), self.z - shift, curvature, centred=self.has_intercept
        )
        solver = ElasticNetSolver(
            matrix,
            old,
            by_products=working.size <= PRODUCTS and not matrix.is_sparse,
            # Products of sparse columns cost more than the sweeps of one parabola.
            products_max=PRODUCTS if matrix.is_sparse else PRODUCTS_MAX,
        )
        new = solver.solve(penalty, gap, SWEEPS_MAX).w
        b = matrix.intercept(new) if self.has_intercept else 0.0
        return self._go(penalty, working, new - old, b - self.b)

    def _go(self, penalty: Penalty, working: I64, step: F64, rise: float) -> bool:
        """Go along a step as far as it is downhill enough."""
        moved = np.flatnonzero(step)
        along = self._columns.combination(working[moved], step[moved]) + rise
        old = self.w[working]
        before = self.value + penalty.of(old)
        promised = -float(self.slopes @ along) + penalty.of(old) - penalty.of(old + step)
        # So near the best objective its values are rounding: there whole steps are good ones.
        is_told = promised > HIDDEN * abs(before)
        if not promised >= -HIDDEN * abs(before):
            return False  # Uphill, or not finite: rounding has made a bad step.
        slopes, share = np.empty(self.z.size), 1.0
        for _ in range(HALVINGS_MAX):
            new = old + share * step
            value = self._at(self.z + share * along, slopes)
            is_downhill = value + penalty.of(new) <= before - TAKEN * share * promised
            if is_downhill or (not is_told and np.isfinite(value)):
                self.w[working], self.b = new, self.b + share * rise
                self.z += share * along
                self.value, self.slopes = value, slopes
                return is_told
            share *= 0.5
        return False
