"""Coordinate descent on a Gram matrix, alternating with steps to the optimum of a sign pattern.

Sweeps identify the support and the signs of a solution quickly, but its values only slowly if
columns are highly correlated. For fixed signs the values solve linear equations. A step moves
towards that solution as far as the signs are preserved, so that the objective never increases.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from elasticml.algorithms.linear import coordinate_descent_kernels
from elasticml.algorithms.linear.coordinate_descent_kernels import GramProblem
from elasticml.arrays import F64
from elasticml.objectives.penalty_kernels import Penalty

#: Sweeps between two steps on all non-zero coefficients.
SWEEPS: Final = 30
#: A column is linearly dependent on others if less than this share of its squared norm remains.
DEPENDENT: Final = 1e-11
#: If more remains of every column, they are independent, in whatever order they are taken.
INDEPENDENT: Final = 1e-6
#: A gradient component along flat directions below this share of the gradient is rounding.
LEVEL: Final = 1e-9
#: Rounding error of a gradient, as a share of the terms that cancel in it.
ROUNDING: Final = 1e-12
#: Maximum number of coefficients for which equations are solved.
EQUATIONS_MAX: Final = 500


def descend(
    gram: GramProblem, penalty: Penalty, gap: float, sweeps: int, w: F64, q: F64
) -> tuple[int, float]:
    """Descend until the gap is small enough, nothing changes, or ``sweeps`` sweeps are done.

    Parameters
    ----------
    gram, penalty, w, q
        As in :func:`elasticml.algorithms.linear.coordinate_descent_kernels.descend`.

    Returns
    -------
    sweeps : int
    gap : float
    """
    done = 0
    while True:
        budget = min(max(SWEEPS, w.size), sweeps - done)
        used, reached = coordinate_descent_kernels.descend(gram, penalty, gap, budget, w, q)
        done += used
        if reached <= gap or used < budget or done >= sweeps:
            return done, reached
        # Each step but the last sets a coefficient to zero, so they end.
        while _step(gram.G, gram.linear, penalty, w, q):
            if coordinate_descent_kernels.gap_of_products(gram, penalty, w, q) <= gap:
                break


def _step(G: F64, linear: F64, penalty: Penalty, w: F64, q: F64) -> bool:
    """Step towards the best coefficients with these signs; updates ``w`` and ``q`` in place.

    Returns whether a coefficient became zero before they were reached.
    """
    support = np.flatnonzero(w)
    if not 0 < support.size <= EQUATIONS_MAX:
        return False
    H = G[np.ix_(support, support)]
    H[np.diag_indices_from(H)] += penalty.a2
    own = w[support]
    # The gradient for the current signs.
    gradient = penalty.a2 * own + penalty.a1 * np.sign(own) - q[support]
    direction = _to_minimum(H, gradient)
    if direction is None:
        size = np.abs(linear[support]) + np.abs(H) @ np.abs(own)
        direction = descent_direction(H, gradient, ROUNDING * size)
    slope, bend = float(gradient @ direction), float(direction @ (H @ direction))
    towards = direction * own < 0.0
    ends = np.divide(-own, direction, out=np.full(own.size, np.inf), where=towards)
    length = min(float(ends.min()), -slope / bend if bend > 0.0 else np.inf)
    change = length * slope + 0.5 * length**2 * bend
    if not (np.isfinite(length) and change < 0.0):
        return False  # Rounding.
    new = own + length * direction
    # A coefficient that has reached zero is exactly zero, without rounding.
    new[ends <= length] = 0.0
    q -= G[:, support] @ (new - own)
    w[support] = new
    return bool((ends <= length).any())


def _to_minimum(H: F64, gradient: F64) -> F64 | None:
    """Return the step to the minimum if columns are clearly independent, else None."""
    import scipy.linalg

    lengths = np.sqrt(H.diagonal())
    if not lengths.all():
        return None
    R, failed = scipy.linalg.lapack.dpotrf(H / np.outer(lengths, lengths), overwrite_a=True)
    if failed or float(R.diagonal().min()) ** 2 <= INDEPENDENT:
        return None
    step, _ = scipy.linalg.lapack.dpotrs(R, gradient / lengths)
    return np.asarray(-step / lengths)


def descent_direction(H: F64, gradient: F64, rounding: F64 | None = None) -> F64:
    """Return a descent direction of a quadratic function: to its minimum, or along a linear part.

    If columns are linearly dependent, the function has flat directions without curvature. If the
    gradient has a component along these, that component alone is followed. If the component is
    rounding, only the curvature of rounding errors would bound such a step, so the shortest step to
    a minimum is taken instead. Lengths refer to columns of unit norm. Unlike regularising the
    equations by a small diagonal, the result does not depend on rounding errors.

    Parameters
    ----------
    H : ndarray (m, m)
        Symmetric positive semidefinite up to rounding.
    gradient : ndarray (m,)
    rounding : ndarray (m,), optional
        Error bound of the gradient; 0 by default.

    Source: Higham (2002), section 10.3, for the Cholesky factor with pivots.
    """
    # Members import this module and never call it: they save 60 ms.
    import scipy.linalg

    lengths = np.sqrt(H.diagonal())
    lengths[lengths == 0.0] = 1.0
    g = gradient / lengths
    R, order, rank, _ = scipy.linalg.lapack.dpstrf(H / np.outer(lengths, lengths), tol=DEPENDENT)
    order = order - 1
    independent = R[:rank, :rank]
    step = np.zeros(g.size)
    step[order[:rank]] = -scipy.linalg.cho_solve((independent, False), g[order[:rank]])
    if rank < g.size:
        # Columns: a basis of the flat directions.
        null = np.zeros((g.size, g.size - rank))
        null[order[:rank]] = -scipy.linalg.solve_triangular(independent, R[:rank, rank:])
        null[order[rank:]] = np.eye(g.size - rank)
        basis = np.linalg.qr(null)[0]
        along = basis @ (basis.T @ g)
        level = 0.0 if rounding is None else float((rounding / lengths).max())
        if np.abs(along).max() > max(level, LEVEL * np.abs(g).max()):
            step = -along
        else:
            step -= basis @ (basis.T @ step)
    return step / lengths
