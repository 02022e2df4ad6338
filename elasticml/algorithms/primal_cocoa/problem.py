"""What the driver of primal CoCoA knows of its loss: slopes, curvatures, and what bounds it.

``f(z) + a1 |w|_1 + a2/2 |w|^2`` with the margins ``z = X w + b``, everything times the roots of the
examples' weights; the mean form that jobs know is this divided by the sum S of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.line_search import Along

F64 = NDArray[np.float64]
#: Best length of a step from which it is taken whole, at more than four fifths of the gain: what
#: members have set to zero is zero then.
WHOLE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Dual:
    """What a residual proves: no model's objective is below ``value``."""

    value: float
    #: By the residual itself, times ``share``, for the lasso that has the ridge's rows below X.
    scaled: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How far a step leads downhill."""

    along: Along
    #: The length to take.
    length: float


class Problem(Protocol):
    """A smooth loss and an elastic net's penalty, in units of the sum over examples."""

    @property
    def total(self) -> float:
        """S."""
        ...

    @property
    def a1(self) -> float:
        """The L1 penalty."""
        ...

    @property
    def a2(self) -> float:
        """The L2 penalty."""
        ...

    @property
    def is_positive(self) -> bool:
        """Whether coefficients must not be negative."""
        ...

    @property
    def smoothness(self) -> float:
        """Largest curvature of any example."""
        ...

    @property
    def scale(self) -> float:
        """Norm of margins that count as large, against which they are compared."""
        ...

    @property
    def classes(self) -> F64 | None:
        """(2,) the labels, ascending; None in regression."""
        ...

    @property
    def roots(self) -> dict[str, F64]:
        """What goes down of the weights."""
        ...

    def settled(self, image: F64) -> tuple[F64, float]:
        """Return margins (n,) with a free intercept at its best, and this."""
        ...

    def residual(self, z: F64) -> F64:
        """Return minus the slope of the loss (n,)."""
        ...

    def provable(self, z: F64) -> F64:
        """Return a residual that a certificate can be made of, by a share of it."""
        ...

    def curvature(self, z: F64) -> F64 | None:
        """Return the loss's curvatures (n,); None where all are one, wherever z is."""
        ...

    def primal(self, w: F64, z: F64) -> float:
        """Return the objective of a model and its margins."""
        ...

    def dual(self, w: F64, r: F64, slopes: F64, slack: F64 | None = None) -> Dual:
        """Return what a provable residual proves together with any model.

        Parameters
        ----------
        w : ndarray (d,)
        r : ndarray (n,)
        slopes : ndarray (d,)
            ``X.T @ r``, but for ``slack`` (d,), by which they may be off to either side.
        """
        ...

    def search(self, z: F64, dz: F64, penalty: Along, size: float) -> Step:
        """Look along a step of the margins.

        Parameters
        ----------
        z, dz : ndarray (n,)
        penalty : Along
            What the penalty adds, at least as high as it is.
        size : float
            The L1 norm of the coefficients, times ``a1``.
        """
        ...
