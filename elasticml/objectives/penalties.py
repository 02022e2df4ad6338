"""Penalties on the model; the driver adds them once, members never do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elasticml.arrays import F64


@dataclass(frozen=True, slots=True, kw_only=True)
class L2:
    """``strength / 2 * sum_j w_j^2`` over the first ``n_penalised`` coordinates.

    The remaining coordinates, if any, are intercepts, which are not penalised.
    """

    strength: float
    n_penalised: int
    #: One of the first coordinates that is not penalised either.
    unpenalised: int | None = None

    def coefficients(self, w: F64) -> F64:
        """Return the model in the units of the penalty; the coordinate ``unpenalised`` is 0."""
        return self._without(w)

    def _without(self, w: F64) -> F64:
        if self.unpenalised is not None:
            w = w.copy()
            w[self.unpenalised] = 0.0
        return w

    def _penalised(self, w: F64) -> F64:
        return self._without(w[: self.n_penalised])

    def value(self, w: F64) -> float:
        """Return the penalty of ``w``."""
        p = self._penalised(w)
        return 0.5 * self.strength * float(p @ p)

    def value_along(self, w: F64, direction: F64, steps: F64) -> F64:
        """Return the penalty of ``w + t * direction`` for each step t; new, shape (J,)."""
        p, d = self._penalised(w), self._penalised(direction)
        ww, wd, dd = float(p @ p), float(p @ d), float(d @ d)
        return 0.5 * self.strength * (ww + steps * (2.0 * wd + steps * dd))

    def slope_along(self, w: F64, direction: F64, steps: F64) -> F64:
        """Return the derivative of :meth:`value_along` with respect to t; new, shape (J,)."""
        p, d = self._penalised(w), self._penalised(direction)
        return self.strength * (float(p @ d) + steps * float(d @ d))

    def gradient(self, w: F64) -> F64:
        """Return ``strength * w``, zero at the intercept; new, shape of ``w``."""
        out = self.strength * w
        out[self.n_penalised :] = 0.0
        if self.unpenalised is not None:
            out[self.unpenalised] = 0.0
        return out

    def by_coefficients(self, gradient: F64) -> F64:
        """Return a gradient by the coefficients in which the penalty has this strength."""
        return gradient

    def add_curvature(self, hessian: F64) -> None:
        """Add the second derivatives, which do not depend on the model, to a matrix."""
        hessian[np.diag_indices_from(hessian)] += self.gradient(np.ones(len(hessian)))

    def curvature_along(self, direction: F64) -> float:
        """Return the second derivative of the penalty along ``direction``."""
        d = self._penalised(direction)
        return self.strength * float(d @ d)
