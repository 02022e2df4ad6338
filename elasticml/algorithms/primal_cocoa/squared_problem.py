"""The elastic net on the driver: its targets, its objective, and its lower bounds.

``1/2 |y - X w|^2 + a1 |w|_1 + a2/2 |w|^2`` over weighted, centred examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from elasticml.algorithms.cocoa.line_search import LineModel
from elasticml.algorithms.cocoa.trainer import Step
from elasticml.algorithms.linear.coordinate_descent_kernels import Penalty
from elasticml.algorithms.linear.duality import Dual, lower_bound_of_residual
from elasticml.algorithms.primal_cocoa.problem import WHOLE
from elasticml.arrays import F64

#: Relative changes of the objective that are rounding error.
NOISE: Final = 8.0 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class SquaredProblem:
    """Regression; see :class:`elasticml.algorithms.primal_cocoa.problem.Problem`."""

    #: (n,), weighted and centred.
    y: F64
    y_mean: float
    #: (n,) square roots of the weights; None if all are one.
    root: F64 | None
    #: S, the sum of the weights.
    total: float
    penalty: Penalty
    smoothness: float = 1.0
    classes: F64 | None = None

    @staticmethod
    def of(
        y: F64, root: F64 | None, *, l1: float, l2: float, centred: bool, positive: bool
    ) -> SquaredProblem:
        """Make the problem from raw targets (n,)."""
        y = y if root is None else y * root
        total = float(y.size if root is None else root @ root)
        mean = 0.0
        if centred:
            mean = float(y.sum() if root is None else root @ y) / total
            y = y - (mean if root is None else mean * root)
        return SquaredProblem(
            y=y,
            y_mean=mean,
            root=root,
            total=total,
            penalty=Penalty(a1=l1 * total, a2=l2 * total, positive=positive),
        )

    @property
    def scale(self) -> float:
        """The targets' norm."""
        return float(np.linalg.norm(self.y))

    @property
    def roots(self) -> dict[str, F64]:
        """The arrays of the weights in an exchange."""
        return {} if self.root is None else {"root": self.root}

    def with_intercept(self, image: F64) -> tuple[F64, float]:
        """Return the image: centring has already fitted the intercept."""
        return image, self.y_mean

    def residual(self, z: F64) -> F64:
        """Return the targets minus the predictions."""
        return self.y - z

    def dual_residual(self, z: F64) -> F64:
        """Return the residual: any residual gives a lower bound."""
        return self.y - z

    def curvature(self, z: F64) -> None:
        """Return None: all curvatures are one."""

    def primal(self, w: F64, z: F64) -> float:
        """Return the objective of a model and its predictions."""
        r = self.y - z
        return 0.5 * float(r @ r) + self.penalty.of(w)

    def search(self, z: F64, dz: F64, penalty: LineModel, size: float) -> Step:
        """Find the parabola's lowest point."""
        r = self.y - z
        along = LineModel(
            slope=float(r @ dz) + penalty.slope, curvature=float(dz @ dz) + penalty.curvature
        )
        # The gap falls with the step's length, the objective with its square: rounding of the
        # objective hides steps that still matter to the gap.
        noise = NOISE * (float(r @ r) + size)
        if max(abs(along.slope), along.curvature) <= noise:
            return Step(along=LineModel(slope=1.0, curvature=1.0), length=1.0)
        return Step(along=along, length=1.0 if along.best >= WHOLE else max(along.best, 0.0))

    def dual(self, w: F64, r: F64, slopes: F64, slack: F64 | None = None) -> Dual:
        """Return the lower bound that a residual and any model give."""
        return lower_bound_of_residual(self.penalty, w, r, self.y, slopes, slack=slack)
