"""Penalties on the model; the driver adds them once, members never do.

Kernels call the methods of a separable penalty, which are compiled for its function of one
coefficient: see :mod:`elasticml.objectives.penalties`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from elasticml.arrays import F64
from elasticml.compiled import make_callable, unchecked_kernel
from elasticml.objectives.penalties import Absolute

_NONE: Final = np.empty(0)


@unchecked_kernel
def _costs(terms: Any, w: F64, out: F64) -> None:
    for j in range(w.size):
        out[j] = terms.cost(w[j])


@unchecked_kernel
def _feasible_share(terms: Any, u: F64, error: F64) -> float:
    """Return the largest share up to 1 of ``u`` in the domain of the conjugate."""
    share = 1.0
    for j in range(u.size):
        for side in (-1.0, 1.0):
            end = u[j] + side * (error[j] if error.size else 0.0)
            near = terms.nearest(end)
            if near != end:
                share = min(share, near / end)
    return share


@unchecked_kernel
def _conjugates(terms: Any, u: F64, error: F64, share: float) -> float:
    """Return the sum of the largest conjugates of ``share u``, each up to its error."""
    total = 0.0
    for j in range(u.size):
        room = error[j] if error.size else 0.0
        # A share that is rounded up may lie beyond the end of the domain.
        low, high = terms.nearest(share * (u[j] - room)), terms.nearest(share * (u[j] + room))
        total += max(terms.conjugate(low), terms.conjugate(high))
    return total


class Penalty(NamedTuple):
    """``a1 sum_j p(w_j) + a2/2 |w|^2``: by default the elastic net."""

    a1: float
    a2: float
    #: The function p.
    terms: Any = Absolute()

    @property
    def is_l1(self) -> bool:
        """Whether p is the absolute value: screening and Gram kernels know it alone."""
        return isinstance(self.terms, Absolute)

    def best(self, t: float, h: float) -> float:
        """Return the coefficient that minimises ``h/2 w^2 - t w`` plus the penalty."""
        best: float = self.terms.minimiser(t, h + self.a2, self.a1)
        return best

    def times(self, factor: float, parts: float = 1.0) -> Penalty:
        """Return the penalty times a factor, divided into parts."""
        return Penalty(self.a1 * factor / parts, self.a2 * factor / parts, self.terms)

    def sizes(self, w: F64) -> F64:
        """Return ``p(w_j)`` of feasible coefficients; new, (m,)."""
        if self.is_l1:
            return np.abs(w)
        out = np.empty(w.size)
        _costs(self.terms, w, out)
        return out

    def of(self, w: F64) -> float:
        """Return the penalty of some coefficients, (m,)."""
        return self.a1 * float(self.sizes(w).sum()) + 0.5 * self.a2 * float(w @ w)

    def conjugate_at(self, u: F64, slack: F64 | None) -> tuple[float, float]:
        """Return the share up to 1 of ``u`` in the domain of ``a1 p``'s conjugate, and its sum.

        Parameters
        ----------
        u : ndarray (d,)
        slack : ndarray (d,), optional
            Error of u to either side; the share and the sum allow for it.
        """
        u, error = u / self.a1, _NONE if slack is None else slack / self.a1
        share = float(_feasible_share(self.terms, u, error))
        return share, self.a1 * float(_conjugates(self.terms, u, error, share))


make_callable(Absolute)
make_callable(Penalty)


def make_penalty(a1: float, a2: float, terms: Any) -> Penalty:
    """Return the penalty of any function, which kernels can call."""
    record: Any = type(terms)
    make_callable(record)
    return Penalty(a1, a2, terms)


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
