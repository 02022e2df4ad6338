"""Descent on inner products alone: sweeps, and between them steps to the optimum of a sign pattern.

Sweeps find the columns of a solution and their signs soon, and its values slowly where columns are
much alike. With the signs given these solve linear equations. A step goes towards that solution as
far as the signs hold, so that the objective never grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from elasticml.algorithms.columns import kernels

F64 = NDArray[np.float64]

#: Sweeps between two steps on all coefficients other than zero.
SWEEPS: Final = 30
#: Share of a column's square that is left of it next to others, below which it depends on them.
DEPENDENT: Final = 1e-11
#: Share of a gradient below which what it has along open directions is rounding.
LEVEL: Final = 1e-9
#: Rounding of a gradient, as a share of the sums that cancel in it.
ROUNDING: Final = 1e-12
#: Most coefficients for which equations are solved.
EQUATIONS_MAX: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalty:
    """``a1 |w|_1 + a2/2 |w|^2``, and whether coefficients must not be negative."""

    a1: float
    a2: float
    positive: bool = False

    def of(self, w: F64) -> float:
        """Return the penalty of some coefficients, (m,)."""
        return self.a1 * float(np.abs(w).sum()) + 0.5 * self.a2 * float(w @ w)


def descend(
    G: F64,
    linear: F64,
    yy: float,
    penalty: Penalty,
    gap: float,
    sweeps: int,
    w: F64,
    q: F64,
) -> tuple[int, float]:
    """Descend until the gap is small enough, or nothing moves, or for so many sweeps.

    Parameters
    ----------
    G, linear, yy, w, q
        As :func:`elasticml.algorithms.columns.kernels.descend` has them.

    Returns
    -------
    sweeps : int
    gap : float
    """
    done = 0
    while True:
        asked = min(SWEEPS, sweeps - done)
        used, reached = kernels.descend(
            G, linear, yy, penalty.a1, penalty.a2, penalty.positive, gap, asked, w, q
        )
        done += used
        if reached <= gap or used < asked or done >= sweeps:
            return done, reached
        _step(G, linear, penalty, w, q)


def _step(G: F64, linear: F64, penalty: Penalty, w: F64, q: F64) -> None:
    """Step towards the best coefficients with these signs, changing ``w`` and ``q`` in place."""
    support = np.flatnonzero(w)
    if not 0 < support.size <= EQUATIONS_MAX:
        return
    H = G[np.ix_(support, support)]
    H[np.diag_indices_from(H)] += penalty.a2
    own = w[support]
    # The gradient with the signs of now.
    gradient = penalty.a2 * own + penalty.a1 * np.sign(own) - q[support]
    size = np.abs(linear[support]) + np.abs(H) @ np.abs(own)
    direction = downhill(H, gradient, ROUNDING * size)
    slope, bend = float(gradient @ direction), float(direction @ (H @ direction))
    towards = direction * own < 0.0
    ends = np.divide(-own, direction, out=np.full(own.size, np.inf), where=towards)
    length = min(float(ends.min()), -slope / bend if bend > 0.0 else np.inf)
    change = length * slope + 0.5 * length**2 * bend
    if not (np.isfinite(length) and change < 0.0):
        return  # Rounding.
    new = own + length * direction
    # What has met zero is zero, and not what rounding leaves of it.
    new[ends <= length] = 0.0
    q -= G[:, support] @ (new - own)
    w[support] = new


def downhill(H: F64, gradient: F64, rounding: F64 | None = None) -> F64:
    """Return where a quadratic function falls: to its least value, or along where it is linear.

    Where columns depend on each other, directions are open in which it has no curvature. A gradient
    along these is followed alone; where it is rounding, which nothing but rounding's own curvature
    would end, the shortest step to a least value is taken. Lengths are those of columns of unit
    length. Neither depends on how rounding would tell columns apart, as equations do that are made
    solvable by something small on their diagonal.

    Parameters
    ----------
    H : ndarray (m, m)
        Symmetric, without negative curvature but for rounding.
    gradient : ndarray (m,)
    rounding : ndarray (m,), optional
        How far the gradient may be off; 0 by default.

    Source: Higham (2002), section 10.3, for the Cholesky factor with pivots.
    """
    lengths = np.sqrt(H.diagonal())
    lengths[lengths == 0.0] = 1.0
    g = gradient / lengths
    R, order, rank, _ = scipy.linalg.lapack.dpstrf(H / np.outer(lengths, lengths), tol=DEPENDENT)
    order = order - 1
    independent = R[:rank, :rank]
    step = np.zeros(g.size)
    step[order[:rank]] = -scipy.linalg.cho_solve((independent, False), g[order[:rank]])
    if rank < g.size:
        # Columns: a basis of the open directions.
        open_ = np.zeros((g.size, g.size - rank))
        open_[order[:rank]] = -scipy.linalg.solve_triangular(independent, R[:rank, rank:])
        open_[order[rank:]] = np.eye(g.size - rank)
        basis = np.linalg.qr(open_)[0]
        along = basis @ (basis.T @ g)
        level = 0.0 if rounding is None else float((rounding / lengths).max())
        if np.abs(along).max() > max(level, LEVEL * np.abs(g).max()):
            step = -along
        else:
            step -= basis @ (basis.T @ step)
    return step / lengths
