"""The driver's view of a primal CoCoA problem: slopes, curvatures, objective and lower bounds.

``f(z) + a1 |w|_1 + a2/2 |w|^2`` with the margins ``z = X w + b``, all times the square roots of the
examples' weights. The mean form of jobs is this divided by the sum S of the weights.
"""

from __future__ import annotations

from typing import Protocol

from elasticml.algorithms.cocoa.line_search import LineModel
from elasticml.algorithms.cocoa.trainer import Step
from elasticml.algorithms.linear.coordinate_descent_kernels import Penalty
from elasticml.algorithms.linear.duality import Dual
from elasticml.arrays import F64

#: Best step length from which the full step is taken, with more than four fifths of the gain: the
#: members' zeros then stay zeros.
WHOLE = 0.7


class Problem(Protocol):
    """A smooth loss and an elastic-net penalty, in units of the sum over examples."""

    @property
    def total(self) -> float:
        """S, the sum of the weights."""
        ...

    @property
    def penalty(self) -> Penalty:
        """The elastic net."""
        ...

    @property
    def smoothness(self) -> float:
        """Largest curvature of the loss over all examples."""
        ...

    @property
    def scale(self) -> float:
        """Norm of typical margins, against which differences are compared."""
        ...

    @property
    def classes(self) -> F64 | None:
        """(2,) the labels, ascending; None in regression."""
        ...

    @property
    def roots(self) -> dict[str, F64]:
        """The arrays of the weights in an exchange."""
        ...

    def with_intercept(self, image: F64) -> tuple[F64, float]:
        """Return margins (n,) with the best free intercept, and the intercept."""
        ...

    def residual(self, z: F64) -> F64:
        """Return minus the slopes of the loss (n,)."""
        ...

    def dual_residual(self, z: F64) -> F64:
        """Return a residual that is dual feasible after scaling."""
        ...

    def curvature(self, z: F64) -> F64 | None:
        """Return the loss's curvatures (n,); None if all are one at every z."""
        ...

    def primal(self, w: F64, z: F64) -> float:
        """Return the objective of a model and its margins."""
        ...

    def dual(self, w: F64, r: F64, slopes: F64, slack: F64 | None = None) -> Dual:
        """Return the lower bound that such a residual and any model give.

        Parameters
        ----------
        w : ndarray (d,)
        r : ndarray (n,)
        slopes : ndarray (d,)
            ``X.T @ r`` up to an error of ``slack`` (d,) to either side.
        """
        ...

    def search(self, z: F64, dz: F64, penalty: LineModel, size: float) -> Step:
        """Search along a step of the margins.

        Parameters
        ----------
        z, dz : ndarray (n,)
        penalty : Along
            The penalty's decrease along the step, bounded from below.
        size : float
            The L1 norm of the coefficients, times ``a1``.
        """
        ...
